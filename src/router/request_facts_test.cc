#include "router/request_facts.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "router/error_bodies.h"
#include "router/route_table.h"

namespace espalier::router {
namespace {

std::span<const std::string_view> fields_of(std::string_view pattern) {
  for (const PassedRoute& route : passed_routes())
    if (route.pattern == pattern) return route.prompt_fields;
  ADD_FAILURE() << "no route " << pattern;
  return {};
}

std::string prompt_of(std::string_view pattern, std::string_view body) {
  std::string prompt = read_facts(body, fields_of(pattern)).prompt;
  std::ranges::replace(prompt, '\x1f', '|');
  return prompt;
}

TEST(RequestFacts, FindsThePromptOfEachDialect) {
  EXPECT_EQ(prompt_of("/generate", R"({"sampling_params":{"stop":["x"]},"text":"hello"})"),
            "hello|");
  EXPECT_EQ(prompt_of("/v1/completions", R"({"model":"m","prompt":["a","b"],"user":"u"})"), "a|b|");
  EXPECT_EQ(prompt_of("/v1/chat/completions",
                      R"({"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"t"}]})"),
            "t|user|hi|")
      << "tools stand before messages in the prompt, wherever they stand in the body";
  EXPECT_EQ(
      prompt_of(
          "/v1/messages",
          R"({"messages":[{"role":"user","content":[{"type":"text","text":"q"}]}],"system":"s"})"),
      "s|user|text|q|");
  EXPECT_EQ(prompt_of("/api/generate", R"({"prompt":"p","system":"s"})"), "s|p|");
}

TEST(RequestFacts, TokenIdsAreBytes) {
  const RequestFacts facts = read_facts(R"({"input_ids":[1,258]})", fields_of("/generate"));
  EXPECT_TRUE(facts.has_ids);
  EXPECT_EQ(facts.prompt, std::string("\1\0\0\0\2\1\0\0", 8));
}

TEST(RequestFacts, ReadsNames) {
  const RequestFacts facts = read_facts(
      R"({"lora_path":"ad","model":"m\u0041","session_params":{"id":"s1","x":{"id":"no"}},"text":"t"})",
      fields_of("/generate"));
  EXPECT_EQ(facts.model, "mA");
  EXPECT_EQ(facts.adapter, "ad");
  EXPECT_EQ(facts.session, "s1");
  const RequestFacts none =
      read_facts(R"({"lora_path":["a"],"model":{"id":"x"},"session_id":null,"meta":{"model":"y"}})",
                 fields_of("/generate"));
  EXPECT_EQ(none.model + none.adapter + none.session, "");
}

TEST(RequestFacts, WhatIsNoJsonHasNone) {
  for (const char* body : {"", "x", "{\"text\":\"a\"", "[1,2]", "\"text\"", "{\"text\":\"a\"} x"})
    EXPECT_EQ(read_facts(body, fields_of("/generate")).prompt, "") << body;
}

// A conversation's next request begins with the earlier one, whatever its messages are.
TEST(RequestFacts, TurnsExtendEachOther) {
  const uint64_t seed = 4;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  std::string messages;
  RoutedRequest before;
  for (int turn = 0; turn < 40; ++turn) {
    std::string content;
    for (size_t n = rng.below(300); n > 0; --n) content += static_cast<char>('a' + rng.below(26));
    messages += fmt::format(R"({}{{"role":"{}","content":"{}"}})", turn == 0 ? "" : ",",
                            turn % 2 == 0 ? "user" : "assistant", content);
    const RoutedRequest now = routed_request(
        read_facts(fmt::format(R"({{"messages":[{}],"max_tokens":{}}})", messages, turn),
                   fields_of("/v1/chat/completions")),
        "");
    ASSERT_GE(now.key.size(), before.key.size());
    ASSERT_TRUE(std::equal(before.key.begin(), before.key.end(), now.key.begin()));
    before = now;
  }
  EXPECT_GT(before.key.size(), 20u);
}

TEST(RequestFacts, ModelsAdaptersAndTenantsDoNotShare) {
  const auto key = [](std::string_view body, std::string_view tenant) {
    return routed_request(read_facts(body, fields_of("/generate")), tenant).key;
  };
  const std::string text(100, 'x');
  const std::string plain = fmt::format(R"({{"text":"{}"}})", text);
  EXPECT_EQ(key(plain, ""), key(plain, ""));
  EXPECT_NE(key(plain, ""), key(plain, "tenant"));
  EXPECT_NE(key(plain, ""), key(fmt::format(R"({{"text":"{}","model":"m"}})", text), ""));
  EXPECT_NE(key(plain, ""), key(fmt::format(R"({{"text":"{}","lora_path":"m"}})", text), ""));
}

TEST(ErrorBodies, AreThoseOfTheDialect) {
  EXPECT_NE(error_answer(ErrorStyle::kOpenAi, 503, "w\"x").body.find(R"("message":"w\"x")"),
            std::string::npos);
  EXPECT_EQ(*net::find_header(error_answer(ErrorStyle::kOpenAi, 503, "w").headers, "Retry-After"),
            "1");
  EXPECT_EQ(error_answer(ErrorStyle::kOllama, 502, "w").body, R"({"error":"w"})");
  EXPECT_TRUE(
      error_answer(ErrorStyle::kAnthropic, 502, "w").body.starts_with(R"({"type":"error")"));
  EXPECT_TRUE(stream_error(ErrorStyle::kOpenAi, "text/event-stream; charset=utf-8", "w")
                  .ends_with("data: [DONE]\n\n"));
  EXPECT_TRUE(
      stream_error(ErrorStyle::kAnthropic, "text/event-stream", "w").starts_with("event: error\n"));
  EXPECT_EQ(stream_error(ErrorStyle::kOllama, "application/x-ndjson", "w"), "{\"error\":\"w\"}\n");
  EXPECT_EQ(stream_error(ErrorStyle::kOpenAi, "application/json", "w"), "");
}

TEST(ErrorBodies, KnowWhereMessagesEnd) {
  EXPECT_EQ(num_whole_bytes("text/event-stream", "data: a\n\ndata: b\n"), 9u);
  EXPECT_EQ(num_whole_bytes("text/event-stream", "data: a\r\n\r\nx"), 11u);
  EXPECT_EQ(num_whole_bytes("text/event-stream", "data: a\n"), 0u);
  EXPECT_EQ(num_whole_bytes("application/x-ndjson", "{}\n{"), 3u);
  EXPECT_EQ(num_whole_bytes("application/json", "{"), 1u);
}

}  // namespace
}  // namespace espalier::router
