// Tool calls as structural tags, with which a grammar constrains a model.
#include <boost/json.hpp>
#include <vector>

#include "text/parse/tool_call_formats.h"
#include "text/parse/tool_call_parser.h"

namespace espalier {
namespace {

namespace json = boost::json;
using Kind = ToolCallFormat::Kind;

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
    out.push_back({json::value_to<std::string>(function.at("name")), std::move(schema)});
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

// The content of a call's arguments.
json::object content(const std::string& style, json::value schema) {
  if (style == "qwen_xml")
    return {{"type", "qwen_xml_parameter"}, {"json_schema", std::move(schema)}};
  return {{"type", "json_schema"}, {"style", style}, {"json_schema", std::move(schema)}};
}

json::object written_tag(const ToolCallWriting& writing, const Function& f) {
  return {{"type", "tag"},
          {"begin", writing.head + f.name + writing.head_end},
          {"content", content(writing.style, f.schema)},
          {"end", writing.tail}};
}

json::object list_of(json::array tags, const char* separator, const ToolCallGrammarOptions& o) {
  return {{"type", "tags_with_separator"},   {"tags", std::move(tags)},
          {"separator", separator},          {"at_least_one", true},
          {"stop_after_first", !o.parallel}, {"max", o.max_calls > 0 ? o.max_calls : -1}};
}
json::object text(std::string value) {
  return {{"type", "const_string"}, {"value", std::move(value)}};
}
json::object sequence(json::array elements) {
  return {{"type", "sequence"}, {"elements", std::move(elements)}};
}

// All calls of a format that is written with marks for names.
json::object written_calls(const ToolCallWriting& writing, const std::vector<Function>& functions,
                           const ToolCallGrammarOptions& options) {
  json::array tags;
  for (const Function& f : functions) tags.push_back(written_tag(writing, f));
  return list_of(std::move(tags), writing.separator.c_str(), options);
}

bool is_written(const ToolCallFormat& format) { return !format.writing.head.empty(); }

// A call without text around it.
json::object required_format(const ToolCallFormat& format, const std::vector<Function>& functions,
                             const ToolCallGrammarOptions& options) {
  if (is_written(format)) {
    const ToolCallWriting& writing = format.writing;
    json::object calls = written_calls(writing, functions, options);
    if (writing.group_begin.empty()) return calls;
    return sequence({text(writing.group_begin), std::move(calls), text(writing.group_end)});
  }
  json::array tags;
  const bool is_list = format.end.empty() && format.name != "llama3";
  for (const Function& f : functions)
    tags.push_back(is_list ? call_tag(format, f, "", "")
                           : call_tag(format, f, format.end.empty() ? "" : format.begin + "\n",
                                      format.end.empty() ? "" : "\n" + format.end));
  if (!is_list) return list_of(std::move(tags), format.end.empty() ? "; " : "\n", options);
  return sequence({text(format.begin.empty() ? "[" : format.begin + " ["),
                   list_of(std::move(tags), ", ", options), text("]")});
}

// Free text in which a mark opens a call.
json::object optional_format(const ToolCallFormat& format, const std::vector<Function>& functions,
                             const ToolCallGrammarOptions& options) {
  const ToolCallWriting& writing = format.writing;
  json::array tags;
  if (is_written(format) && !writing.group_begin.empty()) {
    tags.push_back(json::object{{"type", "tag"},
                                {"begin", writing.group_begin},
                                {"content", written_calls(writing, functions, options)},
                                {"end", writing.group_end}});
  }
  if (is_written(format)) {  // parsers read a call without a group too
    for (const Function& f : functions) tags.push_back(written_tag(writing, f));
  } else if (format.end.empty() && format.name != "llama3") {
    json::array calls;
    for (const Function& f : functions) calls.push_back(call_tag(format, f, "", ""));
    tags.push_back(
        json::object{{"type", "tag"},
                     {"begin", format.begin},
                     {"content", sequence({text(" ["), list_of(std::move(calls), ", ", options)})},
                     {"end", "]"}});
  } else {
    for (const Function& f : functions)
      tags.push_back(call_tag(format, f, format.begin + (format.end.empty() ? "" : "\n"),
                              format.end.empty() ? "" : "\n" + format.end));
  }
  json::array triggers = {json::string(is_written(format) ? writing.trigger : format.begin)};
  if (!writing.call_trigger.empty()) triggers.emplace_back(writing.call_trigger);
  return {{"type", "triggered_tags"},
          {"triggers", std::move(triggers)},
          {"tags", std::move(tags)},
          {"stop_after_first", !options.parallel}};
}

// Whether a grammar can write the format's calls.
bool has_grammar(const ToolCallFormat& format) {
  if (format.kind == Kind::kNamed || format.kind == Kind::kMarkup)
    return !format.writing.style.empty();
  return format.kind == Kind::kJson && !format.key_is_name && format.name_member == "name" &&
         format.other_begins.empty();
}

}  // namespace

bool json_when_required(std::string_view name) {
  const ToolCallFormat* format = find_tool_call_format(name);
  return format != nullptr && !has_grammar(*format);
}

std::string tool_call_structural_tag(std::string_view name, const json::value& tools,
                                     const ToolCallGrammarOptions& options) {
  const ToolCallFormat* format = find_tool_call_format(name);
  if (format == nullptr || tools.get_array().empty()) return {};
  if (options.required && !has_grammar(*format)) format = find_tool_call_format("json");
  if (!options.required && (format->name == "json" || !has_grammar(*format) || !any_strict(tools)))
    return {};
  const std::vector<Function> functions = functions_of(tools, options.required);
  return json::serialize(
      json::object{{"format", options.required ? required_format(*format, functions, options)
                                               : optional_format(*format, functions, options)}});
}

}  // namespace espalier
