// The C interface of the grammar library over the room grammar. No exception and no C++ type
// crosses it.
#include "espalier/grammar_c.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "api/c_errors.h"
#include "base/status.h"
#include "grammar/grammar.h"

namespace grammar = espalier::grammar;
using espalier::Result;
using espalier::Status;
using espalier::StatusCode;
using espalier::api::write_message;

struct esp_vocabulary {
  std::shared_ptr<const grammar::TokenTrie> trie;  // shared: its grammars outlive the handle
};

struct esp_grammar {
  std::shared_ptr<grammar::CompiledGrammar> compiled;  // shared: its matchers outlive the handle
};

struct esp_matcher {
  grammar::Matcher matcher;
  const grammar::CompiledGrammar* compiled;  // what the matcher keeps alive
};

namespace {

constexpr const char* kShortMemory = "memory is short; pass a smaller grammar or vocabulary";

template <typename T, typename Make>
esp_status create(T** out, char* error, size_t error_size, Make make) {
  return espalier::api::create(out, error, error_size, kShortMemory, std::move(make));
}

// Runs a matcher's step. Memory that runs out reads as a step that is not allowed.
template <typename Run>
auto guarded(Run run) -> decltype(run()) {
  try {
    return run();
  } catch (const std::exception&) {
    return {};
  }
}

tl::unexpected<Status> invalid(std::string message) {
  return espalier::fail(Status(StatusCode::kInvalidArgument, std::move(message)));
}

Result<std::vector<espalier::TokenId>> sorted_ids(const int32_t* ids, size_t count,
                                                  size_t vocab_size, std::string_view name) {
  if (ids == nullptr && count > 0) return invalid(fmt::format("{} is NULL; pass an array", name));
  std::vector<espalier::TokenId> sorted(ids, ids + count);
  std::sort(sorted.begin(), sorted.end());
  if (!sorted.empty() && (sorted.front() < 0 || static_cast<size_t>(sorted.back()) >= vocab_size)) {
    return invalid(fmt::format("{} holds {}, but ids are from 0 to {}; pass ids of the vocabulary",
                               name, sorted.front() < 0 ? sorted.front() : sorted.back(),
                               vocab_size - 1));
  }
  return sorted;
}

constexpr size_t kVocabSizeMax = size_t{1} << 24;

Result<esp_vocabulary> make_vocabulary(const char* const* tokens, const size_t* sizes,
                                       size_t vocab_size, const int32_t* special_ids,
                                       size_t num_special_ids, const int32_t* eos_ids,
                                       size_t num_eos_ids) {
  if (tokens == nullptr || sizes == nullptr || vocab_size == 0 || vocab_size > kVocabSizeMax) {
    return invalid(fmt::format("the vocabulary has {} tokens; pass 1 to {} and their sizes",
                               tokens == nullptr || sizes == nullptr ? 0 : vocab_size,
                               kVocabSizeMax));
  }
  std::vector<std::string_view> bytes(vocab_size);
  for (size_t id = 0; id < vocab_size; ++id) {
    if (tokens[id] == nullptr && sizes[id] > 0) {
      return invalid(fmt::format("token {} is NULL and has {} bytes; pass size 0", id, sizes[id]));
    }
    bytes[id] = sizes[id] > 0 ? std::string_view(tokens[id], sizes[id]) : std::string_view();
  }
  ESP_ASSIGN_OR_RETURN(auto special,
                       sorted_ids(special_ids, num_special_ids, vocab_size, "special_ids"));
  ESP_ASSIGN_OR_RETURN(auto eos, sorted_ids(eos_ids, num_eos_ids, vocab_size, "eos_ids"));
  const espalier::VocabView view{
      .token_bytes = bytes, .special_ids = std::move(special), .eos_ids = std::move(eos)};
  return esp_vocabulary{std::make_shared<const grammar::TokenTrie>(view)};
}

Result<grammar::GrammarSpec::Kind> kind_of(esp_grammar_kind kind) {
  using Kind = grammar::GrammarSpec::Kind;
  switch (kind) {
    case ESP_GRAMMAR_REGEX:
      return Kind::kRegex;
    case ESP_GRAMMAR_EBNF:
      return Kind::kEbnf;
    case ESP_GRAMMAR_JSON_SCHEMA:
      return Kind::kJsonSchema;
    case ESP_GRAMMAR_ANY_JSON:
      return Kind::kAnyJson;
    case ESP_GRAMMAR_STRUCTURAL_TAG:
      return Kind::kStructuralTag;
  }
  return invalid(fmt::format("there is no grammar kind {}; pass an ESP_GRAMMAR_ constant",
                             static_cast<int>(kind)));
}

Result<esp_grammar> make_grammar(const esp_vocabulary* vocabulary, esp_grammar_kind kind,
                                 const char* source, size_t source_size,
                                 const esp_grammar_options* options) {
  if (vocabulary == nullptr) return invalid("the vocabulary is NULL; create one first");
  if (source == nullptr && source_size > 0) return invalid("the source is NULL; pass its text");
  grammar::GrammarSpec spec;
  ESP_ASSIGN_OR_RETURN(spec.kind, kind_of(kind));
  if (source_size > 0) spec.source.assign(source, source_size);
  grammar::GrammarLimits limits;
  if (options != nullptr) {
    if (options->struct_size != sizeof(esp_grammar_options)) {
      return invalid(fmt::format("options have {} bytes; set struct_size to {}",
                                 options->struct_size, sizeof(esp_grammar_options)));
    }
    spec.json.any_order = options->any_order != 0;
    if (options->compile_seconds_max > 0) limits.compile_seconds_max = options->compile_seconds_max;
  }
  ESP_ASSIGN_OR_RETURN(auto compiled, grammar::compile_grammar(spec, vocabulary->trie, limits));
  return esp_grammar{std::move(compiled)};
}

}  // namespace

extern "C" {

esp_status esp_vocabulary_create(const char* const* tokens, const size_t* token_sizes,
                                 size_t vocab_size, const int32_t* special_ids,
                                 size_t num_special_ids, const int32_t* eos_ids, size_t num_eos_ids,
                                 esp_vocabulary** vocabulary, char* error, size_t error_size) {
  return create(vocabulary, error, error_size, [&] {
    return make_vocabulary(tokens, token_sizes, vocab_size, special_ids, num_special_ids, eos_ids,
                           num_eos_ids);
  });
}

void esp_vocabulary_free(esp_vocabulary* vocabulary) { delete vocabulary; }

esp_status esp_grammar_compile(const esp_vocabulary* vocabulary, esp_grammar_kind kind,
                               const char* source, size_t source_size,
                               const esp_grammar_options* options, esp_grammar** grammar,
                               char* error, size_t error_size) {
  return create(grammar, error, error_size,
                [&] { return make_grammar(vocabulary, kind, source, source_size, options); });
}

void esp_grammar_free(esp_grammar* grammar) { delete grammar; }

esp_status esp_matcher_create(const esp_grammar* grammar, esp_matcher** matcher, char* error,
                              size_t error_size) {
  return create(matcher, error, error_size, [&]() -> Result<esp_matcher> {
    if (grammar == nullptr) return invalid("the grammar is NULL; compile one first");
    return esp_matcher{grammar::Matcher(grammar->compiled), grammar->compiled.get()};
  });
}

esp_status esp_matcher_fork(const esp_matcher* matcher, esp_matcher** fork, char* error,
                            size_t error_size) {
  return create(fork, error, error_size, [&]() -> Result<esp_matcher> {
    if (matcher == nullptr) return invalid("the matcher is NULL; create one first");
    return *matcher;
  });
}

void esp_matcher_free(esp_matcher* matcher) { delete matcher; }

int esp_matcher_accept_token(esp_matcher* matcher, int32_t token) {
  return guarded([&] { return static_cast<int>(matcher->matcher.accept_token(token)); });
}

int esp_matcher_accept_bytes(esp_matcher* matcher, const char* bytes, size_t size) {
  return guarded([&] {
    return static_cast<int>(matcher->matcher.accept_bytes(std::string_view(bytes, size)));
  });
}

size_t esp_matcher_mask_words(const esp_matcher* matcher) {
  return static_cast<size_t>(matcher->matcher.words_per_mask());
}

int esp_matcher_fill_mask(esp_matcher* matcher, uint32_t* words, size_t num_words) {
  if (num_words != esp_matcher_mask_words(matcher)) return 0;
  return guarded([&] { return static_cast<int>(matcher->matcher.fill_mask({words, num_words})); });
}

size_t esp_matcher_forced_string(esp_matcher* matcher, char* bytes, size_t size) {
  return guarded([&] {
    const std::string forced = matcher->matcher.forced_bytes(size);
    std::copy(forced.begin(), forced.end(), bytes);
    return forced.size();
  });
}

int esp_matcher_rollback(esp_matcher* matcher, size_t steps) {
  if (steps > matcher->matcher.steps()) return 0;
  matcher->matcher.rollback(steps);
  return 1;
}

size_t esp_matcher_steps(const esp_matcher* matcher) { return matcher->matcher.steps(); }

int esp_matcher_can_end(const esp_matcher* matcher) { return matcher->matcher.can_end() ? 1 : 0; }

int esp_matcher_ended(const esp_matcher* matcher) { return matcher->matcher.ended() ? 1 : 0; }

int esp_matcher_exhausted(const esp_matcher* matcher) {
  return matcher->compiled->exhausted() ? 1 : 0;
}

}  // extern "C"
