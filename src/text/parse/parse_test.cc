// Reasoning and tool calls: what each format means, and that it does not matter how the text comes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdlib>

#include "base/rng.h"
#include "text/parse/pythonic_calls.h"
#include "text/parse/reasoning_parser.h"
#include "text/parse/response_template.h"
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
  static const auto spec = ResponseTemplate::parse(boost::json::parse(R"({"start_anchor": "x",
      "fields": {"thinking": {"open": "<think>", "close": "</think>"}, "content": {}, "tool_calls":
      {"open_pattern": "<tool_call>\\s*", "close": "</tool_call>", "content": "json"}}})"));
  auto parser = make_tool_call_parser(format, {"f", "get_time"}, tools, spec.value());
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
      {"glm45",
       "I look.\n<tool_call>get_time\n<arg_key>city</arg_key>\n<arg_value>北京</arg_value>\n"
       "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>f</tool_call>",
       {"I look.", {{"get_time", R"({"city": "北京", "days": "3"})"}, {"f", "{}"}}}},
      {"glm47",
       "<tool_call>f<arg_key>city</arg_key><arg_value>a<b</arg_value><arg_key>days</arg_key>"
       "<arg_value>3</arg_value></tool_call> done",
       {" done", {{"f", R"({"city": "a<b", "days": 3})"}}}},
      {"glm45", "<tool_call>no name</tool_call>", {"<tool_call>no name</tool_call>", {}}},
      {"glm45",
       "<tool_call>f\\n<arg_key>on</arg_key>\\n<arg_value>true</arg_value></tool_call>",
       {"", {{"f", R"({"on": true})"}}}},
      {"iquest_q1", "<iquest_tool_call>f</iquest_tool_call>", {"", {{"f", "{}"}}}},
      {"hunyuan",
       "x<tool_calls>\n<tool_call>f<tool_sep>\n<arg_key>list</arg_key>\n<arg_value>[1]</"
       "arg_value>\n"
       "</tool_call>\n</tool_calls> y",
       {"x y", {{"f", R"({"list": [1]})"}}}},
      {"k2_horizon",
       "<ifm|tool_calls><ifm|tool_call>f<ifm|arg_key>city</ifm|arg_key><ifm|arg_type>string"
       "</ifm|arg_type><ifm|arg_value>Oslo</ifm|arg_value></ifm|tool_call></ifm|tool_calls>",
       {"", {{"f", R"({"city": "Oslo"})"}}}},
      {"minimax-m2",
       "Sure.<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"city\">Paris</parameter>\n"
       "<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"get_time\">\n</invoke>\n"
       "</minimax:tool_call>",
       {"Sure.", {{"f", R"({"city": "Paris", "days": 2})"}, {"get_time", "{}"}}}},
      {"minimax-m2", "a < b <invoke x>", {"a < b <invoke x>", {}}},
      {"minimax-m2",
       "<minimax:tool_call>no</minimax:tool_call>",
       {"<minimax:tool_call>no</minimax:tool_call>", {}}},
      {"dots",
       "<dots_function_call>\n<invoke name = f>\n<parameter name='city'>Rom</parameter></invoke>"
       "</dots_function_call>",
       {"", {{"f", R"({"city": "Rom"})"}}}},
      {"deepseekv32",
       "ok\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"x\" "
       "string=\"true\">7</｜DSML｜parameter>\n<｜DSML｜parameter name=\"y\" string=\"false\">[7]"
       "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       {"ok", {{"f", R"({"x": "7", "y": [7]})"}}}},
      {"deepseekv32",
       "<｜DSML｜function_calls><｜DSML｜invoke name=\"f\">\n{ \"city\": \"</x>\" "
       "}\n</｜DSML｜invoke>"
       "</｜DSML｜function_calls>",
       {"", {{"f", R"({ "city": "</x>" })"}}}},
      {"deepseekv4",
       "<｜DSML｜tool_calls><｜DSML｜invoke name=\"get_time\"/></｜DSML｜tool_calls>",
       {"", {{"get_time", "{}"}}}},
      {"deepseekv41",
       "<｜DSML｜ calls><｜DSML｜ invoke name=\"f\"><｜DSML｜ parameter name=\"on\" "
       "string=\"false\">"
       "true</｜DSML｜ parameter></｜DSML｜ invoke></｜DSML｜ calls>",
       {"", {{"f", R"({"on": true})"}}}},
      {"gigachat35",
       "<｜GCML｜tool_calls><｜GCML｜invoke name=\"f\"><｜GCML｜parameter name=\"a\" "
       "string=\"true\">b"
       "</｜GCML｜parameter></｜GCML｜invoke></｜GCML｜tool_calls>",
       {"", {{"f", R"({"a": "b"})"}}}},
      {"step3",
       "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke "
       "name=\"f\">\n"
       "<steptml:parameter name=\"city\">Wien</steptml:parameter>\n</steptml:invoke>"
       "<｜tool_call_end｜>\n<｜tool_calls_end｜>",
       {"", {{"f", R"({"city": "Wien"})"}}}},
      {"kimi_k2",
       "x<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0"
       "<|tool_call_argument_begin|>{\"a\": 1}<|tool_call_end|><|tool_call_begin|>3"
       "<|tool_call_argument_begin|>{\"city\": \"}\"}<|tool_call_end|><|tool_calls_section_end|>",
       {"x", {{"get_time", R"({"a": 1})"}, {"f", R"({"city": "}"})"}}}},
      {"kimi_k3",
       "<|open|>response<|sep|>Hi<|close|>response<|sep|><|open|>tools<|sep|><|open|>call "
       "tool=\"f\" "
       "index=\"1\"<|sep|><|open|>argument key=\"a&quot;\" type=\"string\"<|sep|>5"
       "<|close|>argument<|sep|><|open|>argument key=\"b\" type=\"number\"<|sep|>5"
       "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
       {"Hi", {{"f", R"({"a\"": "5", "b": 5})"}}}},
      {"minicpm5",
       "<function name=\"f\"><param name=\"city\">A &amp; B &lt;x &unknown;</param><param "
       "name=\"ref\">"
       "<![CDATA[<a>&amp;</param>]]></param></function>",
       {"", {{"f", R"({"city": "A & B <x &unknown;", "ref": "<a>&amp;</param>"})"}}}},
      {"mimo",
       "<tool_call>\n<function=f>\n<parameter=city>ls &amp;&amp; pwd</parameter>\n</function>\n"
       "</tool_call>",
       {"", {{"f", R"({"city": "ls && pwd"})"}}}},
      {"interns1",
       "Hm<|action_start|> <|plugin|>\n{\"name\": \"f\", \"parameters\": {\"a\": 1}}<|action_end|>",
       {"Hm", {{"f", R"({"a": 1})"}}}},
      {"cohere_command4",
       "<|START_ACTION|>[\n {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": "
       "{\"a\": "
       "1}},\n {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": "
       "{}}\n]<|END_ACTION|>",
       {"", {{"f", R"({"a": 1})"}, {"g", "{}"}}}},
      {"apertus2509",
       "a<|tools_prefix|>[{\"f\": {\"x\": [1]}}, {\"g\": {}}]<|tools_suffix|>b",
       {"ab", {{"f", R"({"x": [1]})"}, {"g", "{}"}}}},
      {"gigachat3",
       "Ja<|message_sep|>\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {\"a\": "
       "1}}</s>",
       {"Ja", {{"f", R"({"a": 1})"}}}},
      {"trinity",
       "<think>x</think><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
       {"x", {{"f", "{}"}}}},
      {"lfm2",
       "Ok <|tool_call_start|>[f(city=\"a]\"), any_name(x=1)]<|tool_call_end|> done",
       {"Ok done", {{"f", R"({"city":"a]"})"}, {"any_name", R"({"x":1})"}}}},
      {"lfm2",
       "<|tool_call_start|>no<|tool_call_end|>",
       {"<|tool_call_start|>no<|tool_call_end|>", {}}},
      {"minimax-m3",
       "Sure ]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<city>Pa <b> "
       "ris]<]minimax[>[</city>"
       "]<]minimax[>[<days>3]<]minimax[>[</"
       "days>]<]minimax[>[<list>]<]minimax[>[<item>1]<]minimax[>[</"
       "item>]<]minimax[>[<item>true]<]minimax[>[</item>]<]minimax[>[</list>"
       "]<]minimax[>[<any>]<]minimax[>[<a>x]<]minimax[>[</a>]<]minimax[>[ "
       "<a>y]<]minimax[>[</a>]<]minimax[>[</any>]<]minimax[>[<none>null]<]minimax[>[</"
       "none>]<]minimax[>[<ref>5]<]minimax[>[</ref>]<]minimax[>[</invoke>\n]<]minimax[>[</"
       "tool_call> done",
       {"Sure done",
        {{"f", R"({"city":"Pa <b> ris","days":3,"list":["1",true],"any":{"a":["x","y"]},)"
               R"("none":null,"ref":"5"})"}}}},
      {"minimax-m3",
       "]<]minimax[>[<tool_call>]<]minimax[>[<invoke "
       "name=\"get_time\">]<]minimax[>[</invoke>]<]minimax[>[<invoke "
       "name=\"f\">]<]minimax[>[<on>no]<]minimax[>[</on>]<]minimax[>[<city>]<]minimax[>[</"
       "city>]<]minimax[>[</invoke>]<]minimax[>[</tool_call>",
       {"", {{"get_time", "{}"}, {"f", R"({"on":"no","city":""})"}}}},
      {"minimax-m3",
       "]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<city>Par",
       {"]<]minimax[>[<tool_call>]<]minimax[>[<invoke name=\"f\">]<]minimax[>[<city>Par", {}}},
      {"minimax-m3",
       "]<]minimax[>[<tool_call>]<]minimax[>[<invoke "
       "name=\"f\">]<]minimax[>[<city>Par]<]minimax[>[</days>]<]minimax[>[</invoke>",
       {"]<]minimax[>[<tool_call>]<]minimax[>[<invoke "
        "name=\"f\">]<]minimax[>[<city>Par]<]minimax[>[</days>]<]minimax[>[</invoke>",
        {}}},
      {"minimax-m3",
       "a ]<]minimax[>[<tool_call> ]<]minimax[>[</tool_call> ]<]minimax[>[<invoke name=\"a b\">",
       {"a ]<]minimax[>[<tool_call> ]<]minimax[>[</tool_call> ]<]minimax[>[<invoke name=\"a b\">",
        {}}},
      {"gemma4",
       "Sure<|tool_call>call:f{city:<|\"|>Pa,ris}<|\"|>,days:3,list:[1,{a:true}],any:word}<tool_"
       "call|>",
       {"Sure", {{"f", R"({"city":"Pa,ris}","days":3,"list":[1,{"a":true}],"any":"word"})"}}}},
      {"gemma4",
       "<|tool_call>call:f{city:<tool_call|>",
       {"<|tool_call>call:f{city:<tool_call|>", {}}},
      {"beam",
       " to=f<|channel|>analysis <|constrain|>xml<|message|><rfl:parameter name=\"city\">\nSão "
       "\"Paulo\"\n</rfl:parameter><rfl:parameter name=\"days\">\n3\n</rfl:parameter><|end|>"
       "<|start|>assistant to=get_time<|channel|>analysis <|constrain|>xml<|message|><|call|>",
       {"", {{"f", R"({"city": "São \"Paulo\"", "days": 3})"}, {"get_time", "{}"}}}},
      {"beam",
       "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>final<|message|>"
       "Hi to=f.<|return|>",
       {"Hi to=f.", {}}},
      {"beam", " to=be, or not", {" to=be, or not", {}}},
      {"beam", " to=", {" to=", {}}},
      {"muse",
       " to=self<|message|>think<|eom|><|start|>assistant to=user<|message|>I look.<|eom|>"
       "<|start|>assistant to=functions.f<|message|>\n<atem:function_calls>\n"
       "<atem:invoke name=\"f\">\n<atem:parameter name=\"city\">Paris</atem:parameter>\n"
       "<atem:parameter name=\"days\">3</atem:parameter>\n</atem:invoke>\n"
       "<atem:invoke name=\"get_time.get_time\">\n</atem:invoke>\n</atem:function_calls>\n<|eot|>",
       {"I look.", {{"f", R"({"city": "Paris", "days": 3})"}, {"get_time", "{}"}}}},
      {"muse",
       " to=user<|message|>Write <atem:invoke name=\"f\"></atem:invoke>.<|eot|>",
       {"Write <atem:invoke name=\"f\"></atem:invoke>.", {}}},
      {"muse", "to do: rest", {"to do: rest", {}}},
      {"inkling",
       "<|message_model|><|content_thinking|>think<|end_message|><|message_model|>"
       "<|content_text|>I look.<|end_message|><|message_model|>f<|content_invoke_tool_json|>"
       "{\"name\": \"f\", \"args\": {\"city\": \"</tool_call>\"}}<|end_message|>"
       "<|message_model|>g<|content_invoke_tool_json|>{\"name\":\"g\",\"args\":{}}<|end_message|>"
       "<|content_model_end_sampling|>",
       {"I look.", {{"f", R"({"city": "</tool_call>"})"}, {"g", "{}"}}}},
      {"inkling", "plain", {"plain", {}}},
      {"inkling", "<|message_model|>f<|content_invoke_tool_text|>x<|end_message|>", {"x", {}}},
      {"gpt-oss",
       "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>",
       {"", {{"f", R"({"a": 1})"}}}},
      {"gpt-oss",
       "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.get_time"
       "<|channel|>commentary json<|message|><|call|><|channel|>final<|message|>Done.<|return|>",
       {"I look.Done.", {{"get_time", "{}"}}}},
      {"gpt-oss", "plain <|x|>", {"plain <|x|>", {}}},
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
                                           "<｜tool▁call▁end｜>",
                                           "<function=f>",
                                           "<parameter=a>",
                                           "</parameter>",
                                           "</function>",
                                           "<invoke name=\"f\">",
                                           "<parameter name=\"a\">",
                                           "</invoke>",
                                           "<arg_key>",
                                           "</arg_key>",
                                           "<arg_value>",
                                           "</arg_value>",
                                           "<|channel|>",
                                           "<|message|>",
                                           "commentary to=f",
                                           "<|call|>",
                                           " to=f",
                                           "<|start|>assistant",
                                           "<rfl:parameter name=\"a\">",
                                           "</rfl:parameter>",
                                           "<|eom|>",
                                           "<atem:invoke name=\"f\">",
                                           "</atem:invoke>",
                                           "<|message_model|>",
                                           "<|content_invoke_tool_json|>",
                                           "<|end_message|>",
                                           "<|tool_call>call:f{",
                                           "}<tool_call|>",
                                           "<|tool_call_start|>",
                                           "]<]minimax[>[",
                                           "<a>",
                                           "</a>",
                                           "&amp;",
                                           "<![CDATA[",
                                           "]]>"};
  const char* const more = std::getenv("ESPALIER_SIMULATION_SEEDS");
  const uint64_t num_seeds = more != nullptr ? std::strtoull(more, nullptr, 10) : 200;
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
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

TEST(Reasoning, FormatsAreFoundInTemplates) {
  EXPECT_EQ(detect_reasoning_format("{{ messages }}"), "");
  EXPECT_EQ(detect_reasoning_format("content.split('</think>')[-1]"), "qwen3");
  EXPECT_EQ(detect_reasoning_format("</think> <|tool_calls_section_begin|>"), "kimi_k2");
  EXPECT_EQ(detect_reasoning_format("<|channel|>analysis<|message|>"), "gpt-oss");
  for (const std::string& name : reasoning_format_names())
    EXPECT_TRUE(find_reasoning_format(name)) << name;
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
      {"minimax-append-think", "I see.</think>\n\nYes.", {"", "<think>I see.</think>\n\nYes."}},
      {"minimax-append-think", "", {"", ""}},
      {"gemma4", "<|channel>thought\nhm<channel|>a", {"hm", "a"}},
      {"kimi_k2", "<think>a<|tool_calls_section_begin|>b", {"a", "<|tool_calls_section_begin|>b"}},
      {"gpt-oss",
       "<|channel|>analysis<|message|>Hm \n<|end|><|start|>assistant<|channel|>final<|message|>Yes"
       "<|return|>",
       {"Hm", "Yes"}},
      {"gpt-oss",
       "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary "
       "to=functions.f <|constrain|>json<|message|>{}<|call|>",
       {"Hm",
        "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
        "<|call|>"}},
      {"beam",
       "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant to=f<|channel|>analysis "
       "<|constrain|>xml<|message|>x<|call|>",
       {"Think.",
        "<|start|>assistant to=f<|channel|>analysis <|constrain|>xml<|message|>x<|call|>"}},
      {"beam",
       " to=f<|channel|>analysis <|constrain|>xml<|message|>x<|call|>",
       {"", " to=f<|channel|>analysis <|constrain|>xml<|message|>x<|call|>"}},
      {"muse",
       " to=self<|message|>Think.<|eom|><|start|>assistant to=user<|message|>Hi.<|eot|>",
       {"Think.", "Hi."}},
      {"muse", " to=functions.f<|message|>x<|eot|>", {"", " to=functions.f<|message|>x<|eot|>"}},
      {"inkling",
       "<|message_model|><|content_thinking|>Think.<|end_message|><|message_model|>"
       "<|content_text|>Hi.<|end_message|><|message_model|>f<|content_invoke_tool_json|>{}"
       "<|end_message|>",
       {"Think.", "Hi.<|message_model|>f<|content_invoke_tool_json|>{}<|end_message|>"}},
      {"gpt-oss", "No channel.", {"", "No channel."}},
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
