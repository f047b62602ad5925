// A format of tool calls is held by a grammar and read by a parser, which share no code: whatever
// the grammar lets a model write, the parser reads back, in pieces of any size, as calls of tools
// that there are with arguments that their schemas allow.
//   ESPALIER_TOOL_WALKS   texts for each format and choice (12)
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/rng.h"
#include "grammar/conformance.h"
#include "grammar/grammar.h"
#include "grammar/schema/validator.h"
#include "real_data.h"
#include "text/parse/tool_call_parser.h"

namespace espalier {
namespace {

namespace json = boost::json;

constexpr const char* kTools = R"([
  {"type": "function", "function": {"name": "get_weather", "strict": true, "parameters":
    {"type": "object", "required": ["city"], "additionalProperties": false, "properties": {
      "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
      "unit": {"enum": ["C", "F"]}, "exact": {"type": "boolean"},
      "note": {"type": ["string", "null"], "maxLength": 9}}}}},
  {"type": "function", "function": {"name": "search-all.v2", "strict": true, "parameters":
    {"type": "object", "required": ["filter"], "additionalProperties": false, "properties": {
      "filter": {"type": "object", "required": ["range"], "additionalProperties": false,
        "properties": {"tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
                       "range": {"$ref": "#/$defs/range"}}},
      "deep": {"$ref": "#/$defs/tree"},
      "near": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
      "$defs": {"range": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "number"}],
                          "items": false, "minItems": 2},
                "tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}}},
  {"type": "function", "function": {"name": "set", "strict": true, "parameters":
    {"type": "object", "properties": {"key": {"type": "string", "pattern": "^[a-z<]+$"}},
     "additionalProperties": {"type": "integer"}}}},
  {"type": "function", "function": {"name": "now", "strict": true, "parameters":
    {"type": "object", "properties": {}, "additionalProperties": false}}},
  {"type": "function", "function": {"name": "free", "parameters":
    {"type": "object", "properties": {"n": {"type": "integer"}}}}}
])";

// What a parser might take for something else where it stands inside a call or a text.
const std::vector<std::string> kTraps = {"</tool_call>",
                                         "<tool_call>",
                                         "<tool_call>\n",
                                         "<function=",
                                         "</function>",
                                         "<parameter=city>",
                                         "</parameter",
                                         "\n</parameter",
                                         "[TOOL_CALLS]",
                                         "<arg_value>",
                                         "</arg_value",
                                         "<arg_key>",
                                         "<invoke name=\"now\">",
                                         "</invoke>",
                                         "<tool_sep>",
                                         "</｜DSML｜parameter",
                                         "&lt;",
                                         "[TOOL_CALLS] [",
                                         "[ARGS]",
                                         "<|python_tag|>",
                                         "<｜tool▁calls▁begin｜>",
                                         "<｜tool▁calls▁end｜>",
                                         "<｜tool▁call▁begin｜>",
                                         "<｜tool▁call▁end｜>",
                                         "<｜tool▁sep｜>",
                                         "\n```",
                                         "```json\n{",
                                         "}",
                                         "]}",
                                         "\\\"}",
                                         "\\\\",
                                         "\\u00e9",
                                         "; ",
                                         ", ",
                                         "{\"name\": \"now\"",
                                         "None",
                                         "null",
                                         "true",
                                         "'",
                                         "\"",
                                         "\n",
                                         "\n\n",
                                         "é漢🂡"};

struct Calls {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  friend bool operator==(const Calls&, const Calls&) = default;
};

Calls parsed(ToolCallParser& parser, std::string_view text, const std::vector<size_t>& cuts) {
  Calls out;
  const auto add = [&](const ToolCallParts& parts) {
    out.text += parts.text;
    for (const auto& piece : parts.pieces) {
      if (!piece.name.empty()) out.calls.emplace_back(piece.name, "");
      ASSERT_EQ(static_cast<size_t>(piece.index) + 1, out.calls.size());
      out.calls.back().second += piece.arguments;
    }
  };
  size_t from = 0;
  for (const size_t cut : cuts) {
    add(parser.push(text.substr(from, cut - from)));
    from = cut;
  }
  add(parser.push(text.substr(from)));
  add(parser.finish());
  return out;
}

class Walk {
 public:
  Walk(std::shared_ptr<grammar::CompiledGrammar> compiled, std::vector<std::string> marks,
       uint64_t seed)
      : matcher_(std::move(compiled)), marks_(std::move(marks)), rng_(seed) {
    for (const std::string& mark : marks_)
      if (mark.starts_with("</") && (mark.ends_with("parameter>") || mark.ends_with("arg_value>")))
        value_end_ = mark;
    if (value_end_ == "</parameter>") value_end_ = "\n</parameter>";
    words_.resize(static_cast<size_t>(matcher_.words_per_mask()));
  }

  // A text of the grammar, or nothing where it does not come to an end.
  std::optional<std::string> text(size_t free_bytes, size_t bytes_max) {
    std::string out;
    while (out.size() < bytes_max) {
      const bool may_end = matcher_.can_end();
      const bool free = out.size() < free_bytes;
      if (may_end && (!free || rng_.below(12) == 0)) return out;
      if (free && rng_.below(3) == 0) {
        const auto& list = rng_.below(2) == 0 && !marks_.empty() ? marks_ : kTraps;
        // Often the first mark, which opens calls.
        const size_t which = rng_.below(list.size());
        const std::string& trap = list[rng_.below(2) == 0 ? 0 : which];
        if (matcher_.accept_bytes(trap)) {
          out += trap;
          continue;
        }
      }
      if (!matcher_.fill_mask(words_)) return may_end ? std::optional(out) : std::nullopt;
      const uint8_t byte = free ? any_byte() : closing_byte(out);
      if (!matcher_.accept_token(byte)) return std::nullopt;
      out += static_cast<char>(byte);
    }
    return std::nullopt;
  }

 private:
  bool allowed(uint8_t byte) const { return words_[byte / 32] >> (byte % 32) & 1; }
  uint8_t any_byte() {
    auto byte = static_cast<uint8_t>(rng_.below(3) == 0 ? rng_.below(256) : 0x20 + rng_.below(95));
    while (!allowed(byte)) ++byte;
    return byte;
  }
  uint8_t closing_byte(std::string_view text) {
    const std::string forced = matcher_.forced_bytes(1);
    if (!forced.empty()) return static_cast<uint8_t>(forced[0]);
    // A text without quotes ends by its mark alone.
    const std::string_view end = value_end_;
    size_t begun = end.size() - 1;
    while (!text.ends_with(end.substr(0, begun))) --begun;
    if (allowed(static_cast<uint8_t>(end[begun]))) return static_cast<uint8_t>(end[begun]);
    for (const char c : std::string("\"}]\n<0123456789tfn;[{"))
      if (allowed(static_cast<uint8_t>(c)) && rng_.below(16) != 0) return static_cast<uint8_t>(c);
    return any_byte();
  }

  grammar::Matcher matcher_;
  const std::vector<std::string> marks_;
  std::string value_end_ = "\n</parameter>";  // of a value that is text without quotes
  Rng rng_;
  std::vector<uint32_t> words_;
};

enum class Choice : uint8_t { kAuto, kRequired, kNamed };

json::value tools_of(Choice choice, size_t named) {
  json::value all = json::parse(kTools);
  if (choice != Choice::kNamed) return all;
  return json::array{all.get_array()[named]};
}

// The schema that holds for a call of `name`, or "": any object.
std::string schema_for(const json::value& tools, std::string_view name, Choice choice) {
  for (const json::value& tool : tools.get_array()) {
    const json::object& function = tool.at("function").get_object();
    if (function.at("name").get_string() != name) continue;
    const bool held = choice != Choice::kAuto || function.contains("strict");
    return held ? json::serialize(function.at("parameters")) : R"({"type": "object"})";
  }
  return "";
}

void expect_valid(const std::string& schema, const std::string& arguments) {
  json::error_code failed;
  const json::value value = json::parse(arguments, failed, {}, {.max_depth = 400});
  ASSERT_FALSE(failed) << arguments << ": " << failed.message();
  const auto document = grammar::SchemaDocument::parse(schema, {});
  ASSERT_TRUE(document) << document.error().message();
  grammar::SchemaValidator validator(**document);
  const auto valid = validator.valid(value, &(*document)->root(), grammar::kNoScope);
  ASSERT_TRUE(valid) << valid.error().message();
  EXPECT_TRUE(*valid) << arguments << " against " << schema;
}

struct Setting {
  std::string format;
  Choice choice;
  bool parallel;
  size_t named;
};

void walk_format(const Setting& setting, int64_t walks) {
  const bool required = setting.choice != Choice::kAuto;
  const json::value tools = tools_of(setting.choice, setting.named);
  const std::string tag = tool_call_structural_tag(
      setting.format, tools, {.required = required, .parallel = setting.parallel});
  // As the server has it: what cannot be held is not, and comes as JSON where it is required.
  const bool held = required || (!json_when_required(setting.format) && setting.format != "json");
  ASSERT_EQ(!tag.empty(), held);
  if (!held) return;
  const auto compiled = compile_grammar(
      {.kind = grammar::GrammarSpec::Kind::kStructuralTag, .source = tag}, grammar::byte_trie());
  ASSERT_TRUE(compiled) << compiled.error().message();
  std::vector<std::string> names;
  for (const json::value& tool : tools.get_array())
    names.emplace_back(tool.at("function").at("name").get_string());
  const std::string reader = json_when_required(setting.format) ? "json" : setting.format;
  const auto shared = std::make_shared<const json::value>(tools);
  int64_t num_ended = 0, num_calls = 0;
  for (int64_t i = 0; i < walks; ++i) {
    SCOPED_TRACE(testing::Message() << "walk " << i);
    Rng rng(static_cast<uint64_t>(i) * 7919 + setting.named);
    Walk walk(*compiled, tool_call_marks(setting.format), rng.below(1u << 30));
    const auto text = walk.text(20 + rng.below(400), 20'000);
    if (!text) continue;
    ++num_ended;
    SCOPED_TRACE(*text);
    const auto read = [&](const std::vector<size_t>& cuts) {
      return parsed(**make_tool_call_parser(reader, names, shared), *text, cuts);
    };
    const Calls whole = read({});
    std::vector<size_t> every(text->size());
    for (size_t at = 0; at < every.size(); ++at) every[at] = at;
    EXPECT_EQ(read(every).calls, whole.calls);
    EXPECT_EQ(read(every).text, whole.text);
    for (size_t at = 0; at < text->size(); at += 1 + text->size() / 64) {
      const Calls cut = read({at});
      EXPECT_EQ(cut, whole) << "cut at " << at;
    }
    for (const auto& [name, arguments] : whole.calls) {
      const std::string schema = schema_for(tools, name, setting.choice);
      ASSERT_NE(schema, "") << name;
      expect_valid(schema, arguments);
    }
    num_calls += std::ssize(whole.calls);
    if (required) {
      EXPECT_GE(whole.calls.size(), 1u);
      EXPECT_EQ(whole.text, "");
    }
    if (required && !setting.parallel) {
      EXPECT_EQ(whole.calls.size(), 1u);
    }
    // A mark in the text that is left would be a call that was not read.
    const std::vector<std::string> marks = tool_call_marks(setting.format);
    if (!required && !marks.empty()) {
      EXPECT_EQ(whole.text.find(marks[0]), std::string::npos);
    }
  }
  EXPECT_GT(num_ended, 0);
  EXPECT_GT(num_calls, 0);
}

class ToolCalls : public testing::TestWithParam<std::string> {};

TEST_P(ToolCalls, AreReadBackAsTheGrammarHoldsThem) {
  const int64_t walks = real_data::count_from_environment("ESPALIER_TOOL_WALKS", 12);
  for (const bool parallel : {true, false}) {
    for (const Choice choice : {Choice::kAuto, Choice::kRequired}) {
      SCOPED_TRACE(testing::Message() << (choice == Choice::kAuto ? "auto" : "required")
                                      << (parallel ? ", parallel" : ""));
      walk_format({GetParam(), choice, parallel, 0}, walks);
    }
  }
  for (size_t named = 0; named < 5; ++named) {
    SCOPED_TRACE(testing::Message() << "named " << named);
    walk_format({GetParam(), Choice::kNamed, false, named}, walks);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryFormat, ToolCalls, testing::ValuesIn(tool_call_format_names()),
                         [](const auto& one) {
                           std::string name = one.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace espalier
