#include "apps/replay_log.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

namespace espalier::apps {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

std::string line(std::string_view time, std::string_view route, std::string_view body,
                 int status = 200) {
  return fmt::format(
             R"({{"time":"2026-08-01T12:00:{}Z","offset_s":1,"route":"{}","rid":"a","status":{},)"
             R"("stream":true,"samples":1,"prompt_tokens":12,"cached_tokens":5,"completion_tokens":9,)"
             R"("finish_reasons":["stop"],"ttft_s":0.5,"e2e_s":1.5,"redacted":{},"body":{}}})",
             time, route, status, body.find("$") != std::string_view::npos, body) +
         "\n";
}

LoggedCall call_of(std::string_view route, std::string_view body) {
  return read_replay_log(line("01.5", route, body)).value().calls.at(0);
}

json::object request_of(std::string_view route, std::string_view body,
                        ReplayRequest* whole = nullptr, uint64_t number = 0) {
  const auto request =
      make_replay_request(call_of(route, body), number, {.model = "m", .vocab_size = 1000});
  EXPECT_TRUE(request) << request.error().to_string();
  if (whole != nullptr) *whole = *request;
  return json::parse(request->body).as_object();
}

TEST(ReplayLog, ReadsCallsInOrderOfArrival) {
  const std::string text = line("03.000000000", "/generate", R"({"text":"b"})") +
                           line("01.250000000", "/generate", R"({"text":"a"})") + "\n" +
                           line("02.000000000", "/generate", R"({"text":"c"})", 503) +
                           line("02.000000000", "/generate", R"({"$bytes":70})") +
                           R"({"time":"2026-08-0)";  // the last line is being written
  const LoggedCalls log = read_replay_log(text).value();
  ASSERT_EQ(log.calls.size(), 2u);
  EXPECT_EQ(log.num_skipped, 2);
  EXPECT_EQ(log.calls[0].body, R"({"text":"a"})");
  EXPECT_EQ(log.calls[0].offset, 0);
  EXPECT_NEAR(log.calls[1].offset, 1.75, 1e-6);
  EXPECT_EQ(log.calls[1].prompt_tokens, 12);
  EXPECT_EQ(log.calls[1].time_to_first_token, 0.5);
}

TEST(ReplayLog, NamesALineThatIsNone) {
  for (const char* wrong :
       {"{}", "x", "[]", R"({"time":"yesterday","route":"/generate","body":{}})"}) {
    const auto log = read_replay_log(line("01.5", "/generate", "{}") + wrong + "\n");
    ASSERT_FALSE(log) << wrong;
    EXPECT_THAT(log.error().message(), HasSubstr("line 2"));
  }
  EXPECT_TRUE(read_replay_log("")->calls.empty());
}

TEST(ReplayRequest, ARedactedPromptBecomesAsManyIds) {
  ReplayRequest whole;
  const json::object first =
      request_of("/generate",
                 R"({"text":{"$bytes":40},"rid":{"$bytes":3},"sampling_params":{"temperature":0.5,)"
                 R"("stop":{"$bytes":2},"max_new_tokens":100}})",
                 &whole, 1);
  const json::object second = request_of("/generate", R"({"input_ids":{"$ids":12}})", nullptr, 2);
  EXPECT_TRUE(whole.is_timed && whole.is_native);
  EXPECT_EQ(whole.wanted_tokens, 9);
  EXPECT_FALSE(first.contains("text") || first.contains("rid"));
  EXPECT_EQ(json::serialize(first.at("sampling_params")),
            R"({"temperature":5E-1,"max_new_tokens":9,"ignore_eos":true})");
  const json::array &a = first.at("input_ids").as_array(), &b = second.at("input_ids").as_array();
  ASSERT_EQ(a.size(), 12u);
  ASSERT_EQ(b.size(), 12u);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 5, b.begin())) << "what was cached is shared";
  EXPECT_FALSE(std::equal(a.begin() + 5, a.end(), b.begin() + 5));
  for (const json::value& id : a) EXPECT_TRUE(id.as_int64() >= 0 && id.as_int64() < 1000);
}

TEST(ReplayRequest, AChatBecomesTextsOfTheSameLength) {
  ReplayRequest whole;
  const json::object body = request_of(
      "/v1/chat/completions",
      R"({"model":"other","messages":[{"role":"user","content":[{"type":"text","text":{"$bytes":33}},)"
      R"({"type":"image_url","image_url":{"$json":9}}]}],"tools":{"$json":7},"max_tokens":50})",
      &whole);
  EXPECT_TRUE(whole.is_timed);
  EXPECT_FALSE(whole.is_native);
  EXPECT_EQ(body.at("model").as_string(), "m");
  EXPECT_FALSE(body.contains("tools"));
  const json::array& parts = body.at("messages").at(0).at("content").as_array();
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].at("text").as_string().size(), 33u);
  EXPECT_EQ(body.at("max_tokens").as_int64(), 9);
  EXPECT_TRUE(body.at("stream_options").at("include_usage").as_bool());
}

TEST(ReplayRequest, AWholeBodyStaysAsItIs) {
  ReplayRequest whole;
  const json::object body = request_of(
      "/generate", R"({"text":"hi","rid":"x","sampling_params":{"stop":["a"],"max_new_tokens":3}})",
      &whole);
  EXPECT_EQ(whole.wanted_tokens, 0);
  EXPECT_EQ(json::serialize(body),
            R"({"text":"hi","sampling_params":{"stop":["a"],"max_new_tokens":3},"stream":true})");
}

TEST(ReplayRequest, SeveralPromptsAndOtherRoutesAreNotTimed) {
  ReplayRequest whole;
  json::object body =
      request_of("/v1/completions", R"({"prompt":[{"$bytes":5},{"$bytes":6}]})", &whole);
  EXPECT_FALSE(whole.is_timed);
  EXPECT_FALSE(body.at("stream").as_bool());
  EXPECT_EQ(body.at("prompt").as_array().at(1).as_string().size(), 6u);
  body =
      request_of("/v1/messages",
                 R"({"messages":[{"role":"user","content":{"$bytes":5}}],"max_tokens":7})", &whole);
  EXPECT_FALSE(whole.is_timed);
  EXPECT_EQ(body.at("max_tokens").as_int64(), 7);
  body = request_of("/v1/embeddings", R"({"input":[{"$bytes":5},{"$ids":3}]})", &whole);
  EXPECT_EQ(body.at("input").as_array().at(1).as_array().size(), 3u);
}

}  // namespace
}  // namespace espalier::apps
