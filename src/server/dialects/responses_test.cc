// /v1/responses over real sockets and a scripted engine, and the store of its answers.
#include <gmock/gmock.h>

#include <boost/json.hpp>

#include "server/dialects/response_store.h"
#include "server/test_server.h"

namespace espalier::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using ResponsesTest = ServerTest;

std::string id_of(const std::string& body) {
  return std::string(boost::json::parse(body).at("id").as_string());
}

TEST_F(ResponsesTest, AWholeAnswer) {
  start();
  const Answer answer = post("/v1/responses", R"({"model":"m","input":"Hi","rid":"r",)"
                                              R"("metadata":{"k":"v"},"max_output_tokens":50})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const boost::json::value got = boost::json::parse(answer.body);
  EXPECT_EQ(got.at("id"), "resp_r");
  EXPECT_EQ(got.at("status"), "completed");
  EXPECT_EQ(got.at("output").at(0).at("content").at(0).at("text"), "Hi there.");
  EXPECT_EQ(got.at("usage").at("output_tokens"), 10);
  EXPECT_EQ(got.at("metadata").at("k"), "v");
  EXPECT_EQ(got.at("max_output_tokens"), 50);
  const Answer cut = post("/v1/responses", R"({"input":"Hi","max_output_tokens":2})");
  EXPECT_THAT(cut.body, HasSubstr(R"("incomplete_details":{"reason":"max_output_tokens"})"));
}

TEST_F(ResponsesTest, AStreamOfItems) {
  engine_.set_script({.reply = "Hi"});
  start();
  const std::vector<std::string> events =
      stream("/v1/responses", R"({"input":"x","stream":true,"rid":"r"})");
  std::vector<std::string> types;
  int64_t next = 0;
  for (const std::string& event : events) {
    const boost::json::value value = boost::json::parse(event);
    types.emplace_back(value.at("type").as_string());
    EXPECT_EQ(value.at("sequence_number"), next++);
  }
  EXPECT_THAT(types, ElementsAre("response.created", "response.in_progress",
                                 "response.output_item.added", "response.content_part.added",
                                 "response.output_text.delta", "response.output_text.delta",
                                 "response.output_text.done", "response.content_part.done",
                                 "response.output_item.done", "response.completed"));
  const boost::json::value last = boost::json::parse(events.back());
  EXPECT_EQ(last.at("response").at("output").at(0).at("content").at(0).at("text"), "Hi");
  EXPECT_EQ(post("/v1/responses", R"({"input":"x"})").status, 200);
}

TEST_F(ResponsesTest, AStoredAnswerIsFetchedContinuedAndDeleted) {
  start();
  const std::string first =
      id_of(post("/v1/responses", R"({"input":"One","instructions":"Be brief."})").body);
  EXPECT_EQ(id_of(call("GET", "/v1/responses/" + first).body), first);
  EXPECT_THAT(call("GET", "/v1/responses/" + first + "/input_items").body, HasSubstr("One"));
  const Answer next = post("/v1/responses", R"({"input":[{"role":"user","content":"Two"}],)"
                                            R"("previous_response_id":")" +
                                                first + "\"}");
  ASSERT_EQ(next.status, 200) << next.body;
  EXPECT_THAT(engine_.submitted().back().text,
              HasSubstr("<|user|>One<|assistant|>Hi there.<|user|>Two"));
  EXPECT_THAT(engine_.submitted().back().text, ::testing::Not(HasSubstr("Be brief.")));
  EXPECT_EQ(call("DELETE", "/v1/responses/" + first).status, 200);
  EXPECT_EQ(call("GET", "/v1/responses/" + first).status, 404);
  EXPECT_EQ(post("/v1/responses", R"({"input":"x","previous_response_id":"gone"})").status, 404);
  const std::string unstored = id_of(post("/v1/responses", R"({"input":"x","store":false})").body);
  EXPECT_EQ(call("GET", "/v1/responses/" + unstored).status, 404);
}

TEST_F(ResponsesTest, CallsAndTheirResults) {
  engine_.set_script(
      {.reply = R"({"name": "add", "parameters": {"a": 1}})", .context_length = 4000});
  config_.tool_call_parser = "json";
  start();
  const std::string tools =
      R"("tools":[{"type":"function","name":"add","parameters":{"type":"object"}}])";
  const Answer answer =
      post("/v1/responses", R"({"input":"1?","tool_choice":"required",)" + tools + "}");
  const boost::json::value call = boost::json::parse(answer.body).at("output").at(0);
  EXPECT_EQ(call.at("type"), "function_call");
  EXPECT_EQ(call.at("name"), "add");
  EXPECT_EQ(call.at("arguments"), R"({"a": 1})");
  const Answer next =
      post("/v1/responses",
           R"({"input":[{"role":"user","content":[{"type":"input_text","text":"1?"}]},)"
           R"({"type":"reasoning","summary":[]},)"
           R"({"type":"function_call","call_id":"c","name":"add","arguments":"{\"a\":1}"},)"
           R"({"type":"function_call_output","call_id":"c","output":"2"}],)" +
               tools + "}");
  EXPECT_EQ(next.status, 200) << next.body;
}

TEST_F(ResponsesTest, ErrorsNameTheField) {
  start();
  const auto message = [&](std::string_view body) {
    const Answer answer = post("/v1/responses", body);
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.body;
  };
  EXPECT_THAT(message("{}"), HasSubstr("input is missing"));
  EXPECT_THAT(message(R"({"input":[{"role":"user","content":[{"type":"input_image"}]}]})"),
              HasSubstr("input[0].content[0] is of type input_image"));
  EXPECT_THAT(message(R"({"input":"x","tools":[{"type":"web_search"}]})"),
              HasSubstr("tools[0].type is"));
  EXPECT_THAT(message(R"({"input":"x","background":true})"), HasSubstr("background"));
  EXPECT_THAT(message(R"({"input":"x","text":{"format":{"type":"json_schema"}}})"),
              HasSubstr("text.format.schema is missing"));
}

TEST(ResponseStore, GivesUpTheLeastRecentlyUsedAndTheExpired) {
  const auto account = std::make_shared<MemoryAccount>("responses", 3000);
  ResponseStore store(account, std::chrono::seconds(10));
  const TimePoint start{};
  const auto put = [&](const char* id, size_t bytes, int seconds) {
    return store.put(id, {std::string(bytes, 'x'), "[]", {}},
                     start + std::chrono::seconds(seconds));
  };
  const auto has = [&](const char* id, int seconds) {
    return store.get(id, start + std::chrono::seconds(seconds)) != nullptr;
  };
  EXPECT_TRUE(put("a", 500, 0));
  EXPECT_TRUE(put("b", 500, 1));
  EXPECT_TRUE(has("a", 2));  // now b is the least recently used
  EXPECT_TRUE(put("c", 1000, 3));
  EXPECT_FALSE(has("b", 3));
  EXPECT_TRUE(has("a", 3));
  EXPECT_FALSE(put("huge", 5000, 4));
  EXPECT_LE(account->used(), account->limit());
  EXPECT_FALSE(has("c", 14));
  EXPECT_FALSE(has("a", 14));
  EXPECT_EQ(account->used(), 0);
  EXPECT_FALSE(store.erase("a"));
}

}  // namespace
}  // namespace espalier::server
