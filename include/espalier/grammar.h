// Structured generation for C++17 and later: thin owning classes over grammar_c.h, which states
// what each call does. They are defined here alone, so the library has no C++ types in its
// interface and any compiler's standard library may be used with it.
//
//   std::string error;
//   auto vocabulary = espalier::Vocabulary::create(tokens, {}, {eos}, &error);
//   auto grammar = espalier::Grammar::json_schema(*vocabulary, schema, &error);
//   auto matcher = espalier::GrammarMatcher::create(*grammar, &error);
//   matcher->fill_mask(words);
//   matcher->accept_token(token);
//
// Thread safety: as in grammar_c.h; const functions of one matcher may run at once.
// Errors: a factory returns no value and writes why to `error`, which may be null.
#pragma once

#include "espalier/grammar_c.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace espalier {

class Vocabulary {
 public:
  // `tokens` is [vocab_size], the bytes of each token.
  static std::optional<Vocabulary> create(const std::vector<std::string>& tokens,
                                          const std::vector<int32_t>& special_ids,
                                          const std::vector<int32_t>& eos_ids, std::string* error) {
    std::vector<const char*> bytes;
    std::vector<size_t> sizes;
    for (const std::string& token : tokens) {
      bytes.push_back(token.data());
      sizes.push_back(token.size());
    }
    char message[1024] = "";
    esp_vocabulary* made = nullptr;
    if (esp_vocabulary_create(bytes.data(), sizes.data(), tokens.size(), special_ids.data(),
                              special_ids.size(), eos_ids.data(), eos_ids.size(), &made, message,
                              sizeof message) != ESP_OK) {
      if (error != nullptr) *error = message;
      return std::nullopt;
    }
    return Vocabulary(made);
  }
  const esp_vocabulary* get() const { return handle_.get(); }

 private:
  struct Free {
    void operator()(esp_vocabulary* handle) const { esp_vocabulary_free(handle); }
  };
  explicit Vocabulary(esp_vocabulary* handle) : handle_(handle) {}
  std::unique_ptr<esp_vocabulary, Free> handle_;
};

class Grammar {
 public:
  static std::optional<Grammar> compile(const Vocabulary& vocabulary, esp_grammar_kind kind,
                                        std::string_view source, const esp_grammar_options* options,
                                        std::string* error) {
    char message[1024] = "";
    esp_grammar* made = nullptr;
    if (esp_grammar_compile(vocabulary.get(), kind, source.data(), source.size(), options, &made,
                            message, sizeof message) != ESP_OK) {
      if (error != nullptr) *error = message;
      return std::nullopt;
    }
    return Grammar(made);
  }
  static std::optional<Grammar> json_schema(const Vocabulary& vocabulary, std::string_view schema,
                                            std::string* error) {
    return compile(vocabulary, ESP_GRAMMAR_JSON_SCHEMA, schema, nullptr, error);
  }
  static std::optional<Grammar> regex(const Vocabulary& vocabulary, std::string_view pattern,
                                      std::string* error) {
    return compile(vocabulary, ESP_GRAMMAR_REGEX, pattern, nullptr, error);
  }
  static std::optional<Grammar> ebnf(const Vocabulary& vocabulary, std::string_view text,
                                     std::string* error) {
    return compile(vocabulary, ESP_GRAMMAR_EBNF, text, nullptr, error);
  }
  static std::optional<Grammar> structural_tag(const Vocabulary& vocabulary, std::string_view tag,
                                               std::string* error) {
    return compile(vocabulary, ESP_GRAMMAR_STRUCTURAL_TAG, tag, nullptr, error);
  }
  const esp_grammar* get() const { return handle_.get(); }

 private:
  struct Free {
    void operator()(esp_grammar* handle) const { esp_grammar_free(handle); }
  };
  explicit Grammar(esp_grammar* handle) : handle_(handle) {}
  std::unique_ptr<esp_grammar, Free> handle_;
};

class GrammarMatcher {
 public:
  static std::optional<GrammarMatcher> create(const Grammar& grammar, std::string* error) {
    char message[1024] = "";
    esp_matcher* made = nullptr;
    if (esp_matcher_create(grammar.get(), &made, message, sizeof message) != ESP_OK) {
      if (error != nullptr) *error = message;
      return std::nullopt;
    }
    return GrammarMatcher(made);
  }
  std::optional<GrammarMatcher> fork(std::string* error) const {
    char message[1024] = "";
    esp_matcher* made = nullptr;
    if (esp_matcher_fork(handle_.get(), &made, message, sizeof message) != ESP_OK) {
      if (error != nullptr) *error = message;
      return std::nullopt;
    }
    return GrammarMatcher(made);
  }

  bool accept_token(int32_t token) { return esp_matcher_accept_token(handle_.get(), token) != 0; }
  bool accept_bytes(std::string_view bytes) {
    return esp_matcher_accept_bytes(handle_.get(), bytes.data(), bytes.size()) != 0;
  }
  size_t mask_words() const { return esp_matcher_mask_words(handle_.get()); }
  // Resizes `words` to mask_words().
  bool fill_mask(std::vector<uint32_t>& words) {
    words.resize(mask_words());
    return esp_matcher_fill_mask(handle_.get(), words.data(), words.size()) != 0;
  }
  std::string forced_string(size_t bytes_max) {
    std::string bytes(bytes_max, '\0');
    bytes.resize(esp_matcher_forced_string(handle_.get(), bytes.data(), bytes.size()));
    return bytes;
  }
  bool rollback(size_t steps) { return esp_matcher_rollback(handle_.get(), steps) != 0; }
  size_t steps() const { return esp_matcher_steps(handle_.get()); }
  bool can_end() const { return esp_matcher_can_end(handle_.get()) != 0; }
  bool ended() const { return esp_matcher_ended(handle_.get()) != 0; }
  bool exhausted() const { return esp_matcher_exhausted(handle_.get()) != 0; }

 private:
  struct Free {
    void operator()(esp_matcher* handle) const { esp_matcher_free(handle); }
  };
  explicit GrammarMatcher(esp_matcher* handle) : handle_(handle) {}
  std::unique_ptr<esp_matcher, Free> handle_;
};

}  // namespace espalier
