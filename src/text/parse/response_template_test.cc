// Response templates: equal to transformers' parser on the goldens, however an answer is cut; what
// is refused; what an answer that breaks off or is malformed means.
#include "text/parse/response_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/mapped_file.h"
#include "base/rng.h"
#include "text/parse/reasoning_parser.h"
#include "text/parse/tool_call_parser.h"

namespace espalier {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;
using Spec = std::shared_ptr<const ResponseTemplate>;

struct Reading {
  std::string reasoning, text;
  std::vector<std::pair<std::string, std::string>> calls;
  friend bool operator==(const Reading&, const Reading&) = default;
};

// As a server reads an answer: reasoning first, then calls. `cuts` 0: in one piece.
Reading read_answer(const Spec& spec, const std::string& prompt, const std::string& answer,
                    uint64_t cuts, const std::shared_ptr<const json::value>& tools) {
  std::optional<ReasoningParser> reasoning;
  if (auto format = reasoning_format_of(spec)) {
    format->begun_answer = spec->begun_answer(prompt);
    reasoning.emplace(*format);
  }
  auto calls = make_tool_call_parser("response_template", {}, tools, spec).value();
  Reading out;
  const auto add = [&](const ToolCallParts& parts) {
    out.text += parts.text;
    for (const auto& piece : parts.pieces) {
      if (!piece.name.empty()) out.calls.emplace_back(piece.name, "");
      out.calls.back().second += piece.arguments;
    }
  };
  const auto take = [&](std::string_view piece) {
    if (!reasoning) return add(calls->push(piece));
    const auto parts = reasoning->push(piece);
    out.reasoning += parts.reasoning;
    add(calls->push(parts.answer));
  };
  size_t begin = 0;
  for (size_t at = 1; cuts != 0 && at < answer.size(); ++at) {
    if ((mix64(cuts + at) & 3) != 0) continue;
    take(std::string_view(answer).substr(begin, at - begin));
    begin = at;
  }
  take(std::string_view(answer).substr(begin));
  if (reasoning) {
    const auto parts = reasoning->finish();
    out.reasoning += parts.reasoning;
    add(calls->push(parts.answer));
  }
  add(calls->finish());
  return out;
}

Result<Spec> template_of(const std::string& text) {
  return ResponseTemplate::parse(json::parse(text));
}

const char* const kSimple = R"({"start_anchor": "A:", "fields": {
    "thinking": {"open": "<think>", "close": "</think>"}, "content": {"close": "<end>"},
    "tool_calls": {"open": "<call>", "close": "</call>", "repeats": true, "content": "json",
                   "transform": {"type": "function", "function": "{content}"}}}})";

TEST(ResponseTemplates, EqualTransformersHoweverTheAnswerIsCut) {
  const json::value goldens =
      json::parse(read_text_file("tests/golden/response_templates.json").value());
  const auto tools = std::make_shared<const json::value>(goldens.at("tools"));
  size_t num_calls = 0;
  for (const auto& kind : goldens.at("kinds").as_object()) {
    const Spec spec = ResponseTemplate::parse(kind.value().at("template")).value();
    for (const json::value& one : kind.value().at("cases").as_array()) {
      const auto text = [&](const char* name) { return std::string(one.at(name).as_string()); };
      for (uint64_t cuts = 0; cuts < 8; ++cuts) {
        const Reading got = read_answer(spec, text("prompt"), text("answer"), cuts, tools);
        SCOPED_TRACE(text("answer"));
        ASSERT_EQ(got.reasoning, text("reasoning"));
        ASSERT_EQ(got.text, text("text"));
        json::array calls;
        for (const auto& [name, arguments] : got.calls)
          calls.push_back(json::array{json::string(name), json::parse(arguments)});
        ASSERT_EQ(json::value(calls), one.at("calls")) << json::serialize(calls);
        num_calls += calls.size();
      }
    }
  }
  EXPECT_GT(num_calls, 100u);
}

TEST(ResponseTemplates, RandomTextHoweverItIsCut) {
  const std::vector<std::string> pieces = {
      "<think>", "</think>",         "<call>", "</call>", "<end>", "<",        "</",   "a", "\n",
      " ",       R"({"name": "f"})", "{",      "é",       "\xff",  "\xe2\x82", "<cal", "A:"};
  const Spec spec = template_of(kSimple).value();
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::string text;
    for (uint64_t i = rng.below(20); i > 0; --i) text += pieces[rng.below(pieces.size())];
    const Reading whole = read_answer(spec, "A:", text, 0, nullptr);
    for (uint64_t cuts = 1; cuts < 6; ++cuts)
      ASSERT_EQ(read_answer(spec, "A:", text, seed * 10 + cuts, nullptr), whole) << text;
  }
}

TEST(ResponseTemplates, WhatIsNoCallOrBreaksOffIsNotLost) {
  const Spec spec = template_of(kSimple).value();
  const auto read = [&](const std::string& answer, const std::string& prompt = "A:") {
    return read_answer(spec, prompt, answer, 1, nullptr);
  };
  EXPECT_EQ(read("x<call>no</call>y").text, "x<call>no</call>y");
  EXPECT_EQ(read("x<call>{\"name\"").text, "x<call>{\"name\"");
  const Reading cut = read(R"(x<call>{"name": "f", "arguments": {"a": 1}})");
  EXPECT_EQ(cut.text, "x");
  ASSERT_EQ(cut.calls.size(), 1u);
  EXPECT_EQ(cut.calls[0].second, R"({"a":1})");
  EXPECT_EQ(read("<think>a</thi").reasoning, "a</thi");
  // The prompt ends within a call, or within its delimiter's text.
  EXPECT_EQ(read(R"({"name": "f"}</call>)", "A: x A:<call>").calls.size(), 1u);
  EXPECT_EQ(read("b</think>c", "A:<think>a").reasoning, "b");
  EXPECT_EQ(read("ink>a</think>b", "A:<th").reasoning, "a");
}

TEST(ResponseTemplates, DelimitersAreBounded) {
  const Spec spec = template_of(R"({"start_anchor": "A:", "fields": {"content": {}, "tool_calls": {
      "open_pattern": "<call .*?>", "close": "</call>", "content": "json"}}})")
                        .value();
  const std::string endless = "<call " + std::string(9000, 'x') + ">{}</call>";
  EXPECT_EQ(read_answer(spec, "A:", endless, 0, nullptr).text, endless);
  EXPECT_EQ(read_answer(spec, "A:", "<call x>{\"name\":\"f\"}</call>", 0, nullptr).calls.size(),
            1u);
}

TEST(ResponseTemplates, RefusedWithTheReason) {
  const std::pair<const char*, const char*> all[] = {
      {R"([])", "must be an object"},
      {R"({"fields": {"content": {}}})", "start_anchor"},
      {R"({"start_anchor": "A", "fields": {}})", "'fields'"},
      {R"({"start_anchor": "A", "version": 2, "fields": {"content": {}}})", "'version' must be 1"},
      {R"({"start_anchor": "A", "fields": {"mood": {}}})", "field 'mood': it must be thinking"},
      {R"({"start_anchor": "A", "fields": {"content": {}, "thinking": {}}})", "have no 'open'"},
      {R"({"start_anchor": "A", "fields": {"content": {"open": "a", "open_pattern": "b"}}})",
       "exclude each other"},
      {R"({"start_anchor": "A", "fields": {"content": {"open": []}}})", "must not be empty"},
      {R"({"start_anchor": "A", "fields": {"content": {"open_pattern": "("}}})", "not understood"},
      {R"({"start_anchor": "A", "fields": {"content": {"content": "json"}}})", "must be a text"},
      {R"({"start_anchor": "A", "fields": {"content": {"contents": 1}}})", "'contents'"},
      {R"({"start_anchor": "A", "fields": {"tool_calls": {"close": "x"}}})", "needs 'open'"},
      {R"({"start_anchor": "A", "fields": {"tool_calls": {"open": "x", "content": "yaml"}}})",
       "yaml"},
      {R"({"start_anchor": "A", "fields": {"tool_calls": {"open": "x", "content": "xml-inline"}}})",
       "tag_pattern"},
      {R"({"start_anchor": "A", "fields": {"tool_calls": {"open": "x", "transform": "a {b}"}}})",
       "mixes a placeholder"}};
  for (const auto& [text, reason] : all) {
    const auto parsed = template_of(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_THAT(parsed.error().message(), HasSubstr(reason));
  }
  EXPECT_THAT(make_tool_call_parser("response_template", {}).error().message(),
              HasSubstr("tokenizer_config.json"));
  EXPECT_FALSE(reasoning_format_of(
      template_of(R"({"start_anchor": "A", "fields": {"content": {}}})").value()));
}

}  // namespace
}  // namespace espalier
