#include "server/dialects/token_text.h"

#include <gtest/gtest.h>

namespace espalier::server {
namespace {

using Length = std::optional<size_t>;
constexpr TokenPlace kInside, kLast{.complete = true}, kFirst{.first = true},
    kSpecial{.special = true};

TEST(TokenText, ATokenIsAsLongAsItsBytes) {
  EXPECT_EQ(token_length_in("sun is", "sun", kInside), Length(3));
  EXPECT_EQ(token_length_in(" sun", " sun", kFirst), Length(4));
  EXPECT_EQ(token_length_in("\xE2\x82\xAC", "\xE2\x82", kInside), Length(2));
}

TEST(TokenText, WhatHasNotComeIsAwaitedUntilTheEnd) {
  EXPECT_EQ(token_length_in("", "sun", kInside), Length());
  EXPECT_EQ(token_length_in("su", "sun", kInside), Length());
  EXPECT_EQ(token_length_in("su", "sun", kLast), Length(2));  // a stop string took the rest
  EXPECT_EQ(token_length_in("", "sun", kLast), Length(0));
}

TEST(TokenText, AnAnswerMayBeginWithoutItsSpace) {
  EXPECT_EQ(token_length_in("The sun", " The", kFirst), Length(3));
  EXPECT_EQ(token_length_in("", " The", kFirst), Length());
  EXPECT_EQ(token_length_in("The sun", " ", kFirst), Length(0));
}

TEST(TokenText, ASpecialTokenMayBeLeftOut) {
  EXPECT_EQ(token_length_in("sun", "<|end|>", kSpecial), Length(0));
  EXPECT_EQ(token_length_in("<|end|>sun", "<|end|>", kSpecial), Length(7));
  EXPECT_EQ(token_length_in("sun", "rain", kInside), Length(3));
}

TEST(TokenText, BytesThatAreNoTextBelongToTheirFirstToken) {
  EXPECT_EQ(token_length_in("\xEF\xBF\xBD and", "\xE2", kInside), Length(3));
  EXPECT_EQ(token_length_in("a\xEF\xBF\xBD and", "a\xE2", kInside), Length(4));
  EXPECT_EQ(token_length_in(" and", "\x82", kInside), Length(0));
}

TEST(TokenText, CutsStandBetweenCharacters) {
  const std::string_view text = "a\xE2\x82\xAC";
  EXPECT_EQ(whole_characters(text, 1), 1u);
  EXPECT_EQ(whole_characters(text, 3), 1u);
  EXPECT_EQ(whole_characters(text, 4), 4u);
  EXPECT_EQ(whole_characters(text, 9), 4u);
}

}  // namespace
}  // namespace espalier::server
