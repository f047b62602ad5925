#include "engine/speculation/ngram_index.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace espalier {
namespace {

// Against a search of the whole text: a match is the latest occurrence of the n-gram where the
// table has not lost it, and is right wherever there is one.
TEST(NgramIndex, FindsWhatOccurredBefore) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Rng rng(seed);
    NgramIndex index(64);
    std::vector<TokenId> text;
    int found = 0, possible = 0;
    for (int i = 0; i < 600; ++i) {
      const auto token = static_cast<TokenId>(rng.below(3));
      index.append(9, token);
      text.push_back(token);
      const NgramIndex::Match match = index.find(9, index.recent());
      const auto size = std::ssize(text);
      const int64_t kept = size - 64;
      bool exists = false;
      for (int64_t next = std::max<int64_t>(2, kept + 2); next < size && size >= 3; ++next)
        exists |= std::equal(text.end() - 2, text.end(), text.begin() + next - 2);
      possible += exists ? 1 : 0;
      if (match.next < 0) continue;
      ++found;
      ASSERT_TRUE(exists) << seed;
      ASSERT_GE(match.length, NgramIndex::kOrders[0]);
      ASSERT_LT(match.next, size);
      ASSERT_EQ(index.at(match.next), text[static_cast<size_t>(match.next)]);
      for (int32_t k = 1; k <= match.length; ++k)
        ASSERT_EQ(text[static_cast<size_t>(match.next - k)], text[static_cast<size_t>(size - k)]);
    }
    EXPECT_GT(found, possible / 2) << seed;
  }
}

TEST(NgramIndex, LongMatchesGoBeforeLaterShortOnes) {
  NgramIndex index(256);
  for (const TokenId t : {1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 6, 7, 8, 60}) index.append(0, t);
  index.end_text();
  for (const TokenId t : {1, 2, 3, 4, 5, 6, 7, 8}) index.append(0, t);
  const NgramIndex::Match match = index.find(0, index.recent());
  EXPECT_EQ(match.length, 8);
  EXPECT_EQ(index.at(match.next), 9);
}

// Of every order: a text's latest tokens occurred before as a longer n-gram, and later as the next
// shorter one.
TEST(NgramIndex, TheLongestNgramGoesFirst) {
  for (size_t i = 1; i < std::size(NgramIndex::kOrders); ++i) {
    const int32_t longer = NgramIndex::kOrders[i], shorter = NgramIndex::kOrders[i - 1];
    NgramIndex index(256);
    const auto append = [&](int32_t count, TokenId next) {
      for (int32_t k = 16 - count; k < 16; ++k) index.append(0, 20 + k);
      index.append(0, next);
      index.end_text();
    };
    append(longer, 7);
    append(shorter, 8);
    std::vector<TokenId> context;
    for (int32_t k = 0; k < 16; ++k) context.push_back(20 + k);
    const NgramIndex::Match match = index.find(0, context);
    EXPECT_EQ(match.length, longer);
    EXPECT_EQ(index.at(match.next), 7);
    EXPECT_EQ(index.at(index.find(0, std::span(context).last(static_cast<size_t>(shorter))).next),
              8);
  }
}

// Most texts of few words are found with their longest match: what the table loses is little.
TEST(NgramIndex, FindsNearlyTheLongestMatch) {
  Rng rng(11);
  NgramIndex index(1024);
  std::vector<TokenId> text;
  std::vector<std::vector<TokenId>> phrases(12);
  for (auto& phrase : phrases)
    for (auto left = 3 + rng.below(12); left > 0; --left)
      phrase.push_back(static_cast<TokenId>(rng.below(40)));
  int64_t found = 0, longest = 0;
  while (text.size() < 800) {
    for (const TokenId token : phrases[rng.below(phrases.size())]) {
      const std::span<const TokenId> end = text;
      int64_t best = 0;
      for (size_t next = 1; next < text.size(); ++next) {
        int64_t length = 0;
        while (length < NgramIndex::kMatchMax && static_cast<size_t>(length) < next &&
               end[next - 1 - static_cast<size_t>(length)] ==
                   end[text.size() - 1 - static_cast<size_t>(length)])
          ++length;
        best = std::max(best, length);
      }
      longest += best >= NgramIndex::kOrders[0] ? best : 0;
      found += index.find(0, index.recent()).length;
      index.append(0, token);
      text.push_back(token);
    }
  }
  EXPECT_LE(found, longest);
  EXPECT_GT(static_cast<double>(found), 0.9 * static_cast<double>(longest));
}

TEST(NgramIndex, ScopesAndTextsAreApart) {
  NgramIndex index(256);
  const std::vector<TokenId> context = {1, 2, 3};
  for (const TokenId t : {1, 2, 3, 4}) index.append(7, t);
  EXPECT_EQ(index.at(index.find(7, context).next), 4);
  EXPECT_EQ(index.find(8, context).next, -1);
  NgramIndex ended(256);
  for (const TokenId t : {1, 2, 3}) ended.append(7, t);
  ended.end_text();
  for (const TokenId t : {9, 9, 1, 2}) ended.append(7, t);
  ended.end_text();
  for (const TokenId t : {3, 4}) ended.append(7, t);
  EXPECT_EQ(ended.find(7, context).next, -1) << "no occurrence goes on within its text";
}

TEST(NgramIndex, ForgetsWhatItsCapacityPasses) {
  NgramIndex index(32);
  for (const TokenId t : {1, 2, 3, 4}) index.append(0, t);
  for (TokenId t = 100; t < 140; ++t) index.append(0, t);
  EXPECT_EQ(index.find(0, std::vector<TokenId>{1, 2, 3}).next, -1);
  EXPECT_EQ(index.at(3), -1);
  EXPECT_EQ(index.at(index.size() - 1), 139);
  EXPECT_EQ(index.at(index.size()), -1);
}

}  // namespace
}  // namespace espalier
