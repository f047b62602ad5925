#include "router/prompt_ids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <string>
#include <vector>

#include "base/rng.h"
#include "router/route_table.h"

namespace espalier::router {
namespace {

namespace json = boost::json;

const IdsPlace& place_of(std::string_view pattern) {
  const auto routes = passed_routes();
  const auto route = std::ranges::find(routes, pattern, &PassedRoute::pattern);
  EXPECT_NE(route, routes.end());
  return *route->ids;
}

std::string generate(std::string_view body) {
  return body_with_ids(place_of("/generate"), body, std::vector<int32_t>{1, 20, 300});
}
std::string chat(std::string_view body) {
  return body_with_ids(place_of("/v1/chat/completions"), body, std::vector<int32_t>{7, 8});
}
std::string complete(std::string_view body) {
  return body_with_ids(place_of("/v1/completions"), body, std::vector<int32_t>{7});
}

TEST(PromptIds, ReplaceTheTextAlone) {
  EXPECT_EQ(generate(R"({"text":"a \"b\" \\","stream":true})"),
            R"({"input_ids":[1,20,300],"stream":true})");
  EXPECT_EQ(generate(" { \"x\" : 1e400 ,\n \"text\" :\t\"}\" } "),
            " { \"x\" : 1e400 ,\n \"input_ids\":[1,20,300] } ");
  EXPECT_EQ(complete(R"({"sampling":{"prompt":["]"]},"prompt":"x","n":[1,[2]]})"),
            R"({"sampling":{"prompt":["]"]},"prompt":[7],"n":[1,[2]]})");
}

TEST(PromptIds, StandBesideAChatsMessages) {
  EXPECT_EQ(chat(R"({"messages":[{"role":"user","content":"{}"}],"tools":[]})"),
            R"({"input_ids":[7,8],"messages":[{"role":"user","content":"{}"}],"tools":[]})");
  EXPECT_EQ(chat("\n{ \"messages\":[1]}"), "\n{\"input_ids\":[7,8], \"messages\":[1]}");
  for (const std::string_view body :
       {R"({"messages":[1],"input_ids":[1]})", R"({"messages":[1],"describe_grammar":true})",
        R"({"messages":[1],"session_id":"s"})", R"({"m\u0065ssages":[1]})"})
    EXPECT_EQ(chat(body), "") << body;
  EXPECT_TRUE(place_of("/v1/chat/completions").is_taken({.texts = true, .chats = true}));
  EXPECT_FALSE(place_of("/v1/chat/completions").is_taken({.texts = true}));
  EXPECT_TRUE(place_of("/generate").is_taken({.texts = true}));
}

TEST(PromptIds, MembersThatTakeNoEffectDoNotKeepTheText) {
  EXPECT_EQ(complete(R"({"prompt":"x","echo":false,"suffix":null,"session_id":""})"),
            R"({"prompt":[7],"echo":false,"suffix":null,"session_id":""})");
  EXPECT_EQ(generate(R"({"image_data":[ ],"text":"x"})"),
            R"({"image_data":[ ],"input_ids":[1,20,300]})");
}

TEST(PromptIds, TextStaysWhereItDecidesAnAnswer) {
  for (const std::string_view body :
       {R"({"text":["a","b"]})", R"({"text":null})", R"({"stream":true})",
        R"({"text":"a","text":"b"})", R"({"t\u0065xt":"a","text":"b"})",
        R"({"text":"a","input_ids":[1]})", R"({"image_data":"x.png","text":"a"})",
        R"({"text":"a","session_params":{"id":"s"}})", R"({"text":"a","image_data":["x"]})"})
    EXPECT_EQ(generate(body), "") << body;
  for (const std::string_view body :
       {R"({"prompt":"x","echo":true})", R"({"prompt":"x","suffix":"y"})",
        R"({"prompt":"x","add_special_tokens":false})", R"({"prompt":[1]})"})
    EXPECT_EQ(complete(body), "") << body;
}

// Whatever stands beside the prompt, a reader of the result finds it unchanged.
TEST(PromptIds, AnyOtherMembersStay) {
  const uint64_t seed = 2407;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  const std::vector<std::string> values = {
      "1", "-2.5", "\"t,}]\\\"\"", "[1,{\"text\":\"n\"}]", "{\"a\":\"{\"}", "true", "null"};
  for (int round = 0; round < 2000; ++round) {
    std::string body = "{";
    const uint64_t num_members = 1 + rng.below(5), at = rng.below(num_members);
    const auto space = [&] { return std::string(rng.below(3), rng.below(2) == 0 ? ' ' : '\n'); };
    for (uint64_t i = 0; i < num_members; ++i) {
      const std::string value = i == at ? "\"the text\"" : values[rng.below(values.size())];
      const std::string name = i == at ? "text" : fmt::format("m{}", i);
      body += fmt::format("{}{}\"{}\"{}:{}{}{}", i == 0 ? "" : ",", space(), name, space(), space(),
                          value, space());
    }
    body += "}";
    json::object expected = json::parse(body).as_object();
    expected.erase("text");
    expected["input_ids"] = {1, 20, 300};
    ASSERT_EQ(json::parse(generate(body)), json::value(expected)) << body;
  }
}

TEST(PromptIds, NoTextMakesTheReaderLeaveIt) {
  const uint64_t seed = 2408;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  const std::string_view bytes = "{}[]\",:\\ atext\n";
  for (int round = 0; round < 20000; ++round) {
    std::string body = rng.below(2) == 0 ? R"({"text":"a")" : "";
    for (uint64_t n = rng.below(12); n > 0; --n) body += bytes[rng.below(bytes.size())];
    (void)generate(body);
  }
}

TEST(TokenProbe, AsksForATextAndForChats) {
  bool has_template = true;
  const auto tokenize = [&](const PassedRoute& route, std::string_view body) {
    const json::value value = json::parse(body);
    if (route.pattern == "/v1/completions") {
      EXPECT_TRUE(value.at("prompt").is_string());
      return TokenizedPrompt{{5, 6, 7}, true};
    }
    EXPECT_EQ(route.pattern, "/v1/chat/completions");
    const auto num_messages = static_cast<int32_t>(value.at("messages").as_array().size());
    return has_template ? TokenizedPrompt{{num_messages}, true} : TokenizedPrompt{};
  };
  const TokenProbe probe = make_token_probe(tokenize);
  ASSERT_EQ(probe.texts.size(), 1u);
  ASSERT_EQ(probe.chats.size(), 2u);
  EXPECT_EQ(probe.chats[0].ids, std::vector<int32_t>{4});
  EXPECT_EQ(probe.chats[1].ids, std::vector<int32_t>{6}) << "with a call and its result";
  EXPECT_EQ(json::parse(probe.chats[1].body).at("tools").as_array().size(), 1u);
  has_template = false;
  EXPECT_TRUE(make_token_probe(tokenize).chats.empty());
}

TEST(TokenProbe, IsAnsweredByTheSameTokensAlone) {
  const TokenQuestion question{"{}", {5, 6, 7}};
  EXPECT_TRUE(is_answered(question, R"({"tokens":[5,6,7],"count":3})"));
  for (const std::string_view answer :
       {R"({"tokens":[5,6]})", R"({"tokens":[5,6,8]})", R"({"tokens":[5,6,7,8]})",
        R"({"tokens":"5"})", R"({"tokens":[5,6,"7"]})", "{}", "no JSON"})
    EXPECT_FALSE(is_answered(question, answer)) << answer;
  EXPECT_FALSE(is_answered(TokenQuestion{"{}", {}}, R"({"tokens":[]})"));
}

}  // namespace
}  // namespace espalier::router
