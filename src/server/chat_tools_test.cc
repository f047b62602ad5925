// Tools and reasoning in chat: what the engine is asked for, what the client gets, whole and
// streamed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "server/test_server.h"

namespace espalier::server {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
        "properties":{"city":{"type":"string"}},"required":["city"]}}},
        {"type":"function","function":{"name":"now"}}])";

std::string body(const std::string& more) {
  return R"({"messages":[{"role":"user","content":"Hi"}],)" + std::string(kTools) + more + "}";
}

class ChatToolsTest : public ServerTest {
 protected:
  void reply(std::string text) {
    engine_.set_script({.reply = std::move(text), .context_length = 4000});
  }
  json::object message(const std::string& request, std::string* finish = nullptr) {
    const Answer answer = post("/v1/chat/completions", request);
    EXPECT_EQ(answer.status, 200) << answer.body;
    const json::value choice = json::parse(answer.body).at("choices").at(0);
    if (finish != nullptr) *finish = choice.at("finish_reason").get_string().c_str();
    return choice.at("message").get_object();
  }
};

TEST_F(ChatToolsTest, AListOfRequiredCallsHasABound) {
  config_.answers.tool_call_parser = "hermes";
  config_.answers.max_parallel_tool_calls = 3;
  start();
  reply("<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>");
  message(body(R"(,"tool_choice":"required")"));
  EXPECT_THAT(*engine_.submitted().back().sampling.structural_tag, HasSubstr(R"("max":3)"));
}

TEST_F(ChatToolsTest, CallsAreReadOutOfTheAnswer) {
  config_.answers.tool_call_parser = "hermes";
  start();
  reply(
      "I look.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n"
      "</tool_call>\n<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>");
  std::string finish;
  json::object m = message(body(""), &finish);
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_EQ(m.at("content"), "I look.");
  ASSERT_EQ(m.at("tool_calls").get_array().size(), 2u);
  const json::value& call = m.at("tool_calls").at(0);
  EXPECT_EQ(call.at("type"), "function");
  EXPECT_THAT(call.at("id").get_string().c_str(), HasSubstr("call_"));
  EXPECT_EQ(call.at("function").at("name"), "get_weather");
  EXPECT_EQ(call.at("function").at("arguments"), R"({"city": "Paris"})");

  m = message(body(R"(,"parallel_tool_calls":false)"));
  EXPECT_EQ(m.at("tool_calls").get_array().size(), 1u);
  // Without tools, or with "none", marks are text.
  m = message(body(R"(,"tool_choice":"none")"), &finish);
  EXPECT_EQ(finish, "stop");
  EXPECT_TRUE(m.at("tool_calls").is_null());
  EXPECT_THAT(m.at("content").get_string().c_str(), HasSubstr("<tool_call>"));
}

TEST_F(ChatToolsTest, StreamsTheNameFirstAndArgumentsAsTheyCome) {
  config_.answers.tool_call_parser = "hermes";
  start();
  reply(
      "Well. <tool_call>{\"name\": \"now\", \"arguments\": {\"zone\": \"UTC\"}}</tool_call>"
      "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>");
  const auto events = stream("/v1/chat/completions", body(R"(,"stream":true)"));
  std::string content, finish;
  std::vector<std::string> names, ids, arguments;
  size_t num_argument_pieces = 0;
  for (const std::string& event : events) {
    if (event == "[DONE]") continue;
    const json::value choice = json::parse(event).at("choices").at(0);
    const json::object& delta = choice.at("delta").get_object();
    if (const json::value* text = delta.if_contains("content");
        text != nullptr && text->is_string())
      content += text->get_string().c_str();
    if (choice.at("finish_reason").is_string())
      finish = choice.at("finish_reason").get_string().c_str();
    const json::value* calls = delta.if_contains("tool_calls");
    if (calls == nullptr) continue;
    const json::object& call = calls->at(0).get_object();
    const auto index = static_cast<size_t>(call.at("index").get_int64());
    if (call.contains("id")) {
      ASSERT_EQ(index, names.size());
      names.emplace_back(call.at("function").at("name").get_string().c_str());
      ids.emplace_back(call.at("id").get_string().c_str());
      arguments.emplace_back();
    }
    ASSERT_EQ(index + 1, names.size()) << "arguments before the name";
    arguments[index] += call.at("function").at("arguments").get_string().c_str();
    ++num_argument_pieces;
  }
  EXPECT_EQ(content, "Well.");
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_THAT(names, ::testing::ElementsAre("now", "now"));
  EXPECT_THAT(arguments, ::testing::ElementsAre(R"({"zone": "UTC"})", "{}"));
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_GT(num_argument_pieces, 8u);
}

TEST_F(ChatToolsTest, ARequiredCallIsConstrainedToItsSchema) {
  start();  // a template without tools: JSON calls, described in the prompt
  reply(R"([{"name": "now", "parameters": {}}])");
  const json::object m = message(body(R"(,"tool_choice":"required")"));
  EXPECT_TRUE(m.at("content").is_null());
  EXPECT_EQ(m.at("tool_calls").at(0).at("function").at("name"), "now");
  GenerateRequest request = engine_.submitted().back();
  EXPECT_THAT(request.text, HasSubstr("You can call functions"));
  EXPECT_THAT(request.text, HasSubstr("get_weather"));
  EXPECT_FALSE(request.sampling.skip_special_tokens);
  ASSERT_TRUE(request.sampling.structural_tag);
  EXPECT_THAT(*request.sampling.structural_tag, HasSubstr("city"));

  message(body(R"(,"tool_choice":{"type":"function","function":{"name":"now"}})"));
  request = engine_.submitted().back();
  EXPECT_THAT(*request.sampling.structural_tag, HasSubstr("now"));
  EXPECT_THAT(*request.sampling.structural_tag, ::testing::Not(HasSubstr("city")));

  message(body(R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required",
      "tools":[{"type":"function","function":{"name":"now"}}]}})"));
  request = engine_.submitted().back();
  EXPECT_THAT(*request.sampling.structural_tag, HasSubstr("now"));
  EXPECT_THAT(*request.sampling.structural_tag, ::testing::Not(HasSubstr("city")));
  EXPECT_THAT(request.text, ::testing::Not(HasSubstr("get_weather")));
  message(body(R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto",
      "tools":[{"type":"function","function":{"name":"now"}}]}})"));
  EXPECT_FALSE(engine_.submitted().back().sampling.structural_tag);
  EXPECT_THAT(engine_.submitted().back().text, ::testing::Not(HasSubstr("get_weather")));
  for (const char* refused :
       {R"({"mode":"sometimes","tools":[{"function":{"name":"now"}}]})", R"({"mode":"auto"})",
        R"({"mode":"auto","tools":[]})", R"({"mode":"auto","tools":["now"]})",
        R"({"mode":"auto","tools":[{"function":{"name":"later"}}]})"}) {
    const Answer answer =
        post("/v1/chat/completions",
             body(fmt::format(R"(,"tool_choice":{{"type":"allowed_tools","allowed_tools":{}}})",
                              refused)));
    EXPECT_EQ(answer.status, 400) << refused;
    EXPECT_THAT(answer.body, HasSubstr("tool_choice")) << refused;
  }

  message(body(""));  // auto, and nothing strict: no grammar
  EXPECT_FALSE(engine_.submitted().back().sampling.structural_tag);
  // Earlier calls and their results can be part of a later request.
  reply("Noon.");
  message(R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":null,
      "tool_calls":[{"id":"a","type":"function","function":{"name":"now","arguments":"{}"}}]},
      {"role":"tool","tool_call_id":"a","content":"12:00"}]})");
  EXPECT_THAT(engine_.submitted().back().text,
              HasSubstr(R"([{"name":"now","parameters":{}}]<|user|>Result of the call: 12:00)"));
}

// A schema that does not compile is the tool's, not of a tag that the client never wrote.
TEST_F(ChatToolsTest, AWrongSchemaIsReportedOfTheTools) {
  start();
  const std::string reason =
      "structural_tag.format.elements[1].tags[0].content.json_schema: #/type: wrong";
  engine_.set_script({.submit_error = invalid_argument("{}", reason)});
  EXPECT_THAT(post("/v1/chat/completions", body(R"(,"tool_choice":"required")")).body,
              HasSubstr("tools: a function has an invalid 'parameters' schema: #/type: wrong"));
  EXPECT_THAT(post("/v1/chat/completions", body(R"(,"tool_choice":"none")")).body,
              HasSubstr(reason));
}

// The tokens of a conversation with tools are those of its chat.
TEST_F(ChatToolsTest, TokenizeCountsTools) {
  start();
  reply("Noon.");
  message(body(""));
  const std::string prompt = engine_.submitted().back().text;
  const Answer counted = post("/v1/tokenize", body(""));
  ASSERT_EQ(counted.status, 200) << counted.body;
  const json::value all = json::parse(counted.body);
  EXPECT_EQ(all.at("count").to_number<size_t>(),
            engine_.tokenizer()->encode(prompt, {.add_special_tokens = false}).size());
  EXPECT_EQ(
      post("/v1/tokenize", R"({"messages":[{"role":"user","content":"a"}],"tools":[1]})").status,
      400);
  const std::string alone = R"({"messages":[{"role":"user","content":"Hi"}])";
  EXPECT_EQ(post("/v1/tokenize", body(R"(,"tool_choice":"none")")).body,
            post("/v1/tokenize", alone + "}").body);
}

// What the model cannot be shown is refused by name, not left out of the prompt.
TEST_F(ChatToolsTest, PartsThatTheTemplateCannotShowAreRefused) {
  start();
  const auto refusal = [&](std::string_view route, std::string_view part) {
    const Answer answer =
        post(route, fmt::format(R"({{"messages":[{{"role":"user","content":[{}]}}]}})", part));
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.body;
  };
  for (const char* route : {"/v1/chat/completions", "/v1/tokenize"}) {
    EXPECT_THAT(refusal(route, R"({"type":"video","video":["eA=="]})"),
                HasSubstr("a video has no placeholder: send its frames as pictures"));
    EXPECT_THAT(refusal(route, R"({"type":"input_audio","input_audio":{}})"),
                HasSubstr("must have the sound's file as input_audio"));
    EXPECT_THAT(refusal(route, R"({"type":"smell"})"),
                HasSubstr("it must be text, image_url, input_image, video, video_url, "
                          "input_audio or audio_url"));
  }
  EXPECT_EQ(engine_.submitted().size(), 0u);
}

TEST_F(ChatToolsTest, ReasoningStandsApart) {
  config_.answers.reasoning_parser = "qwen3";
  start();
  reply("<think>\nHm.\n</think>\n\nYes.");
  json::object m = message(R"({"messages":[{"role":"user","content":"Hi"}],"regex":"Yes\\."})");
  EXPECT_EQ(m.at("reasoning_content"), "Hm.");
  EXPECT_EQ(m.at("content"), "Yes.");
  EXPECT_EQ(engine_.submitted().back().sampling.reasoning_end, "</think>");
  EXPECT_EQ(engine_.submitted().back().sampling.reasoning_begin, "<think>");

  std::string reasoning, content;
  for (const std::string& event :
       stream("/v1/chat/completions",
              R"({"messages":[{"role":"user","content":"Hi"}],"stream":true})")) {
    if (event == "[DONE]") continue;
    const json::object delta = json::parse(event).at("choices").at(0).at("delta").get_object();
    for (auto [name, to] :
         {std::pair("reasoning_content", &reasoning), std::pair("content", &content)})
      if (const json::value* v = delta.if_contains(name); v != nullptr && v->is_string())
        *to += v->get_string().c_str();
  }
  EXPECT_EQ(reasoning, "Hm.");
  EXPECT_EQ(content, "Yes.");

  m = message(R"({"messages":[{"role":"user","content":"Hi"}],"separate_reasoning":false})");
  EXPECT_THAT(m.at("content").get_string().c_str(), HasSubstr("<think>"));
  m = message(
      R"({"messages":[{"role":"user","content":"Hi"}],"chat_template_kwargs":{"enable_thinking":false}})");
  EXPECT_EQ(engine_.submitted().back().sampling.reasoning_end, "");
}

// A prompt that is given as ids beside its messages, as a router gives it, says whether the
// template has begun the reasoning, or has left it out.
TEST_F(ChatToolsTest, ReasoningThatIdsOfAPromptBegin) {
  config_.answers.reasoning_parser = "qwen3";
  start();
  const auto with_ids = [&](std::string_view prompt) {
    std::string ids;
    for (const char c : prompt)
      ids += fmt::format("{}{}", ids.empty() ? "" : ",", static_cast<int>(c));
    return fmt::format(R"({{"messages":[{{"role":"user","content":"Hi"}}],"input_ids":[{}]}})",
                       ids);
  };
  reply("Hm.\n</think>\n\nYes.");
  json::object m = message(with_ids("Hi <think>\n"));
  EXPECT_EQ(m.at("reasoning_content"), "Hm.");
  EXPECT_EQ(m.at("content"), "Yes.");
  EXPECT_EQ(engine_.submitted().back().sampling.reasoning_begin, "");
  EXPECT_EQ(engine_.submitted().back().input_ids.size(), 11u);
  reply("Yes.");
  m = message(with_ids("Hi <think>\n\n</think>\n\n"));
  EXPECT_EQ(m.at("content"), "Yes.");
  EXPECT_EQ(engine_.submitted().back().sampling.reasoning_end, "");
}

TEST_F(ChatToolsTest, ThePromptStatesTheConstraint) {
  start();
  reply("red");
  message(R"({"messages":[{"role":"user","content":"Hi"}],"choices":["red","blue"],
              "describe_grammar":true})");
  EXPECT_THAT(engine_.submitted().back().text,
              HasSubstr("<|system|>Answer with exactly one of these:\nred\nblue<|user|>"));
}

TEST_F(ChatToolsTest, ParsersByThemselves) {
  start();
  Answer answer = post("/parse_function_call",
                       R"({"text":"a [TOOL_CALLS] [{\"name\":\"f\",\"arguments\":{\"x\":1}}]",
                           "tool_call_parser":"mistral","tools":[]})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(
      answer.body,
      R"({"normal_text":"a","calls":[{"tool_index":0,"name":"f","parameters":"{\"x\":1}"}]})");
  answer = post("/separate_reasoning",
                R"({"text":"<think>a</think>b","reasoning_parser":"deepseek-r1"})");
  EXPECT_EQ(answer.body, R"({"reasoning_text":"a","text":"b"})");
  EXPECT_EQ(post("/separate_reasoning", R"({"text":"a","reasoning_parser":"x"})").status, 400);
  EXPECT_EQ(post("/separate_reasoning", R"({"text":"a"})").status, 400);
  EXPECT_EQ(post("/parse_function_call", R"({"text":"a","tool_call_parser":"x"})").status, 400);
}

}  // namespace
}  // namespace espalier::server
