#include "server/audio/transcript_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace espalier::server {
namespace {

using testing::HasSubstr;

Transcription two_segments() {
  Transcription made{.language = "de",
                     .duration = 61.2,
                     .text = "Guten Tag. a --> b",
                     .segments = {},
                     .num_prompt_tokens = 4,
                     .num_tokens = 9};
  made.segments.push_back({.id = 0, .start = 0, .end = 1.5, .text = " Guten Tag.", .tokens = {1}});
  made.segments.push_back({.id = 1,
                           .start = 3661.0205,
                           .end = 3662,
                           .seek = 3000,
                           .text = " a --> b",
                           .tokens = {2, 3},
                           .avg_logprob = -0.5,
                           .no_speech_prob = 0.25});
  return made;
}

std::string body_as(TranscriptFormat format, bool translated = false) {
  return transcript_response(two_segments(), format, translated, 0.5).body;
}

TEST(TranscriptText, SubtitlesHaveTimesAndNoArrowsInside) {
  EXPECT_EQ(body_as(TranscriptFormat::kSrt),
            "1\n00:00:00,000 --> 00:00:01,500\nGuten Tag.\n\n"
            "2\n01:01:01,021 --> 01:01:02,000\na -> b\n\n");
  EXPECT_EQ(body_as(TranscriptFormat::kVtt),
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nGuten Tag.\n\n"
            "01:01:01.021 --> 01:01:02.000\na -> b\n\n");
}

TEST(TranscriptText, LongArrowsAreShortenedToo) {
  Transcription made = two_segments();
  made.segments[0].text = "---> x <-----> -->";
  EXPECT_THAT(transcript_response(made, TranscriptFormat::kVtt, false, 0).body,
              HasSubstr("\n-> x <-> ->\n"));
}

TEST(TranscriptText, TextIsPlainAndJsonHasTheDuration) {
  EXPECT_EQ(body_as(TranscriptFormat::kText), "Guten Tag. a --> b\n");
  EXPECT_EQ(boost::json::parse(body_as(TranscriptFormat::kJson)),
            boost::json::parse(R"({"text":"Guten Tag. a --> b",
                                   "usage":{"type":"duration","seconds":62}})"));
}

TEST(TranscriptText, VerboseJsonDescribesEachSegment) {
  const auto verbose = boost::json::parse(body_as(TranscriptFormat::kVerboseJson));
  EXPECT_EQ(verbose.at("task"), "transcribe");
  EXPECT_EQ(verbose.at("language"), "german");
  EXPECT_NEAR(verbose.at("duration").to_number<double>(), 61.2, 1e-9);
  auto segment = verbose.at("segments").at(1).as_object();
  EXPECT_GT(segment.at("compression_ratio").to_number<double>(), 0);
  segment.erase("compression_ratio");
  EXPECT_EQ(segment, boost::json::parse(
                         R"({"id":1,"seek":3000,"start":3661.0205,"end":3662,"text":" a --> b",
                             "tokens":[2,3],"temperature":0.5,"avg_logprob":-0.5,
                             "no_speech_prob":0.25})"));
  const auto translated = boost::json::parse(body_as(TranscriptFormat::kVerboseJson, true));
  EXPECT_EQ(translated.at("task"), "translate");
  EXPECT_EQ(translated.at("language"), "english");
}

TEST(TranscriptText, RepetitionHasAHighRatio) {
  EXPECT_LT(compression_ratio("a few different words"), 1.1);
  std::string repeated;
  for (int i = 0; i < 100; ++i) repeated += "again ";
  EXPECT_GT(compression_ratio(repeated), 10);
}

TEST(TranscriptText, EventsAreOpenAis) {
  EXPECT_EQ(delta_event("a\"b"), R"({"type":"transcript.text.delta","delta":"a\"b"})");
  EXPECT_THAT(done_event(two_segments()),
              HasSubstr(R"("usage":{"type":"tokens","input_tokens":4,"output_tokens":9,)"
                        R"("total_tokens":13})"));
}

}  // namespace
}  // namespace espalier::server
