#include "bench/commands/grammar_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "base/check.h"
#include "base/thread.h"
#include "bench/commands/measure.h"
#include "engine/constrained/jump_forward.h"
#include "grammar/masks/mask_pool.h"

namespace espalier::bench {
using namespace apps;
namespace {

using grammar::CompiledGrammar;
using grammar::MaskPool;
using grammar::Matcher;

constexpr size_t kMostSchemas = 8;
constexpr int kColdRuns = 5, kSteps = 40, kRepeats = 5;

// A typical record: free and bounded strings, numbers, enumerations, lists. The
// schemas differ in the names of their keys, so they share no grammar.
std::string schema_of(size_t number) {
  return fmt::format(
      R"({{"type":"object","properties":{{"name_{0}":{{"type":"string"}},)"
      R"("colour_{0}":{{"enum":["red","green","blue"]}},)"
      R"("size_{0}":{{"type":"integer","minimum":1,"maximum":500}},)"
      R"("code_{0}":{{"type":"string","pattern":"^[A-Z]{{2}}-[0-9]{{3,6}}$"}},)"
      R"("note_{0}":{{"type":"string","maxLength":80}},)"
      R"("tags_{0}":{{"type":"array","items":{{"type":"string"}},"maxItems":5}},)"
      R"("on_{0}":{{"type":"boolean"}}}},)"
      R"("required":["name_{0}","colour_{0}","size_{0}","code_{0}","note_{0}","tags_{0}","on_{0}"],)"
      R"("additionalProperties":false}})",
      number);
}

std::string text_of(size_t number) {
  return fmt::format(
      R"({{"name_{0}": "Ada of the green hills", "colour_{0}": "green", "size_{0}": 371,)"
      R"( "code_{0}": "QX-40718", "note_{0}": "seen twice, and \"gone\" since the spring",)"
      R"( "tags_{0}": ["lost", "tall as a tree", "old"], "on_{0}": true}})",
      number);
}

// Sequences that advance along the texts of newly compiled grammars, and restart at a text's end.
class Sequences {
 public:
  Sequences(const Vocabulary& vocab, size_t num_sequences, size_t num_schemas) {
    for (size_t k = 0; k < num_schemas; ++k) {
      auto made = grammar::compile_grammar(
          {.kind = grammar::GrammarSpec::Kind::kJsonSchema, .source = schema_of(k), .choices = {}},
          vocab.trie);
      ESP_CHECK(made.has_value(), "{}", made.error().message());
      grammars_.push_back(std::move(*made));
      texts_.push_back(vocab.tokenizer->encode(
          text_of(k), {.add_special_tokens = false, .parse_special = false}));
    }
    matchers_.reserve(num_sequences);
    for (size_t s = 0; s < num_sequences; ++s) {
      matchers_.emplace_back(grammars_[s % num_schemas]);
      const size_t start = (7 * s) % text(s).size();
      for (size_t i = 0; i < start; ++i) accept(s);
      pointers_.push_back(&matchers_[s]);
    }
  }

  std::span<Matcher* const> pointers() const { return pointers_; }
  Matcher& matcher(size_t s) { return matchers_[s]; }
  std::span<const TokenId> output(size_t s) const {
    return std::span(text(s)).first(matchers_[s].steps());
  }
  void advance() {
    for (size_t s = 0; s < matchers_.size(); ++s) {
      accept(s);
      if (matchers_[s].steps() == text(s).size()) matchers_[s].rollback(matchers_[s].steps());
    }
  }

 private:
  const std::vector<TokenId>& text(size_t s) const { return texts_[s % texts_.size()]; }
  void accept(size_t s) {
    ESP_CHECK(matchers_[s].accept_token(text(s)[matchers_[s].steps()]), "a text is not its own");
  }

  std::vector<std::shared_ptr<CompiledGrammar>> grammars_;  // shared with their matchers
  std::vector<std::vector<TokenId>> texts_;
  std::vector<Matcher> matchers_;
  std::vector<Matcher*> pointers_;
};

// Calls that are repeated. The least time of each call counts.
class Steps {
 public:
  template <typename Call>
  void add(Call call) {
    double wall = std::numeric_limits<double>::max(), cpu = wall;
    for (int i = 0; i < kRepeats; ++i) {
      const double wall_start = clock_us(CLOCK_MONOTONIC),
                   cpu_start = clock_us(CLOCK_PROCESS_CPUTIME_ID);
      call();
      wall = std::min(wall, clock_us(CLOCK_MONOTONIC) - wall_start);
      cpu = std::min(cpu, clock_us(CLOCK_PROCESS_CPUTIME_ID) - cpu_start);
    }
    wall_.push_back(wall);
    cpu_.push_back(cpu);
  }
  double wall_us() const { return median(wall_); }
  double cpu_us() const { return median(cpu_); }

 private:
  std::vector<double> wall_, cpu_;
};

MaskBatch measure(const Vocabulary& vocab, const TokensByBytes& tokens, size_t num_sequences,
                  size_t num_schemas, int32_t num_threads) {
  MaskPool pool(num_threads);
  const auto words = static_cast<size_t>(vocab.trie->words_per_mask());
  std::vector<uint32_t> masks(num_sequences * words);
  double cold_us = std::numeric_limits<double>::max();
  for (int run = 0; run < kColdRuns; ++run) {
    Sequences sequences(vocab, num_sequences, num_schemas);
    const double start = clock_us(CLOCK_MONOTONIC);
    fill_masks(pool, sequences.pointers(), masks);
    cold_us = std::min(cold_us, clock_us(CLOCK_MONOTONIC) - start);
  }
  std::vector<std::unique_ptr<JumpForward>> jumps;  // [thread]
  for (int32_t t = 0; t < num_threads; ++t)
    jumps.push_back(std::make_unique<JumpForward>(*vocab.tokenizer, tokens));
  Sequences sequences(vocab, num_sequences, num_schemas);
  std::vector<std::vector<TokenId>> choices(num_sequences);
  const auto choose = [&](size_t s, int32_t thread) {
    choices[s].clear();
    jumps[static_cast<size_t>(thread)]->append_choices(sequences.matcher(s), sequences.output(s),
                                                       choices[s]);
  };
  Steps warm, choosing, entries;
  size_t num_narrowed = 0;
  for (int step = 0; step < kSteps; ++step, sequences.advance()) {
    warm.add([&] { fill_masks(pool, sequences.pointers(), masks); });
    choosing.add([&] { pool.run(num_sequences, choose); });
    entries.add([&] {
      pool.run(num_sequences, [&](size_t s, int32_t thread) {
        choose(s, thread);
        if (choices[s].empty())
          sequences.matcher(s).fill_mask(std::span(masks).subspan(s * words, words));
      });
    });
    for (const auto& one : choices) num_narrowed += one.empty() ? 0 : 1;
  }
  return {
      .num_sequences = num_sequences,
      .num_schemas = num_schemas,
      .num_threads = num_threads,
      .cold_us = cold_us,
      .warm_us = warm.wall_us(),
      .choices_us = choosing.wall_us(),
      .entries_us = entries.wall_us(),
      .entries_cpu_us = entries.cpu_us(),
      .narrowed = static_cast<double>(num_narrowed) / static_cast<double>(kSteps * num_sequences)};
}

}  // namespace

std::vector<MaskBatch> measure_mask_batches(const Vocabulary& vocab) {
  const TokensByBytes tokens(*vocab.tokenizer);
  const auto num_cpus = static_cast<int32_t>(usable_cpus().size());
  std::vector<MaskBatch> out;
  for (const size_t num_schemas : {size_t{1}, kMostSchemas})
    for (const size_t num_sequences : {1, 16, 64, 256})
      for (int32_t num_threads = 1; num_threads <= std::min(num_cpus, 8); num_threads *= 2)
        if (num_schemas <= num_sequences)
          out.push_back(measure(vocab, tokens, num_sequences, num_schemas, num_threads));
  return out;
}

}  // namespace espalier::bench
