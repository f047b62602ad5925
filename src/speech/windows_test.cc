#include "speech/windows.h"

#include <gtest/gtest.h>

#include "speech/languages.h"

namespace espalier::speech {
namespace {

// Times begin at 100.
WhisperTokens time_tokens() {
  WhisperTokens tokens;
  tokens.start = 90;
  tokens.end = 89;
  tokens.transcribe = 91;
  tokens.translate = 92;
  tokens.previous = 93;
  tokens.no_timestamps = 99;
  return tokens;
}

using Tokens = std::vector<TokenId>;

void expect_segment(const WindowSegment& segment, double start, double end, const Tokens& tokens) {
  EXPECT_NEAR(segment.start, start, 1e-9);
  EXPECT_NEAR(segment.end, end, 1e-9);
  EXPECT_EQ(segment.tokens, tokens);
}

TEST(Windows, WithoutPairsTheWholeWindowIsASegment) {
  const CutWindow cut = cut_window(time_tokens(), Tokens{1, 2}, 300, 200);
  ASSERT_EQ(cut.segments.size(), 1u);
  expect_segment(cut.segments[0], 3, 5, {1, 2});
  EXPECT_EQ(cut.num_frames, 200);
}

TEST(Windows, ALastTimeEndsTheSegment) {
  const CutWindow cut = cut_window(time_tokens(), Tokens{100, 1, 150}, 0, 200);
  ASSERT_EQ(cut.segments.size(), 1u);
  expect_segment(cut.segments[0], 0, 1, {100, 1, 150});
  EXPECT_EQ(cut.num_frames, 200);
}

TEST(Windows, WhatFollowsTheLastPairIsLeftToTheNextWindow) {
  const CutWindow cut =
      cut_window(time_tokens(), Tokens{105, 1, 120, 120, 2, 150, 160, 3}, 100, 200);
  ASSERT_EQ(cut.segments.size(), 2u);
  expect_segment(cut.segments[0], 1.1, 1.4, {105, 1, 120});
  expect_segment(cut.segments[1], 1.4, 2.0, {120, 2, 150});
  EXPECT_EQ(cut.num_frames, 100);
}

TEST(Windows, AClosedWindowIsReadToItsEnd) {
  const CutWindow cut = cut_window(time_tokens(), Tokens{100, 1, 120, 130, 2, 150}, 0, 200);
  ASSERT_EQ(cut.segments.size(), 2u);
  expect_segment(cut.segments[1], 0.6, 1.0, {130, 2, 150});
  EXPECT_EQ(cut.num_frames, 200);
}

TEST(Windows, TheNextWindowBeginsLaterWhateverTheTimes) {
  EXPECT_EQ(cut_window(time_tokens(), Tokens{100, 100, 3}, 0, 200).num_frames, 200);
  EXPECT_EQ(cut_window(time_tokens(), Tokens{101, 101, 3}, 0, 200).num_frames, 2);
  EXPECT_EQ(cut_window(time_tokens(), Tokens{300, 300, 3}, 0, 200).num_frames, 200);
  EXPECT_EQ(cut_window(time_tokens(), Tokens{}, 0, 7).num_frames, 7);
}

TEST(Windows, APrefixStatesLanguageTaskAndTimes) {
  const WhisperTokens tokens = time_tokens();
  EXPECT_EQ(make_prefix(tokens, {}, 95, false, true, 64).tokens, (Tokens{90, 95, 91}));
  EXPECT_EQ(make_prefix(tokens, {}, 95, true, false, 64).tokens, (Tokens{90, 95, 92, 99}));
  EXPECT_EQ(make_prefix(tokens, {}, -1, false, false, 64).tokens, (Tokens{90, 99}));
}

TEST(Windows, APromptIsCutToItsLastTokens) {
  const Tokens prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const WindowPrefix whole = make_prefix(time_tokens(), prompt, -1, false, true, 64);
  EXPECT_EQ(whole.start_row, 10);
  EXPECT_EQ(whole.tokens.front(), 93);
  EXPECT_EQ(whole.tokens.back(), 90);
  const WindowPrefix cut = make_prefix(time_tokens(), prompt, -1, false, true, 16);
  EXPECT_EQ(cut.tokens, (Tokens{93, 3, 4, 5, 6, 7, 8, 9, 90}));
  EXPECT_EQ(cut.start_row, 8);
}

TEST(Languages, AreKnownByCodeAndName) {
  EXPECT_EQ(languages().size(), 100u);
  EXPECT_EQ(language_code("de"), "de");
  EXPECT_EQ(language_code("German"), "de");
  EXPECT_EQ(language_code("Klingon"), "");
  EXPECT_EQ(language_name("haw"), "hawaiian");
}

}  // namespace
}  // namespace espalier::speech
