#include "bench/commands/grammar_cliffs.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "bench/commands/measure.h"

namespace espalier::bench {
using namespace apps;
namespace {

using grammar::CompiledGrammar;
using grammar::Matcher;

constexpr int kReplays = 3;
constexpr size_t kSequences = 256;

struct Case {
  const char* name;
  std::string schema, text;
  double first_mask_ms_goal, mask_us_goal;
};

std::vector<Case> cases() {
  std::string values, tools, nested = R"({"type":"integer"})";
  for (int i = 0; i < 5383; ++i)
    values += fmt::format("{}\"value number {}\"", i ? "," : "", i * 7919);
  for (int i = 0; i < 500; ++i) {
    tools += fmt::format(
        R"({}{{"type":"object","properties":{{"name":{{"const":"tool_{}"}},"parameters":{{"type":)"
        R"("object","properties":{{"city":{{"type":"string"}},"days":{{"type":"integer"}}}},)"
        R"("required":["city"]}}}},"required":["name","parameters"],)"
        R"("additionalProperties":false}})",
        i ? "," : "", i);
  }
  for (int depth = 0; depth < 20; ++depth) {
    nested =
        fmt::format(R"({{"oneOf":[{{"type":"string"}},{{"type":"object","properties":{{"in":{}}},)"
                    R"("required":["in"],"additionalProperties":false}}]}})",
                    nested);
  }
  const std::string text = "\"the quick brown fox jumps over the lazy dog, and so on\"";
  return {
      {"maxLength 100,000", R"({"type":"string","maxLength":100000})", text, 0, 5},
      {"pattern of 1,000 characters", R"({"type":"string","pattern":"^[a-z ,]{1,1000}$"})", text, 0,
       5},
      {"maxItems 1,000,000", R"({"type":"array","items":{"type":"integer"},"maxItems":1000000})",
       "[1,22,333,4444,55555]", 1, 0},
      {"enum of 5,383 values", fmt::format(R"({{"enum":[{}]}})", values), "\"value number 7919\"",
       5, 0},
      {"500 tools", fmt::format(R"({{"anyOf":[{}]}})", tools),
       R"({"name":"tool_77","parameters":{"city":"Paris","days":3}})", 20, 0},
      {"oneOf nested 20 deep", nested, R"({"in":{"in":{"in":"x"}}})", 10, 0},
  };
}

}  // namespace

std::vector<GrammarCliff> measure_cliffs(const Vocabulary& vocab) {
  std::vector<GrammarCliff> out;
  std::vector<uint32_t> words(static_cast<size_t>(vocab.trie->words_per_mask()));
  for (const Case& test : cases()) {
    GrammarCliff cliff{.name = test.name,
                       .first_mask_ms = std::numeric_limits<double>::max(),
                       .mask_us = std::numeric_limits<double>::max(),
                       .first_mask_ms_goal = test.first_mask_ms_goal,
                       .mask_us_goal = test.mask_us_goal};
    const auto ids =
        vocab.tokenizer->encode(test.text, {.add_special_tokens = false, .parse_special = false});
    for (int replay = 0; replay < kReplays && !cliff.declined; ++replay) {
      const double start = thread_cpu_us();
      const auto made = grammar::compile_grammar(
          {.kind = grammar::GrammarSpec::Kind::kJsonSchema, .source = test.schema, .choices = {}},
          vocab.trie);
      if (!made) {
        cliff.declined = true;
        break;
      }
      Matcher matcher(*made);
      matcher.fill_mask(words);
      cliff.first_mask_ms = std::min(cliff.first_mask_ms, (thread_cpu_us() - start) / 1e3);
      std::vector<double> steps;
      for (const TokenId id : ids) {
        const double step = thread_cpu_us();
        matcher.fill_mask(words);
        const bool accepted = matcher.accept_token(id);
        steps.push_back(thread_cpu_us() - step);
        if (!accepted) break;
      }
      cliff.mask_us = std::min(cliff.mask_us, median(std::move(steps)));
    }
    out.push_back(std::move(cliff));
  }
  return out;
}

double measure_batch_ms(const Vocabulary& vocab) {
  const auto made = grammar::compile_grammar(
      {.kind = grammar::GrammarSpec::Kind::kAnyJson, .source = {}, .choices = {}}, vocab.trie);
  if (!made) return 0;
  const auto ids = vocab.tokenizer->encode(
      R"({"name": "Ada", "tags": ["x", 1.5, true, null], "more": {"deep": [{"a": "b"}, -7]}})",
      {.add_special_tokens = false, .parse_special = false});
  std::vector<uint32_t> words(static_cast<size_t>(vocab.trie->words_per_mask()));
  std::vector<Matcher> sequences(kSequences, Matcher(*made));
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (size_t i = 0; i < s % ids.size(); ++i) sequences[s].accept_token(ids[i]);
  }
  std::vector<double> steps;
  for (size_t step = 0; step < 3 * ids.size(); ++step) {
    const double start = thread_cpu_us();
    for (size_t s = 0; s < sequences.size(); ++s) {
      const size_t place = (s + step) % ids.size();
      if (place == 0) sequences[s] = Matcher(*made);
      sequences[s].fill_mask(words);
      sequences[s].accept_token(ids[place]);
    }
    steps.push_back((thread_cpu_us() - start) / 1e3);
  }
  return median(std::move(steps));
}

}  // namespace espalier::bench
