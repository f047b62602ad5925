#include "text/parse/tool_call_formats.h"

#include <boost/json.hpp>
#include <vector>

#include "text/parse/tool_call_parser.h"

namespace espalier {
namespace {

namespace json = boost::json;
using Kind = ToolCallFormat::Kind;

// The order decides which format a template has that contains several signs: the first one matches.
const std::vector<ToolCallFormat>& tool_call_formats() {
  static const std::vector<ToolCallFormat> all = {
      {.name = "deepseekv31", .kind = Kind::kDeepSeek, .sign = {}},
      {.name = "deepseekv3", .kind = Kind::kDeepSeek, .sign = kDeepSeekCallsBegin},
      {.name = "qwen3_coder",
       .kind = Kind::kParameters,
       .begin = "<tool_call>",
       .end = "</tool_call>",
       .sign = "<function="},
      {.name = "hermes", .begin = "<tool_call>", .end = "</tool_call>", .sign = "<tool_call>"},
      {.name = "qwen", .begin = "<tool_call>", .end = "</tool_call>", .sign = {}},
      {.name = "qwen25", .begin = "<tool_call>", .end = "</tool_call>", .sign = {}},
      {.name = "mistral", .begin = "[TOOL_CALLS]", .names_outside = true, .sign = "[TOOL_CALLS]"},
      {.name = "llama3",
       .begin = "<|python_tag|>",
       .bare = true,
       .arguments = "parameters",
       .sign = "<|python_tag|>"},
      {.name = "pythonic", .kind = Kind::kPythonic, .sign = {}},
      {.name = "json", .bare = true, .arguments = "parameters", .sign = {}},
  };
  return all;
}

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

struct Function {
  std::string name;
  json::value schema;  // of its arguments
};

// The arguments of a tool that is not strict may be any object; only strict tools enforce a schema.
std::vector<Function> functions_of(const json::value& tools, bool required) {
  std::vector<Function> out;
  for (const json::value& tool : tools.get_array()) {
    const json::object& function = tool.at("function").get_object();
    const json::value* parameters = function.if_contains("parameters");
    const json::value* strict = function.if_contains("strict");
    const bool is_strict = strict != nullptr && strict->is_bool() && strict->get_bool();
    json::value schema = json::object{{"type", "object"}};
    if ((is_strict || required) && parameters != nullptr && parameters->is_object())
      schema = *parameters;
    out.push_back({std::string(view(function.at("name").get_string())), std::move(schema)});
  }
  return out;
}

bool any_strict(const json::value& tools) {
  for (const json::value& tool : tools.get_array()) {
    const json::value* strict = tool.at("function").get_object().if_contains("strict");
    if (strict != nullptr && strict->is_bool() && strict->get_bool()) return true;
  }
  return false;
}

json::object tag(std::string begin, json::value schema, std::string end) {
  return {{"type", "tag"},
          {"begin", std::move(begin)},
          {"content", json::object{{"type", "json_schema"}, {"json_schema", std::move(schema)}}},
          {"end", std::move(end)}};
}

// The structural tag of one call as JSON, {"name": "f", "arguments": {...}}, between its marks.
json::object call_tag(const ToolCallFormat& format, const Function& f, const std::string& before,
                      const std::string& behind) {
  return tag(before + "{\"name\": " + json::serialize(json::string(f.name)) + ", \"" +
                 format.arguments + "\": ",
             f.schema, "}" + behind);
}

json::object deepseek_tag(const ToolCallFormat& format, const Function& f) {
  if (format.name == "deepseekv31")
    return tag(kDeepSeekCallBegin + f.name + kDeepSeekSep, f.schema, kDeepSeekCallEnd);
  return tag(std::string(kDeepSeekCallBegin) + "function" + kDeepSeekSep + f.name + "\n```json\n",
             f.schema, std::string("\n```") + kDeepSeekCallEnd);
}

// The structural tag of one call as <function=f> with its parameters, between its marks.
json::object parameters_tag(const ToolCallFormat& format, const Function& f) {
  return {{"type", "tag"},
          {"begin", format.begin + "\n<function=" + f.name + ">\n"},
          {"content", json::object{{"type", "qwen_xml_parameter"}, {"json_schema", f.schema}}},
          {"end", "</function>\n" + format.end}};
}

json::object list_of(json::array tags, const char* separator, bool parallel) {
  return {{"type", "tags_with_separator"},
          {"tags", std::move(tags)},
          {"separator", separator},
          {"at_least_one", true},
          {"stop_after_first", !parallel}};
}
json::object text(std::string value) {
  return {{"type", "const_string"}, {"value", std::move(value)}};
}
json::object sequence(json::array elements) {
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

// A call without text around it.
json::object required_format(const ToolCallFormat& format, const std::vector<Function>& functions,
                             bool parallel) {
  json::array tags;
  if (format.kind == Kind::kDeepSeek) {
    for (const Function& f : functions) tags.push_back(deepseek_tag(format, f));
    return sequence({text(kDeepSeekCallsBegin),
                     list_of(std::move(tags), format.name == "deepseekv31" ? "" : "\n", parallel),
                     text(kDeepSeekCallsEnd)});
  }
  if (format.kind == Kind::kParameters) {
    for (const Function& f : functions) tags.push_back(parameters_tag(format, f));
    return list_of(std::move(tags), "\n", parallel);
  }
  const bool is_list = format.end.empty() && format.name != "llama3";
  for (const Function& f : functions)
    tags.push_back(is_list ? call_tag(format, f, "", "")
                           : call_tag(format, f, format.end.empty() ? "" : format.begin + "\n",
                                      format.end.empty() ? "" : "\n" + format.end));
  if (!is_list) return list_of(std::move(tags), format.end.empty() ? "; " : "\n", parallel);
  return sequence({text(format.begin.empty() ? "[" : format.begin + " ["),
                   list_of(std::move(tags), ", ", parallel), text("]")});
}

// Free text in which a mark opens a call.
json::object optional_format(const ToolCallFormat& format, const std::vector<Function>& functions,
                             bool parallel) {
  json::array tags;
  if (format.kind == Kind::kDeepSeek) {
    tags.push_back(json::object{
        {"type", "tag"},
        {"begin", kDeepSeekCallsBegin},
        {"content",
         [&] {
           json::array calls;
           for (const Function& f : functions) calls.push_back(deepseek_tag(format, f));
           return list_of(std::move(calls), format.name == "deepseekv31" ? "" : "\n", parallel);
         }()},
        {"end", kDeepSeekCallsEnd}});
  } else if (format.kind == Kind::kParameters) {
    for (const Function& f : functions) tags.push_back(parameters_tag(format, f));
  } else if (format.end.empty() && format.name != "llama3") {
    json::array calls;
    for (const Function& f : functions) calls.push_back(call_tag(format, f, "", ""));
    tags.push_back(
        json::object{{"type", "tag"},
                     {"begin", format.begin},
                     {"content", sequence({text(" ["), list_of(std::move(calls), ", ", parallel)})},
                     {"end", "]"}});
  } else {
    for (const Function& f : functions)
      tags.push_back(call_tag(format, f, format.begin + (format.end.empty() ? "" : "\n"),
                              format.end.empty() ? "" : "\n" + format.end));
  }
  const std::string trigger = format.kind == Kind::kDeepSeek ? kDeepSeekCallsBegin : format.begin;
  return {{"type", "triggered_tags"},
          {"triggers", json::array{json::string(trigger)}},
          {"tags", std::move(tags)},
          {"stop_after_first", !parallel}};
}

}  // namespace

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
  if (format == nullptr) return {};
  if (format->kind == Kind::kDeepSeek)
    return {kDeepSeekCallsBegin, kDeepSeekCallsEnd, kDeepSeekCallBegin, kDeepSeekCallEnd,
            kDeepSeekSep};
  std::vector<std::string> out;
  for (const std::string& mark : {format->begin, format->end})
    if (!mark.empty()) out.push_back(mark);
  return out;
}

std::string tool_call_structural_tag(std::string_view name, const json::value& tools,
                                     const ToolCallGrammarOptions& options) {
  const ToolCallFormat* format = find_tool_call_format(name);
  if (format == nullptr || tools.get_array().empty()) return {};
  // Required calls in Python notation are constrained to JSON, so they are parsed as JSON too.
  if (format->kind == Kind::kPythonic && options.required) format = find_tool_call_format("json");
  if (!options.required && (format->begin.empty() || !any_strict(tools)) &&
      !(format->kind == Kind::kDeepSeek && any_strict(tools)))
    return {};
  const std::vector<Function> functions = functions_of(tools, options.required);
  return json::serialize(json::object{
      {"format", options.required ? required_format(*format, functions, options.parallel)
                                  : optional_format(*format, functions, options.parallel)}});
}

}  // namespace espalier
