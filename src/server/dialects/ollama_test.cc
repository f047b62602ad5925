// /api/* over real sockets and a scripted engine.
#include <gmock/gmock.h>

#include <sstream>

#include "server/test_server.h"

namespace espalier::server {
namespace {

using ::testing::HasSubstr;

class OllamaTest : public ServerTest {
 protected:
  std::vector<std::string> lines(std::string_view path, std::string_view body) const {
    const Answer answer = post(path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_THAT(answer.header("Content-Type"), HasSubstr("ndjson"));
    std::vector<std::string> out;
    std::istringstream in(answer.body);
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  }
};

TEST_F(OllamaTest, ChatsInLines) {
  engine_.set_script({.reply = "Hi"});
  start();
  const auto got = lines("/api/chat", R"({"model":"m:latest","messages":[{"role":"user",)"
                                      R"("content":"x"}],"options":{"num_predict":7,"seed":3}})");
  ASSERT_EQ(got.size(), 3u);
  EXPECT_THAT(got[0], HasSubstr(R"("message":{"role":"assistant","content":"H"},"done":false)"));
  EXPECT_THAT(got[2], HasSubstr(R"("done":true,"done_reason":"stop")"));
  EXPECT_THAT(got[2], HasSubstr(R"("eval_count":3)"));
  const GenerateRequest request = engine_.submitted().back();
  EXPECT_EQ(request.sampling.max_new_tokens, 7);
  EXPECT_EQ(request.sampling.sampling_seed, 3u);
}

TEST_F(OllamaTest, AnswersWhole) {
  start();
  const Answer chat = post("/api/chat", R"({"stream":false,"messages":[{"role":"user",)"
                                        R"("content":"x"}]})");
  EXPECT_THAT(chat.body, HasSubstr(R"("content":"Hi there."},"done":true)"));
  const Answer raw = post("/api/generate", R"({"stream":false,"raw":true,"prompt":"abc"})");
  EXPECT_THAT(raw.body, HasSubstr(R"("response":"Hi there.")"));
  EXPECT_EQ(engine_.submitted().back().text, "abc");
  EXPECT_TRUE(engine_.submitted().back().add_special_tokens);
  post("/api/generate", R"({"stream":false,"prompt":"abc","system":"Be brief."})");
  EXPECT_THAT(engine_.submitted().back().text, HasSubstr("<|system|>Be brief.<|user|>abc"));
  const size_t before = engine_.submitted().size();
  EXPECT_THAT(post("/api/generate", R"({"model":"m"})").body, HasSubstr(R"("done_reason":"load")"));
  EXPECT_EQ(engine_.submitted().size(), before);
}

TEST_F(OllamaTest, CallsComeWhole) {
  engine_.set_script(
      {.reply = R"({"name": "add", "parameters": {"a": 1}})", .context_length = 4000});
  config_.answers.tool_call_parser = "json";
  start();
  const auto got = lines(
      "/api/chat",
      R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"",)"
      R"("tool_calls":[{"function":{"name":"add","arguments":{"a":2}}}]},)"
      R"({"role":"tool","tool_name":"add","content":"2"}],"options":{"num_predict":200},)"
      R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}]})");
  ASSERT_EQ(got.size(), 2u);
  EXPECT_THAT(got[0], HasSubstr(R"("name":"add","arguments":{"a":1}})"));
}

TEST_F(OllamaTest, SaysWhatItServes) {
  config_.answers.served_model_name = "tiny";
  start();
  EXPECT_THAT(call("GET", "/api/tags").body, HasSubstr(R"("name":"tiny")"));
  EXPECT_THAT(call("GET", "/api/ps").body, HasSubstr(R"("context_length":100)"));
  EXPECT_THAT(call("GET", "/api/version").body, HasSubstr("version"));
  EXPECT_THAT(post("/api/show", R"({"model":"tiny"})").body, HasSubstr("completion"));
  EXPECT_THAT(post("/api/pull", R"({"model":"tiny:latest"})").body, HasSubstr("success"));
  EXPECT_EQ(post("/api/pull", R"({"model":"/no/such/folder"})").status, 404);
  const Answer other = post("/api/pull", R"({"model":"llama3"})");
  EXPECT_EQ(other.status, 404);
  EXPECT_THAT(other.body, HasSubstr(R"({"error":"model 'llama3' is not served here)"));
}

TEST_F(OllamaTest, WhatChangesModelsIsRefusedWithAdvice) {
  start();
  for (const char* path : {"/api/create", "/api/copy", "/api/push", "/api/blobs/sha256:0"}) {
    const Answer refused = post(path, R"({"model":"m"})");
    EXPECT_EQ(refused.status, 501) << path;
    EXPECT_THAT(refused.body, ::testing::StartsWith(R"({"error":"/api/)"));
  }
  EXPECT_EQ(call("DELETE", "/api/delete", R"({"model":"m"})").status, 501);
}

TEST_F(OllamaTest, ErrorsHaveItsShape) {
  start();
  const Answer bad = post("/api/chat", R"({"messages":[{"role":"user","images":[5]}]})");
  EXPECT_EQ(bad.status, 400);
  EXPECT_THAT(bad.body, testing::StartsWith(R"({"error":")"));
  EXPECT_THAT(bad.body, HasSubstr("messages[0].images"));
  const Answer long_one =
      post("/api/generate", R"({"prompt":"x","options":{"num_predict":100000}})");
  EXPECT_EQ(post("/api/generate", R"({"prompt":5})").status, 400);
  EXPECT_EQ(post("/api/embed", R"({"model":"m"})").status, 400);
}

}  // namespace
}  // namespace espalier::server
