#include "grammar/masks/draft_masks.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "grammar/conformance.h"

namespace espalier::grammar {
namespace {

std::shared_ptr<CompiledGrammar> compiled(GrammarSpec spec) {
  auto grammar = compile_grammar(spec, byte_trie());
  EXPECT_TRUE(grammar) << grammar.error().to_string();
  return *grammar;
}

GrammarSpec schema(const char* source) {
  return {
      .kind = GrammarSpec::Kind::kJsonSchema, .source = source, .whitespace = Whitespace::kCompact};
}

// Each row equals the mask of a matcher that has read the row's path.
TEST(Draft, MasksOfATreeAreThoseOfItsPaths) {
  const auto grammar = compiled(
      schema(R"({"type":"array","items":{"enum":["ab","a",12,true]},"uniqueItems":true})"));
  Rng rng(7);
  constexpr std::string_view kLetters = "[]\",ab12true";
  int taken = 0, refused = 0;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    Matcher matcher(grammar);
    ASSERT_TRUE(matcher.accept_bytes(round % 2 == 0 ? "[" : "[\"ab\","));
    std::vector<TokenId> tokens;
    std::vector<int32_t> parents;
    for (int i = 0; i < 12; ++i) {
      tokens.push_back(static_cast<uint8_t>(kLetters[rng.below(kLetters.size())]));
      parents.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(i) + 1)) - 1);
    }
    const auto words = static_cast<size_t>(matcher.words_per_mask());
    std::vector<uint32_t> masks(words * 13, ~0u), expected(words);
    const std::vector<bool> fits = fill_draft_masks(matcher, {tokens, parents}, masks);
    EXPECT_EQ(matcher.steps(), 1u);
    for (size_t i = 0; i < 13; ++i) {
      std::vector<TokenId> path;
      for (int32_t at = static_cast<int32_t>(i) - 1; at >= 0; at = parents[static_cast<size_t>(at)])
        path.insert(path.begin(), tokens[static_cast<size_t>(at)]);
      Matcher alone(matcher);
      const bool all = std::ranges::all_of(path, [&](TokenId t) { return alone.accept_token(t); });
      std::ranges::fill(expected, 0);
      if (all) alone.fill_mask(expected);
      EXPECT_TRUE(std::ranges::equal(std::span(masks).subspan(i * words, words), expected)) << i;
      if (i == 0) continue;
      EXPECT_EQ(fits[i - 1], all);
      ++(all ? taken : refused);
    }
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace espalier::grammar
