// API speculation against our own /v1 endpoints, whose scripted device writes what a model that
// keeps to a format would.
#include <gtest/gtest.h>

#include "lang/interpreter/speculation.h"
#include "running_server.h"

namespace espalier::lang {
namespace {

// The program of the paper's section 5: three fields, each ended by a line's end.
void character(State& s) {
  s += "A character from a story about the sea, in three lines.\n";
  s += "name:" + gen("name", {.max_tokens = 20, .stop = "\n"});
  s += "\njob:" + gen("job", {.max_tokens = 20, .stop = "\n"});
  s += "\nhome:" + gen("home", {.max_tokens = 20, .stop = "\n"});
}
constexpr const char* kPrompt = "A character from a story about the sea, in three lines.\nname:";

Script answers(const std::string& text) {
  Script script;
  std::vector<TokenId> ids = bytes_of(text);
  ids.push_back(kByteEosId);
  script.add(bytes_of(kPrompt), ids);
  return script;
}

TEST(Speculation, ACompletionAnswersTheFieldsThatFollow) {
  const RunningServer running = run_server(answers(" Ann\njob: pilot\nhome: Hull\nThe end."));
  const auto connect = [&] {
    return *openai_backend({.model = "default",
                            .base_url = running.url() + "/v1",
                            .is_chat = false,
                            .prices = {.input = 1000000, .output = 0}});
  };
  const auto plain = connect(), speculating = connect();
  const State expected = run(character, {.backend = plain});
  const State s = run(character, {.backend = speculating, .num_api_spec_tokens = 64});
  ASSERT_TRUE(s.error().ok()) << s.error().to_string();
  EXPECT_EQ(s["job"].str(), " pilot");
  EXPECT_EQ(s.text(), expected.text());
  EXPECT_EQ(plain->usage().num_calls, 3);
  EXPECT_EQ(speculating->usage().num_calls, 1);
  EXPECT_EQ(speculating->usage().num_calls_saved, 2);
  // A byte is a token here, so the estimate of what was spared is exact, and so is its price.
  const int64_t spared = plain->usage().prompt_tokens - speculating->usage().prompt_tokens;
  EXPECT_EQ(speculating->usage().prompt_tokens_saved, spared);
  EXPECT_DOUBLE_EQ(speculating->usage().dollars_saved, static_cast<double>(spared));
  // About three-fold for three fields, as in the paper.
  EXPECT_GT(static_cast<double>(plain->usage().prompt_tokens) /
                static_cast<double>(speculating->usage().prompt_tokens),
            2.9);
}

TEST(Speculation, WhatDoesNotMatchIsAskedAnew) {
  // The model leaves the format after the first field.
  Script script = answers(" Ann\nAge: 30\n");
  const RunningServer running = run_server(script);
  const auto backend =
      *openai_backend({.model = "default", .base_url = running.url() + "/v1", .is_chat = false});
  const State plain = run(character, {.backend = backend});
  const State s = run(character, {.backend = backend, .num_api_spec_tokens = 64});
  ASSERT_TRUE(s.error().ok()) << s.error().to_string();
  EXPECT_EQ(s.text(), plain.text());
}

TEST(Speculation, AChatMessageIsOneCall) {
  Script script;
  std::vector<TokenId> ids = bytes_of("name: Ann\njob: pilot\nhome: Hull");
  ids.push_back(kByteEosId);
  script.add(bytes_of("<user>A character, in three lines.</><assistant>"), ids);
  const RunningServer running = run_server(script);
  const auto backend = *openai_backend({.model = "default", .base_url = running.url() + "/v1"});
  const auto program = [](State& s) {
    s += user("A character, in three lines.");
    s += assistant("name:" + gen("name", {.stop = "\n"}) + "\njob:" + gen("job", {.stop = "\n"}) +
                   "\nhome:" + gen("home", {.stop = "\n"}));
  };
  const State s = run(program, {.backend = backend, .num_api_spec_tokens = 64});
  ASSERT_TRUE(s.error().ok()) << s.error().to_string();
  EXPECT_EQ(s["name"].str(), " Ann");
  EXPECT_EQ(s["job"].str(), " pilot");
  EXPECT_EQ(s["home"].str(), " Hull");
  EXPECT_EQ(s.messages().back().text(), "name: Ann\njob: pilot\nhome: Hull");
  EXPECT_EQ(backend->usage().num_calls, 1);
  EXPECT_EQ(backend->usage().num_calls_saved, 2);
}

TEST(Speculation, AChatMessageThatReadsOtherwiseIsRefusedAfterThreeTries) {
  const RunningServer running = run_server();
  const auto backend = *openai_backend({.model = "default", .base_url = running.url() + "/v1"});
  const State s = run(
      [](State& p) {
        p += user("Hi");
        p += assistant("name:" + gen("name") + "\njob:" + gen("job"));
      },
      {.backend = backend, .num_api_spec_tokens = 16});
  EXPECT_EQ(s.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(s.error().message().find("3 answers"), std::string::npos);
  EXPECT_FALSE(s.get("name"));
  EXPECT_EQ(backend->usage().num_calls, 3);
}

TEST(Speculation, AGenOfAnOpenMessageCannotBeRead) {
  const RunningServer running = run_server();
  const auto backend = *openai_backend({.model = "default", .base_url = running.url() + "/v1"});
  const State s = run(
      [](State& p) {
        p += user("Hi");
        auto turn = p.assistant();
        p += gen("a", {.max_tokens = 4});
        EXPECT_EQ(p.get("a").error().code(), StatusCode::kFailedPrecondition);
      },
      {.backend = backend, .num_api_spec_tokens = 16});
  EXPECT_TRUE(s.get("a"));
}

TEST(MatchTemplate, ReadsHolesBetweenConstants) {
  const std::vector<TemplateItem> items = {
      {.text = "a:"}, {.is_hole = true}, {.text = "\nb:"}, {.is_hole = true, .stops = "."}};
  EXPECT_EQ(match_template(items, "a: 1\nb: 2. more"), (std::vector<std::string>{" 1", " 2"}));
  EXPECT_FALSE(match_template(items, "a: 1 b: 2"));
  EXPECT_FALSE(match_template(items, "x: 1\nb: 2"));
}

}  // namespace
}  // namespace espalier::lang
