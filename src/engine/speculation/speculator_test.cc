#include "engine/speculation/speculator.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

DraftTokens propose(Speculator& speculator, SpeculativeText& text, int32_t most = 16) {
  DraftTokens draft{.tokens_max = most, .samples_max = 16};
  speculator.propose(text, draft);
  EXPECT_EQ(draft.tokens.size(), draft.samples.size());
  for (size_t i = 0; i < draft.samples.size(); ++i)
    EXPECT_EQ(draft.samples[i], static_cast<int32_t>(i));
  return draft;
}

std::vector<TokenId> count_up(TokenId first, int count) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST(Speculator, CopiesFromTheOwnText) {
  Speculator speculator({.draft_tokens_max = 4});
  const auto text = speculator.start(1, count_up(10, 30), 50);
  EXPECT_TRUE(propose(speculator, *text).tokens.empty());
  std::vector<TokenId> answer;
  for (TokenId token = 12; token < 35;) {
    const DraftTokens draft = propose(speculator, *text);
    for (size_t i = 0; i < draft.tokens.size(); ++i)
      EXPECT_EQ(draft.tokens[i], token + static_cast<TokenId>(i));
    const int accepted = static_cast<int>(draft.tokens.size());
    for (int i = 0; i <= accepted; ++i) speculator.observe_token(*text, token++);
  }
  EXPECT_GT(speculator.counts(DraftSource::kOwnText).accepted, 12);
  EXPECT_EQ(speculator.counts(DraftSource::kOwnText).accepted,
            speculator.counts(DraftSource::kOwnText).proposed);
  speculator.finish(*text);
}

TEST(Speculator, GoesOnWithARepetition) {
  Speculator speculator({.draft_tokens_max = 7});
  const auto text = speculator.start(1, {{5, 6, 5, 6, 5, 6}}, 50);
  for (int i = 0; i < 30; ++i) speculator.observe_token(*text, i % 2 == 0 ? 5 : 6);
  for (int round = 0; round < 8; ++round) {
    const DraftTokens draft = propose(speculator, *text);
    for (size_t i = 0; i < draft.tokens.size(); ++i) EXPECT_EQ(draft.tokens[i], i % 2 == 0 ? 5 : 6);
    for (int i = 0; i < 8; ++i) speculator.observe_token(*text, i % 2 == 0 ? 5 : 6);
  }
  EXPECT_EQ(propose(speculator, *text).tokens.size(), 7u);
}

TEST(Speculator, ContinuesAsAnEarlierAnswerOfItsScopeDid) {
  Speculator speculator({.draft_tokens_max = 4});
  const std::vector<TokenId> prompt = {1, 2, 3, 4};
  const auto first = speculator.start(1, prompt, 50);
  for (const TokenId token : count_up(40, 20)) speculator.observe_token(*first, token);
  EXPECT_TRUE(propose(speculator, *first).tokens.empty());
  speculator.finish(*first);
  const auto same = speculator.start(1, prompt, 50);
  const DraftTokens draft = propose(speculator, *same);
  ASSERT_FALSE(draft.tokens.empty());
  EXPECT_EQ(draft.tokens[0], 40);
  EXPECT_EQ(propose(speculator, *same, 0).tokens.size(), 0u);
  speculator.finish(*same);
  const auto other = speculator.start(2, prompt, 50);
  EXPECT_TRUE(propose(speculator, *other).tokens.empty()) << "another scope";
}

}  // namespace
}  // namespace espalier
