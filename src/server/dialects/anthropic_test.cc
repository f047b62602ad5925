// /v1/messages over real sockets and a scripted engine.
#include <gmock/gmock.h>

#include "server/test_server.h"

namespace espalier::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using AnthropicTest = ServerTest;

constexpr std::string_view kHi =
    R"({"model":"claude","max_tokens":20,"messages":[{"role":"user","content":"Hi"}],"rid":"r"})";

TEST_F(AnthropicTest, AWholeMessage) {
  start();
  expect("/v1/messages", kHi, 200,
         R"({"id":"msg_r","type":"message","role":"assistant","model":"claude",)"
         R"("content":[{"type":"text","text":"Hi there."}],"stop_reason":"end_turn",)"
         R"("stop_sequence":null,"usage":{"input_tokens":3,"cache_creation_input_tokens":0,)"
         R"("cache_read_input_tokens":2,"cache_creation":{"ephemeral_5m_input_tokens":0,)"
         R"("ephemeral_1h_input_tokens":0},"output_tokens":10}})");
  EXPECT_EQ(engine_.submitted().back().sampling.max_new_tokens, 20);
  EXPECT_THAT(
      post("/v1/messages", R"({"max_tokens":2,"messages":[{"role":"user","content":"Hi"}]})").body,
      HasSubstr(R"("stop_reason":"max_tokens")"));
  EXPECT_THAT(post("/v1/messages", R"({"max_tokens":20,"stop_sequences":["re"],)"
                                   R"("messages":[{"role":"user","content":"Hi"}]})")
                  .body,
              HasSubstr(R"("stop_reason":"stop_sequence","stop_sequence":"re")"));
}

// The same paths serve OpenAI's clients, which do not state a version.
TEST_F(AnthropicTest, ModelsAreListedInTheShapeOfTheClient) {
  config_.answers.served_model_name = "tiny";
  start();
  const net::Headers version = {{"anthropic-version", "2023-06-01"}};
  const Answer list = call("GET", "/v1/models", "", version);
  EXPECT_THAT(list.body,
              HasSubstr(R"({"data":[{"type":"model","id":"tiny","display_name":"tiny")"));
  EXPECT_THAT(list.body, HasSubstr(R"("has_more":false,"first_id":"tiny","last_id":"tiny")"));
  EXPECT_THAT(call("GET", "/v1/models/tiny", "", version).body,
              ::testing::ContainsRegex(R"("created_at":"20..-..-..T..:..:..Z")"));
  const Answer none = call("GET", "/v1/models/other", "", version);
  EXPECT_EQ(none.status, 404);
  EXPECT_THAT(none.body, HasSubstr(R"({"type":"error","error":{"type":"not_found_error")"));
  EXPECT_THAT(call("GET", "/v1/models").body, HasSubstr(R"("object":"list")"));
}

TEST_F(AnthropicTest, AStreamOfBlocks) {
  engine_.set_script({.reply = "Hi"});
  start();
  Answer answer;
  const std::vector<std::string> events = stream(
      "/v1/messages",
      R"({"max_tokens":20,"messages":[{"role":"user","content":"x"}],"stream":true})", &answer);
  EXPECT_EQ(answer.status, 200);
  std::vector<std::string> types;
  for (const std::string& event : events) {
    const size_t at = event.find(R"("type":")") + 8;
    types.push_back(event.substr(at, event.find('"', at) - at));
  }
  EXPECT_THAT(types, ElementsAre("message_start", "content_block_start", "content_block_delta",
                                 "content_block_delta", "content_block_stop", "message_delta",
                                 "message_stop"));
  EXPECT_EQ(normalise(events[2]), normalise(R"({"type":"content_block_delta","index":0,)"
                                            R"("delta":{"type":"text_delta","text":"H"}})"));
  EXPECT_THAT(events[5], HasSubstr(R"("stop_reason":"end_turn")"));
}

TEST_F(AnthropicTest, ToolsAreCalledAndTheirResultsRead) {
  engine_.set_script(
      {.reply = R"({"name": "add", "parameters": {"a": 1}})", .context_length = 4000});
  config_.answers.tool_call_parser = "json";
  start();
  const std::string tools =
      R"("tools":[{"name":"add","description":"Sums.","input_schema":{"type":"object",)"
      R"("properties":{"a":{"type":"integer"}}}}])";
  const Answer answer =
      post("/v1/messages", R"({"max_tokens":100,"tool_choice":{"type":"any"},)" + tools +
                               R"(,"messages":[{"role":"user","content":"1?"}]})");
  EXPECT_THAT(answer.body, HasSubstr(R"("name":"add","input":{"a":1}})"));
  EXPECT_THAT(answer.body, HasSubstr(R"("stop_reason":"tool_use")"));
  const std::vector<std::string> events =
      stream("/v1/messages", R"({"max_tokens":100,"stream":true,"tool_choice":{"type":"any"},)" +
                                 tools + R"(,"messages":[{"role":"user","content":"1?"}]})");
  std::string arguments;
  for (const std::string& event : events) {
    const size_t at = event.find(R"("partial_json":")");
    if (at != std::string::npos) arguments += event.substr(at + 16, event.rfind("\"}}") - at - 16);
  }
  EXPECT_EQ(arguments, R"({\"a\": 1})");
  const Answer next = post(
      "/v1/messages",
      R"({"max_tokens":9,"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},)"
      R"({"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],)" +
          tools +
          R"(,"messages":[{"role":"user","content":"1?"},{"role":"assistant","content":[)"
          R"({"type":"thinking","thinking":"Hm."},{"type":"text","text":"So"},)"
          R"({"type":"tool_use","id":"t","name":"add","input":{"a":1}}]},)"
          R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"2"},)"
          R"({"type":"text","text":"and?"}]}]})");
  EXPECT_EQ(next.status, 200) << next.body;
  const std::string prompt = engine_.submitted().back().text;
  EXPECT_THAT(prompt, HasSubstr("Be brief."));
  EXPECT_THAT(prompt, ::testing::Not(HasSubstr("billing")));
  EXPECT_LT(prompt.find("So"), prompt.find("and?"));
}

// What usage counts of the prompt: read from the cache, written to it in front of the last mark,
// and the rest. The scripted engine has half of a prompt in its cache.
TEST_F(AnthropicTest, UsageCountsWhatCacheControlMarks) {
  engine_.set_script({.reply = "Hi", .context_length = 4000});
  start();
  const std::string mark = R"("cache_control":{"type":"ephemeral"})";
  const std::string plain_text = R"({"type":"text","text":"0123456789"})";
  const std::string marked_text = R"({"type":"text","text":"0123456789",)" + mark + "}";
  const std::string marked_hour =
      R"({"type":"text","text":"0123456789","cache_control":{"type":"ephemeral","ttl":"1h"}})";
  const std::string turn = R"({"role":"user","content":[)";
  const std::string answer = R"({"role":"assistant","content":"ok"},)";
  struct Case {
    std::string system, messages, more, front;  // the prompt in front of the last mark
    bool hour = false;
  };
  const std::string text = "0123456789",
                    all = "<|system|>" + text + "<|user|>" + text + "<|assistant|>ok";
  const Case cases[] = {
      {plain_text, turn + plain_text + "]}", "", ""},
      {marked_text, turn + plain_text + "]}", "", "<|system|>" + text},
      {plain_text, turn + marked_text + "," + plain_text + "]}", "",
       "<|system|>" + text + "<|user|>" + text},
      // The last mark counts, wherever the others are.
      {marked_text,
       turn + plain_text + "]}," + answer + turn + marked_hour + "," + plain_text + "]}", "",
       all + "<|user|>" + text, true},
      {plain_text, turn + plain_text + "]}", "," + mark,
       "<|system|>" + text + "<|user|>" + text + "<|"},
      {plain_text, turn + plain_text + "]}",
       R"(,"tools":[{"name":"f","input_schema":{"type":"object"},)" + mark + "}]", "tools"},
  };
  for (const Case& each : cases) {
    const Answer got =
        post("/v1/messages", R"({"max_tokens":9,"system":[)" + each.system + R"(],"messages":[)" +
                                 each.messages + "]" + each.more + "}");
    ASSERT_EQ(got.status, 200) << got.body;
    const auto count = [&](const std::string& prompt) {
      return static_cast<int64_t>(
          engine_.tokenizer()->encode(prompt, {.add_special_tokens = false}).size());
    };
    const std::string prompt = engine_.submitted().back().text;
    const std::string front = each.front == "tools" ? prompt.substr(0, prompt.find("<|user|>") + 8)
                              : each.front.empty()
                                  ? ""
                                  : prompt.substr(0, prompt.find("<|system|>")) + each.front;
    const int64_t whole = count(prompt), cached = whole / 2;
    // A prefix that ends within a special token has more tokens than the token's one.
    const int64_t created = std::clamp<int64_t>(count(front) - cached, 0, whole - cached);
    EXPECT_THAT(got.body, HasSubstr(fmt::format(
                              R"("usage":{{"input_tokens":{},"cache_creation_input_tokens":{},)"
                              R"("cache_read_input_tokens":{},"cache_creation":{{)"
                              R"("ephemeral_5m_input_tokens":{},"ephemeral_1h_input_tokens":{}}})",
                              whole - cached - created, created, cached, each.hour ? 0 : created,
                              each.hour ? created : 0)))
        << front;
  }
  EXPECT_THAT(
      post("/v1/messages", R"({"max_tokens":9,"cache_control":{"type":"ephemeral","ttl":"2h"},)"
                           R"("messages":[{"role":"user","content":"x"}]})")
          .body,
      HasSubstr("cache_control must be"));
}

TEST_F(AnthropicTest, CountsTokens) {
  start();
  expect("/v1/messages/count_tokens", R"({"messages":[{"role":"user","content":"Hi"}]})", 200,
         R"({"input_tokens":5})");
}

TEST_F(AnthropicTest, ErrorsHaveItsShapeAndNameItsFields) {
  start();
  const auto message = [&](std::string_view body) {
    const Answer answer = post("/v1/messages", body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    EXPECT_THAT(answer.body,
                HasSubstr(R"({"type":"error","error":{"type":"invalid_request_error")"));
    return answer.body;
  };
  EXPECT_THAT(message(R"({"messages":[]})"), HasSubstr("there is no message"));
  EXPECT_THAT(message(R"({"messages":[{"role":"user","content":"x"}]})"),
              HasSubstr("max_tokens is missing"));
  EXPECT_THAT(
      message(R"({"max_tokens":9,"messages":[{"role":"user","content":[{"type":"image"}]}]})"),
      HasSubstr("messages[0].content[0].source must be"));
  EXPECT_THAT(message(R"({"max_tokens":9,"tools":[{"type":"web_search_20250305"}],)"
                      R"("messages":[{"role":"user","content":"x"}]})"),
              HasSubstr("tools[0].type is"));
  EXPECT_THAT(message(R"({"max_tokens":9,"tool_choice":{"type":"any"},)"
                      R"("messages":[{"role":"user","content":"x"}]})"),
              HasSubstr("there are no tools"));
  EXPECT_THAT(message("{"), HasSubstr("JSON"));
  engine_.set_script({.submit_error = error(StatusCode::kResourceExhausted, "full")});
  const Answer full = post("/v1/messages", kHi);
  EXPECT_EQ(full.status, 529);
  EXPECT_THAT(full.body, HasSubstr("overloaded_error"));
}

TEST_F(AnthropicTest, TakesItsKeyHeader) {
  config_.access.api_key = "secret";
  start();
  EXPECT_EQ(call("POST", "/v1/messages", kHi).status, 401);
  EXPECT_EQ(call("POST", "/v1/messages", kHi, {{"x-api-key", "wrong"}}).status, 401);
  EXPECT_EQ(call("POST", "/v1/messages", kHi, {{"x-api-key", "secret"}}).status, 200);
}

}  // namespace
}  // namespace espalier::server
