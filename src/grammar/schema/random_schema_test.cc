// Random satisfiable schemas of uniqueItems, contains, propertyNames and counts: random walks along
// their masks end in valid instances.
//   ESPALIER_RANDOM_SCHEMAS   number of schemas (300; tools/long_tests: 10000)
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/rng.h"
#include "grammar/conformance.h"
#include "grammar/schema/json_text.h"
#include "grammar/schema/random_schema.h"
#include "grammar/schema/validator.h"

namespace espalier::grammar {
namespace {

namespace json = boost::json;

struct Outcomes {
  int64_t valid = 0, invalid = 0, stuck = 0, endless = 0, refused = 0;
};

// Follows random allowed bytes; a text that may end does so one time in four.
void walk(const std::shared_ptr<CompiledGrammar>& grammar, const std::string& schema, Rng& rng,
          Outcomes& outcomes) {
  constexpr int kStepsMax = 4000;
  const auto document = SchemaDocument::parse(schema, {}).value();
  SchemaValidator validator(*document);
  Matcher matcher(grammar);
  std::vector<uint32_t> words(static_cast<size_t>(matcher.words_per_mask()));
  std::string text;
  for (int step = 0; step < kStepsMax; ++step) {
    matcher.fill_mask(words);
    std::vector<char> allowed;
    for (size_t b = 0; b < 256; ++b) {
      if (words[b / 32] >> (b % 32) & 1) allowed.push_back(static_cast<char>(b));
    }
    if (matcher.can_end() && (allowed.empty() || rng.below(4) == 0)) {
      const auto value = parse_exact_json_text(text, "the instance");
      const bool valid = value && validator.valid(*value, &document->root(), kNoScope).value();
      ++(valid ? outcomes.valid : outcomes.invalid);
      EXPECT_TRUE(valid) << schema << "\n" << text;
      return;
    }
    if (allowed.empty()) {
      ++outcomes.stuck;
      fmt::print(stderr, "a dead end: {}\n{}\n", schema, text);
      return;
    }
    text.push_back(allowed[rng.below(allowed.size())]);
    ASSERT_TRUE(matcher.accept_bytes(std::string_view(text).substr(text.size() - 1)));
  }
  ++outcomes.endless;
}

TEST(RandomSchema, WalksEndInValidInstances) {
  const char* const wanted = std::getenv("ESPALIER_RANDOM_SCHEMAS");
  const int count = wanted == nullptr ? 300 : std::atoi(wanted);
  Outcomes outcomes;
  for (int i = 0; i < count; ++i) {
    const uint64_t seed = 1000 + static_cast<uint64_t>(i);
    SCOPED_TRACE(seed);
    const RandomSchema::Pair drawn = RandomSchema(seed).draw(3);
    const std::string schema = json::serialize(drawn.schema);
    const auto grammar = compile_grammar(
        {.kind = GrammarSpec::Kind::kJsonSchema, .source = schema, .choices = {}}, byte_trie());
    if (!grammar) {
      ++outcomes.refused;
      EXPECT_NE(grammar.error().code(), StatusCode::kInvalidArgument) << schema << "\n"
                                                                      << grammar.error().message();
      continue;
    }
    Rng rng(seed);
    for (int walks = 0; walks < 3; ++walks) walk(*grammar, schema, rng, outcomes);
  }
  fmt::print(
      "{} schemas: {} refused; {} walks ended in valid instances, {} in others, {} in dead "
      "ends, {} went on\n",
      count, outcomes.refused, outcomes.valid, outcomes.invalid, outcomes.stuck, outcomes.endless);
  EXPECT_LE(outcomes.refused * 100, count);
  EXPECT_LE(outcomes.endless * 100, 3 * count);
  EXPECT_EQ(outcomes.stuck, 0);
}

}  // namespace
}  // namespace espalier::grammar
