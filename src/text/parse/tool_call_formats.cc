#include "text/parse/tool_call_formats.h"

#include <algorithm>
#include <utility>

#include "text/parse/gemma_calls.h"
#include "text/parse/nested_calls.h"
#include "text/parse/tool_call_parser.h"

namespace espalier {
namespace {

using Kind = ToolCallFormat::Kind;

ToolCallFormat json_format(std::string name, std::string begin, std::string end,
                           std::string sign = {}) {
  return {.name = std::move(name),
          .begin = std::move(begin),
          .end = std::move(end),
          .sign = std::move(sign)};
}

ToolCallFormat deepseek_v3(std::string name, bool has_type, std::string sign) {
  const NamedCallMarks marks{.calls_begin = "<｜tool▁calls▁begin｜>",
                             .calls_end = "<｜tool▁calls▁end｜>",
                             .call_begin = "<｜tool▁call▁begin｜>",
                             .call_end = "<｜tool▁call▁end｜>",
                             .separator = "<｜tool▁sep｜>"};
  ToolCallWriting writing{.group_begin = marks.calls_begin,
                          .group_end = marks.calls_end,
                          .separator = has_type ? "\n" : "",
                          .head = marks.call_begin,
                          .head_end = has_type ? "\n```json\n" : marks.separator,
                          .tail = (has_type ? "\n```" : "") + marks.call_end,
                          .style = "json",
                          .trigger = marks.calls_begin,
                          .call_trigger = marks.call_begin};
  if (has_type) writing.head += "function" + marks.separator;
  return {.name = std::move(name),
          .kind = Kind::kNamed,
          .named = marks,
          .writing = std::move(writing),
          .sign = std::move(sign)};
}

ToolCallFormat kimi_k2() {
  const NamedCallMarks marks{.calls_begin = "<|tool_calls_section_begin|>",
                             .calls_end = "<|tool_calls_section_end|>",
                             .call_begin = "<|tool_call_begin|>",
                             .call_end = "<|tool_call_end|>",
                             .separator = "<|tool_call_argument_begin|>"};
  return {.name = "kimi_k2",
          .kind = Kind::kNamed,
          .named = marks,
          .writing = {.group_begin = marks.calls_begin,
                      .group_end = marks.calls_end,
                      .head = marks.call_begin + "functions.",
                      .head_end = ":0" + marks.separator,
                      .tail = marks.call_end,
                      .style = "json",
                      .trigger = marks.calls_begin,
                      .call_trigger = marks.call_begin},
          .sign = marks.call_begin};
}

// <function=f><parameter=city>Paris</parameter></function>, in <tool_call>.
ToolCallFormat qwen_markup(std::string name, bool is_xml, std::string sign) {
  return {.name = std::move(name),
          .kind = Kind::kMarkup,
          .markup = {.opens = {"<tool_call>"},
                     .closes = {"</tool_call>"},
                     .call = "<function=",
                     .name_ends = {">"},
                     .call_ends = {"</function>", "</tool_call>"},
                     .key = "<parameter=",
                     .key_end = ">",
                     .value = {},
                     .value_end = "</parameter>",
                     .is_xml = is_xml},
          .writing = {.separator = "\n",
                      .head = "<tool_call>\n<function=",
                      .head_end = ">\n",
                      .tail = "</function>\n</tool_call>",
                      .style = "qwen_xml",
                      .trigger = "<tool_call>"},
          .sign = std::move(sign)};
}

// <tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>, with a prefix
// to the tags' names.
ToolCallFormat pair_markup(std::string name, const std::string& prefix, std::string call,
                           std::string sign) {
  const auto tag = [&](const char* of) { return "<" + prefix + of + ">"; };
  const auto end = [&](const char* of) { return "</" + prefix + of + ">"; };
  std::string call_end = "</" + call.substr(1);
  return {.name = std::move(name),
          .kind = Kind::kMarkup,
          .markup = {.opens = {tag("tool_calls")},
                     .closes = {end("tool_calls")},
                     .call = call,
                     .name_ends = {"\n", "\\n", "<tool_sep>"},
                     .call_ends = {call_end},
                     .key = tag("arg_key"),
                     .key_end = end("arg_key"),
                     .value = tag("arg_value"),
                     .value_end = end("arg_value")},
          .writing = {.separator = "\n",
                      .head = call,
                      .head_end = "\n",
                      .tail = call_end,
                      .style = prefix.empty() ? "glm_xml" : "",
                      .trigger = call},
          .sign = std::move(sign)};
}

ToolCallFormat hunyuan() {
  ToolCallFormat format = pair_markup("hunyuan", "", "<tool_call>", "<tool_sep>");
  format.writing.group_begin = "<tool_calls>\n";
  format.writing.group_end = "\n</tool_calls>";
  format.writing.head_end = "<tool_sep>\n";
  format.writing.trigger = "<tool_calls>";
  format.writing.call_trigger = "<tool_call>";
  return format;
}

// <invoke name="f"><parameter name="city">Paris</parameter></invoke> in a group, with a prefix to
// the tags' names.
ToolCallFormat invoke_markup(std::string name, const std::string& prefix, std::string group,
                             std::string style, std::string sign) {
  std::string group_end = "</" + group.substr(1);
  const std::string call = "<" + prefix + "invoke", call_end = "</" + prefix + "invoke>";
  return {.name = std::move(name),
          .kind = Kind::kMarkup,
          .markup = {.opens = {group},
                     .closes = {group_end},
                     .call = call,
                     .name_ends = {},
                     .call_ends = {call_end},
                     .key = "<" + prefix + "parameter",
                     .key_end = {},
                     .value = {},
                     .value_end = "</" + prefix + "parameter>"},
          .writing = {.group_begin = group + "\n",
                      .group_end = "\n" + group_end,
                      .separator = "\n",
                      .head = call + " name=\"",
                      .head_end = "\">\n",
                      .tail = call_end,
                      .style = std::move(style),
                      .trigger = group,
                      .call_trigger = call},
          .sign = std::move(sign)};
}

ToolCallFormat step3() {
  ToolCallFormat format =
      invoke_markup("step3", "steptml:", "<｜tool_calls_begin｜>", "", "<steptml:invoke");
  format.markup.opens.emplace_back("<｜tool_call_begin｜>function<｜tool_sep｜>");
  format.markup.closes = {"<｜tool_calls_end｜>", "<｜tool_call_end｜>"};
  return format;
}

ToolCallFormat minicpm5() {
  ToolCallFormat format = invoke_markup("minicpm5", "", "<function>", "", "<function name=");
  format.markup.opens = format.markup.closes = {};
  format.markup.call = "<function";
  format.markup.call_ends = {"</function>"};
  format.markup.key = "<param";
  format.markup.value_end = "</param>";
  format.markup.is_xml = true;
  return format;
}

ToolCallFormat kimi_k3() {
  ToolCallFormat format = invoke_markup("kimi_k3", "", "<tools>", "", "<|open|>call");
  format.markup.opens = {"<|open|>tools<|sep|>"};
  format.markup.closes = {"<|close|>tools<|sep|>"};
  format.markup.call = "<|open|>call";
  format.markup.call_ends = {"<|close|>call<|sep|>"};
  format.markup.key = "<|open|>argument";
  format.markup.value_end = "<|close|>argument<|sep|>";
  format.markup.tag_end = "<|sep|>";
  format.markup.ignored = {"<|open|>response<|sep|>", "<|close|>response<|sep|>",
                           "<|close|>message<|sep|>"};
  return format;
}

ToolCallFormat gigachat3() {
  ToolCallFormat format = json_format("gigachat3", "<|function_call|>", "", "<|function_call|>");
  format.other_begins = {"function call<|role_sep|>\n"};
  format.ignored = {"<|message_sep|>", "</s>"};
  return format;
}

ToolCallFormat with_ignored(ToolCallFormat format, std::vector<std::string> ignored) {
  format.ignored = std::move(ignored);
  return format;
}

ToolCallFormat with_arguments(ToolCallFormat format, std::string name_member) {
  format.name_member = std::move(name_member);
  format.arguments = "parameters";
  return format;
}

ToolCallFormat pythonic(std::string name, std::string begin, std::string end) {
  ToolCallFormat format = json_format(std::move(name), begin, std::move(end), begin);
  format.kind = Kind::kPythonic;
  return format;
}

ToolCallFormat other(std::string name, Kind kind, std::string sign) {
  return {.name = std::move(name), .kind = kind, .sign = std::move(sign)};
}

std::vector<ToolCallFormat> make_formats() {
  const std::string dsml = "｜DSML｜", gcml = "｜GCML｜";
  ToolCallFormat apertus =
      json_format("apertus2509", "<|tools_prefix|>", "<|tools_suffix|>", "<|tools_prefix|>");
  apertus.key_is_name = true;
  ToolCallFormat mistral = json_format("mistral", "[TOOL_CALLS]", "", "[TOOL_CALLS]");
  mistral.names_outside = true;
  ToolCallFormat llama3 =
      with_arguments(json_format("llama3", "<|python_tag|>", "", "<|python_tag|>"), "name");
  llama3.bare = true;
  ToolCallFormat plain = with_arguments(json_format("json", "", ""), "name");
  plain.bare = true;
  return {
      deepseek_v3("deepseekv31", false, {}),
      deepseek_v3("deepseekv3", true, "<｜tool▁calls▁begin｜>"),
      invoke_markup("deepseekv41", dsml + " ", "<" + dsml + " calls>", "", dsml + " invoke"),
      invoke_markup("deepseekv4", dsml, "<" + dsml + "tool_calls>", "deepseek_xml",
                    dsml + "tool_calls"),
      invoke_markup("deepseekv32", dsml, "<" + dsml + "function_calls>", "deepseek_xml", dsml),
      invoke_markup("gigachat35", gcml, "<" + gcml + "tool_calls>", "", gcml),
      invoke_markup("minimax-m2", "", "<minimax:tool_call>", "minimax_xml", "<minimax:tool_call>"),
      other("minimax-m3", Kind::kNested, kNestedMark),
      invoke_markup("dots", "", "<dots_function_call>", "minimax_xml", "<dots_function_call>"),
      step3(),
      kimi_k2(),
      kimi_k3(),
      other("beam", Kind::kHarmony, "<rfl:parameter"),
      other("muse", Kind::kHarmony, "<atem:invoke"),
      other("inkling", Kind::kHarmony, "<|content_invoke_tool_json|>"),
      other("gpt-oss", Kind::kHarmony, "<|channel|>"),
      other("gemma4", Kind::kGemma, kGemmaCallBegin),
      pair_markup("iquest_q1", "", "<iquest_tool_call>", "<iquest_tool_call>"),
      pair_markup("k2_horizon", "ifm|", "<ifm|tool_call>", "<ifm|tool_call>"),
      hunyuan(),
      pair_markup("glm45", "", "<tool_call>", "<arg_key>"),
      pair_markup("glm", "", "<tool_call>", {}),
      pair_markup("glm47", "", "<tool_call>", {}),
      pair_markup("ling3", "", "<tool_call>", {}),
      pair_markup("poolside_v1", "", "<tool_call>", {}),
      pair_markup("spark25", "", "<tool_call>", {}),
      minicpm5(),
      qwen_markup("qwen3_coder", false, "<function="),
      qwen_markup("step3p5", false, {}),
      qwen_markup("nanbeige", false, {}),
      qwen_markup("mimo", true, {}),
      json_format("hermes", "<tool_call>", "</tool_call>", "<tool_call>"),
      json_format("qwen", "<tool_call>", "</tool_call>"),
      json_format("qwen25", "<tool_call>", "</tool_call>"),
      with_ignored(json_format("trinity", "<tool_call>", "</tool_call>"), {"<think>", "</think>"}),
      with_arguments(json_format("interns1", "<|action_start|> <|plugin|>", "<|action_end|>",
                                 "<|action_start|>"),
                     "name"),
      with_arguments(
          json_format("cohere_command4", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_ACTION|>"),
          "tool_name"),
      std::move(apertus),
      gigachat3(),
      std::move(mistral),
      std::move(llama3),
      pythonic("lfm2", "<|tool_call_start|>", "<|tool_call_end|>"),
      pythonic("pythonic", {}, {}),
      other("response_template", Kind::kResponseTemplate, {}),
      std::move(plain),
  };
}

}  // namespace

std::vector<std::string> ToolCallFormat::text_marks() const {
  std::vector<std::string> out = {begin};
  out.insert(out.end(), other_begins.begin(), other_begins.end());
  out.insert(out.end(), ignored.begin(), ignored.end());
  return out;
}

std::vector<std::string> ToolCallFormat::marks() const {
  std::vector<std::string> out;
  const auto add = [&](const std::vector<std::string>& marks) {
    for (const std::string& mark : marks)
      if (mark.size() > 1 && mark.front() != '\\' && std::ranges::count(out, mark) == 0)
        out.push_back(mark);
  };
  add({begin, end, writing.trigger});
  add({named.calls_begin, named.calls_end, named.call_begin, named.call_end, named.separator});
  add(markup.opens);
  add(markup.closes);
  add({markup.call, markup.key, markup.key_end, markup.value, markup.value_end});
  add(markup.call_ends);
  add(markup.name_ends);
  if (kind == Kind::kNested) add({kNestedMark});
  if (kind == Kind::kGemma) add({kGemmaCallBegin, kGemmaCallEnd, kGemmaQuote});
  return out;
}

const std::vector<ToolCallFormat>& tool_call_formats() {
  static const std::vector<ToolCallFormat> all = make_formats();
  return all;
}

const ToolCallFormat* find_tool_call_format(std::string_view name) {
  for (const ToolCallFormat& format : tool_call_formats())
    if (format.name == name) return &format;
  return nullptr;
}

std::vector<std::string> tool_call_format_names() {
  std::vector<std::string> names;
  for (const ToolCallFormat& format : tool_call_formats()) names.push_back(format.name);
  return names;
}

std::string detect_tool_call_format(std::string_view chat_template) {
  for (const ToolCallFormat& format : tool_call_formats())
    if (!format.sign.empty() && chat_template.find(format.sign) != std::string_view::npos)
      return format.name;
  return "json";
}

std::vector<std::string> tool_call_marks(std::string_view name) {
  const ToolCallFormat* const format = find_tool_call_format(name);
  return format == nullptr ? std::vector<std::string>() : format->marks();
}

}  // namespace espalier
