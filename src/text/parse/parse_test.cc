// Reasoning and tool calls: what each format means, and that it does not matter how the text comes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/rng.h"
#include "text/parse/pythonic_calls.h"
#include "text/parse/reasoning_parser.h"
#include "text/parse/tool_call_parser.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

struct Answer {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;
  friend bool operator==(const Answer&, const Answer&) = default;
  friend void PrintTo(const Answer& a, std::ostream* out) {
    *out << '"' << a.text << '"';
    for (const auto& [name, arguments] : a.calls) *out << " " << name << "(" << arguments << ")";
  }
};

void add(const ToolCallParts& parts, Answer& answer) {
  answer.text += parts.text;
  for (const auto& piece : parts.pieces) {
    if (!piece.name.empty()) {
      ASSERT_EQ(static_cast<size_t>(piece.index), answer.calls.size());
      answer.calls.emplace_back(piece.name, "");
    }
    ASSERT_EQ(static_cast<size_t>(piece.index) + 1, answer.calls.size());
    answer.calls.back().second += piece.arguments;
  }
}

// Cut at each place whose bit is set.
Answer parsed(const std::string& format, const std::string& text, uint64_t cuts) {
  static const auto tools = std::make_shared<const boost::json::value>(boost::json::parse(
      R"([{"type":"function","function":{"name":"f","parameters":{"type":"object",
          "$defs":{"name":{"type":"string"}},
          "properties":{"city":{"type":"string"},"days":{"type":"integer"},"any":{},
          "list":{"type":"array"},"on":{"type":"boolean"},"ref":{"$ref":"#/$defs/name"},
          "none":{"anyOf":[{"type":"string"},{"type":"null"}]}}}}}])"));
  auto parser = make_tool_call_parser(format, {"f", "get_time"}, tools);
  EXPECT_TRUE(parser) << parser.error().to_string();
  Answer answer;
  size_t begin = 0;
  for (size_t at = 1; at < text.size(); ++at) {
    if ((mix64(cuts + at) & 3) != 0 && cuts != 1) continue;
    add((*parser)->push(std::string_view(text).substr(begin, at - begin)), answer);
    begin = at;
  }
  add((*parser)->push(std::string_view(text).substr(begin)), answer);
  add((*parser)->finish(), answer);
  return answer;
}

struct Case {
  const char *format, *text;
  Answer answer;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"hermes", "plain text", {"plain text", {}}},
      {"qwen3_coder", " a < b <tool \n", {" a < b <tool \n", {}}},
      {"qwen3_coder", "<tool_call>nothing</tool_call>", {"<tool_call>nothing</tool_call>", {}}},
      {"qwen3_coder", "<function=a b>", {"<function=a b>", {}}},
      {"qwen3_coder",
       "x <tool_call> <tool_call>\n<function=f",
       {"x <tool_call> <tool_call>\n<function=f", {}}},
      {"qwen3_coder",
       "Let me see.\n<tool_call>\n<function=f>\n<parameter=city>\nSão \"Paulo\"\n\n</p>\n"
       "</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
       {"Let me see.", {{"f", R"({"city": "São \"Paulo\"\n\n</p>", "days": 3})"}}}},
      {"qwen3_coder",
       "<function=f>\n<parameter=list>\n[1, {\"a\": 2}]\n</parameter>\n<parameter=on>\nTrue\n"
       "</parameter><parameter=any>\nplain\n</parameter>\n<parameter=ref>5</parameter>\n"
       "<parameter=none>\nnull\n</parameter>\n<parameter=other>\n7\n</parameter></function>\n"
       "<tool_call>\n<function=g>\n</function>\n</tool_call> done",
       {" done",
        {{"f", R"({"list": [1, {"a": 2}], "on": true, "any": "plain", "ref": "5", "none": null, )"
               R"("other": "7"})"},
         {"g", "{}"}}}},
      {"qwen3_coder",
       "<tool_call>\n<function=f>\n<parameter=city>\nPar\n",
       {"", {{"f", "{\"city\": \"Par"}}}},
      {"hermes", " a < b <tool \n", {" a < b <tool \n", {}}},
      {"hermes",
       "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"\", \"b\": "
       "[1]}}\n</tool_call>",
       {"Let me see.", {{"f", R"({"a": "}\"", "b": [1]})"}}}},
      {"qwen25",
       "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"arguments\": "
       "{\"x\": 1}, \"name\": \"g\"}\n</tool_call>\n",
       {"", {{"f", "{}"}, {"g", R"({"x": 1})"}}}},
      {"hermes", "<tool_call>nothing</tool_call>", {"<tool_call>nothing</tool_call>", {}}},
      {"hermes", "<tool_call>{\"x\": 1}</tool_call>", {"<tool_call>{\"x\": 1}</tool_call>", {}}},
      {"hermes", "<tool_call>{\"name\": \"f\"}</tool_call>", {"", {{"f", "{}"}}}},
      {"hermes",
       "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1",
       {"", {{"f", "{\"a\": 1"}}}},
      {"hermes",
       "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call> done",
       {" done", {{"f", R"({"a": 1})"}}}},
      {"llama3", R"({"name": "f", "parameters": {"q": "x"}})", {"", {{"f", R"({"q": "x"})"}}}},
      {"llama3",
       R"(<|python_tag|>{"name": "f", "parameters": {}}; {"name": "get_time", "parameters": {}})",
       {"", {{"f", "{}"}, {"get_time", "{}"}}}},
      {"llama3", R"({"name": "Ada", "age": 3})", {R"({"name": "Ada", "age": 3})", {}}},
      {"llama3", R"( {"key": [1, 2]} and so on)", {R"( {"key": [1, 2]} and so on)", {}}},
      {"mistral",
       R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}, {"name": "g", "arguments": {}}])",
       {"", {{"f", R"({"a": 1})"}, {"g", "{}"}}}},
      {"mistral",
       R"(I look.[TOOL_CALLS]f[ARGS]{"a": {"b": 2}}[TOOL_CALLS]get_time{"z": 1})",
       {"I look.", {{"f", R"({"a": {"b": 2}})"}, {"get_time", R"({"z": 1})"}}}},
      {"deepseekv3",
       "x<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": "
       "1}\n```"
       "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}\n```"
       "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {"x", {{"f", R"({"a": 1})"}, {"g", "{}"}}}},
      {"deepseekv31",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": \"ü\"}<｜tool▁call▁end｜>"
       "<｜tool▁calls▁end｜>",
       {"", {{"f", R"({"a": "ü"})"}}}},
      {"pythonic",
       R"([f(a=1, b='x"', c=[True, None], d={"k": -2.5}), get_time()])",
       {"", {{"f", R"({"a":1,"b":"x\"","c":[true,null],"d":{"k":-2.5E0}})"}, {"get_time", "{}"}}}},
      {"pythonic", "[1, 2]", {"[1, 2]", {}}},
      {"pythonic", "[h(a=1)]", {"[h(a=1)]", {}}},
      {"pythonic", "[f(1)] it is", {"[f(1)] it is", {}}},
      {"json",
       R"([{"name": "f", "parameters": {"a": 1}}, {"name": "get_time", "parameters": {}}])",
       {"", {{"f", R"({"a": 1})"}, {"get_time", "{}"}}}},
      {"json", "[1, {\"a\": 2}]", {"[1, {\"a\": 2}]", {}}},
  };
  return all;
}

TEST(ToolCalls, EachFormatHoweverItIsCut) {
  for (const Case& one : cases()) {
    for (uint64_t cuts = 1; cuts < 60; ++cuts)
      ASSERT_EQ(parsed(one.format, one.text, cuts), one.answer) << one.format << " " << one.text;
  }
}

// Pieces of calls, marks and text in any order: no cut changes what is read, and nothing crashes.
TEST(ToolCalls, RandomTextHoweverItIsCut) {
  const std::vector<std::string> pieces = {"<tool_call>",
                                           "</tool_call>",
                                           "<|python_tag|>",
                                           "[TOOL_CALLS]",
                                           "[ARGS]",
                                           "{\"name\": \"f\"",
                                           ", \"arguments\": {",
                                           "}",
                                           "}",
                                           "{",
                                           "[",
                                           "]",
                                           "f(",
                                           "a=1",
                                           ")",
                                           "\"",
                                           "\\",
                                           ", ",
                                           "\n",
                                           " ",
                                           "text",
                                           "<",
                                           "ü",
                                           "<｜tool▁calls▁begin｜>",
                                           "<｜tool▁call▁begin｜>",
                                           "<｜tool▁sep｜>",
                                           "get_time",
                                           "<｜tool▁call▁end｜>"};
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::string text;
    for (uint64_t i = rng.below(20); i > 0; --i) text += pieces[rng.below(pieces.size())];
    for (const std::string& format : tool_call_format_names()) {
      const Answer whole = parsed(format, text, 1);
      for (uint64_t cuts = 2; cuts < 6; ++cuts)
        ASSERT_EQ(parsed(format, text, seed * 10 + cuts), whole) << format << ": " << text;
    }
  }
}

TEST(ToolCalls, FormatsAreFoundByNameAndInTemplates) {
  EXPECT_THAT(make_tool_call_parser("qwen9", {}).error().message(), HasSubstr("qwen25"));
  EXPECT_EQ(detect_tool_call_format("... <tool_call> ..."), "hermes");
  EXPECT_EQ(detect_tool_call_format("{{ messages }}"), "json");
  EXPECT_EQ(tool_call_marks("hermes").size(), 2u);
}

TEST(Pythonic, LiteralsOnly) {
  EXPECT_EQ(python_arguments_to_json("a = 'it\\'s', b=(1, 2,)"), R"({"a":"it's","b":[1,2]})");
  EXPECT_EQ(python_arguments_to_json(""), "{}");
  for (const char* text : {"1", "a=", "a=b", "a=1 b=2", "a='x", "a=[1", "a={1:}"})
    EXPECT_FALSE(python_arguments_to_json(text)) << text;
}

struct Thought {
  std::string reasoning, answer;
};

Thought thought(const char* format, const std::string& text, uint64_t cuts) {
  ReasoningParser parser(find_reasoning_format(format).value());
  Thought out;
  const auto add = [&](const ReasoningParser::Parts& parts) {
    out.reasoning += parts.reasoning;
    out.answer += parts.answer;
  };
  size_t begin = 0;
  for (size_t at = 1; at < text.size(); ++at) {
    if ((mix64(cuts + at) & 3) != 0 && cuts != 1) continue;
    add(parser.push(std::string_view(text).substr(begin, at - begin)));
    begin = at;
  }
  add(parser.push(std::string_view(text).substr(begin)));
  add(parser.finish());
  return out;
}

TEST(Reasoning, EachKindHoweverItIsCut) {
  struct ReasoningCase {
    const char *format, *text;
    Thought expected;
  };
  const ReasoningCase all[] = {
      {"qwen3", "<think>\nI see <b>.\n</think>\n\nYes.", {"I see <b>.", "Yes."}},
      {"qwen3", "No thought <think> here.", {"", "No thought <think> here."}},
      {"qwen3", " <thin air", {"", " <thin air"}},
      {"qwen3", "<think></think>a\n", {"", "a\n"}},
      {"qwen3", "<think>still at it </thin", {"still at it </thin", ""}},
      {"deepseek-r1", "I see.\n</think>\n\nYes.", {"I see.", "Yes."}},
      {"deepseek-r1", "<think>\nI see.</think>Yes.", {"I see.", "Yes."}},
      {"deepseek-r1", "no end", {"no end", ""}},
      {"kimi", "◁think▷a ◁ b◁/think▷c", {"a ◁ b", "c"}},
      {"mistral", "[THINK]x[/THINK] y", {"x", "y"}},
  };
  for (const ReasoningCase& one : all) {
    for (uint64_t cuts = 1; cuts < 40; ++cuts) {
      const Thought got = thought(one.format, one.text, cuts);
      ASSERT_EQ(got.reasoning, one.expected.reasoning) << one.text;
      ASSERT_EQ(got.answer, one.expected.answer) << one.text;
    }
  }
  EXPECT_THAT(find_reasoning_format("x").error().message(), HasSubstr("qwen3"));
}

TEST(ToolCalls, StructuralTagsAreJson) {
  const auto tools = boost::json::parse(
      R"([{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object"}}}])");
  for (const std::string& format : tool_call_format_names()) {
    for (const bool required : {true, false}) {
      const std::string tag = tool_call_structural_tag(format, tools, {.required = required});
      if (tag.empty()) {
        EXPECT_FALSE(required) << format;
        continue;
      }
      EXPECT_TRUE(boost::json::parse(tag).is_object());
    }
  }
}

}  // namespace
}  // namespace espalier
