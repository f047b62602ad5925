// The frames read off a template put messages together as the template itself renders them.
#include "lang/backends/chat_frames.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <iterator>

#include "text/template/chat_template.h"

namespace espalier::lang {
namespace {

namespace json = boost::json;
constexpr Role kS = Role::kSystem, kU = Role::kUser, kA = Role::kAssistant;

std::string golden_template(const std::string& name) {
  std::ifstream file("tests/golden/templates/" + name + ".json");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return std::string(json::parse(text).at("template").as_string());
}

// Each message holds its number.
std::string rendered(const std::string& source, const std::vector<Role>& roles) {
  const auto compiled = ChatTemplate::compile(source);
  json::array messages;
  for (size_t i = 0; i < roles.size(); ++i)
    messages.push_back({{"role", role_name(roles[i])}, {"content", "text " + std::to_string(i)}});
  const auto text = compiled->render({{"messages", std::move(messages)},
                                      {"bos_token", "<s>"},
                                      {"eos_token", "</s>"},
                                      {"add_generation_prompt", true}});
  EXPECT_TRUE(text) << text.error().to_string();
  return text->starts_with("<s>") ? text->substr(3) : *text;  // the tokenizer adds it
}

std::string framed(const ChatFrames& frames, const std::vector<Role>& roles) {
  std::string text;
  std::optional<Role> previous;
  for (size_t i = 0; i < roles.size(); ++i) {
    const RoleFrame frame = frames.frame(roles[i], previous);
    text += frame.begin + "text " + std::to_string(i) + frame.end;
    previous = roles[i];
  }
  return text + frames.frame(kA, previous).begin;
}

TEST(ChatFrames, AgreeWithTheTemplatesOfTheFamilies) {
  const std::vector<std::vector<Role>> conversations = {
      {kU}, {kS, kU}, {kU, kA, kU}, {kS, kU, kA, kU}};
  for (const char* name : {"chatml", "llama3_tools", "phi_generation", "gemma_parts"}) {
    SCOPED_TRACE(name);
    const std::string source = golden_template(name);
    const auto frames = ChatFrames::from_template(source, "<s>", "</s>");
    ASSERT_TRUE(frames) << frames.error().to_string();
    for (const auto& conversation : conversations)
      EXPECT_EQ(framed(*frames, conversation), rendered(source, conversation));
  }
  // Mistral's leaves the space before an answer to the model.
  const std::string mistral = golden_template("mistral_tools");
  const auto frames = ChatFrames::from_template(mistral, "<s>", "</s>");
  ASSERT_TRUE(frames) << frames.error().to_string();
  for (const std::vector<Role>& conversation : std::vector<std::vector<Role>>{{kU}, {kS, kU}})
    EXPECT_EQ(framed(*frames, conversation), rendered(mistral, conversation));
  EXPECT_EQ(framed(*frames, {kU, kA, kU}), "[INST] text 0[/INST]text 1</s>[INST] text 2[/INST]");
}

TEST(ChatFrames, TheEndOfAnAnswerStopsIt) {
  const auto frames = ChatFrames::from_template(golden_template("chatml"), "<s>", "</s>");
  EXPECT_EQ(frames->frame(kA, kU).stop, (std::vector<std::string>{"<|im_end|>"}));
  EXPECT_TRUE(frames->frame(kU, std::nullopt).stop.empty());
}

TEST(ChatFrames, ADefaultSystemMessageOpensTheConversation) {
  const std::string source =
      "{% if messages[0]['role'] != 'system' %}<system>Be good.</>{% endif %}"
      "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  const auto frames = ChatFrames::from_template(source, "", "");
  ASSERT_TRUE(frames);
  for (const std::vector<Role>& conversation :
       std::vector<std::vector<Role>>{{kU}, {kS, kU}, {kU, kA, kU}})
    EXPECT_EQ(framed(*frames, conversation), rendered(source, conversation));
}

TEST(ChatFrames, WhatDependsOnLaterMessagesIsRefused) {
  const auto frames = ChatFrames::from_template(
      "{{ messages|length }}{% for m in messages %}{{ loop.revindex }}{{ m['content'] }}{% endfor "
      "%}",
      "", "");
  ASSERT_FALSE(frames);
  EXPECT_EQ(frames.error().code(), StatusCode::kUnimplemented);
}

TEST(ChatFrames, AreKnownByName) {
  EXPECT_EQ(ChatFrames::named("chatml")->frame(kU, std::nullopt).begin, "<|im_start|>user\n");
  EXPECT_EQ(ChatFrames::for_model("Qwen/Qwen2.5-7B-Instruct").frame(kU, kA).begin,
            "<|im_start|>user\n");
  EXPECT_EQ(framed(*ChatFrames::named("llama-2-chat"), {kS, kU}),
            "[INST] <<SYS>>\ntext 0\n<</SYS>>\n\ntext 1 [/INST]");
  EXPECT_EQ(ChatFrames().frame(kU, std::nullopt).begin, "USER:");
  EXPECT_NE(ChatFrames::named("nothing").error().message().find("chatml"), std::string::npos);
}

}  // namespace
}  // namespace espalier::lang
