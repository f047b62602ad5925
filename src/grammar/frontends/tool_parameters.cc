#include "grammar/frontends/tool_parameters.h"

#include <boost/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/automata/regular_algebra.h"
#include "grammar/frontends/free_text.h"
#include "grammar/frontends/regex.h"
#include "grammar/schema/formats.h"
#include "grammar/schema/json_schema.h"

namespace espalier::grammar {
namespace {

namespace json = boost::json;

constexpr ParameterStyle kParameterStyles[] = {
    {"qwen_xml", "<parameter=", ">\n", ">\n", "</parameter>", "\n", true},
    {"minimax_xml", "<parameter name=\"", "\">", "\">", "</parameter>", "\n"},
    {"deepseek_xml", "<｜DSML｜parameter name=\"", "\" string=\"true\">", "\" string=\"false\">",
     "</｜DSML｜parameter>", "\n"},
    {"glm_xml", "<arg_key>", "</arg_key>\n<arg_value>", "</arg_key>\n<arg_value>", "</arg_value>",
     "\n"},
};
constexpr int kReferencesMax = 16;  // consecutive references
constexpr size_t kPathBytesMax = 4000;
constexpr int kChoicesMax = 1000;  // over all values, references followed

std::string_view text_of(const json::string& text) { return {text.data(), text.size()}; }

bool is_one_of(std::string_view key, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names)
    if (key == name) return true;
  return false;
}

bool admits(const json::object& schema, std::string_view type) {
  const json::value* stated = schema.if_contains("type");
  if (stated == nullptr) return false;
  if (stated->is_string()) return text_of(stated->get_string()) == type;
  if (!stated->is_array()) return false;
  for (const json::value& one : stated->get_array())
    if (one.is_string() && text_of(one.get_string()) == type) return true;
  return false;
}
bool only_texts(const json::object& schema) {
  const json::value* list = schema.if_contains("enum");
  if (list == nullptr || !list->is_array()) {
    const json::value* one = schema.if_contains("const");
    return one != nullptr && one->is_string();
  }
  for (const json::value& one : list->get_array())
    if (!one.is_string()) return false;
  return true;
}

// The languages of a value: as plain text, as JSON, or one of both.
struct ParameterLanguages {
  std::optional<ExprId> text, json;
};

// Lowers the values of parameters: strings without quotes, and all else as JSON. Borrows the Ir,
// the root schema, whose shared definitions references name, the style and the limits.
class ParameterValues {
 public:
  ParameterValues(Ir& ir, const json::object& root, const std::string& where,
                  const ParameterStyle& style, Whitespace whitespace, const GrammarLimits& limits)
      : ir_(ir),
        root_(root),
        where_(where),
        style_(style),
        whitespace_(whitespace),
        limits_(limits) {}

  Result<ParameterLanguages> value_of(const json::value& schema, const std::string& path) {
    const json::object* keywords = resolved(schema);
    if (keywords == nullptr) return as_json(schema, path);
    const bool stated = keywords->contains("type");
    if (admits(*keywords, "string") || (!stated && only_texts(*keywords)))
      return string_value(*keywords, path);
    for (const char* choice : {"anyOf", "oneOf"}) {
      const json::value* list = keywords->if_contains(choice);
      if (list == nullptr || !list->is_array() || stated) continue;
      bool has_text = false;
      int num_alternatives = 0;
      std::vector<ExprId> texts, others;
      for (const json::value& one : list->get_array()) {
        // References may be cyclic and may branch, so their number is bounded.
        if (++num_choices_ > kChoicesMax || path.size() > kPathBytesMax)
          return fail(unsupported(path.substr(0, 200) + ": so many choices in choices"));
        const json::object* inner = resolved(one);
        has_text |= inner != nullptr && (admits(*inner, "string") || only_texts(*inner));
        ESP_ASSIGN_OR_RETURN(
            const ParameterLanguages made,
            value_of(one, fmt::format("{}/{}/{}", path, choice, num_alternatives++)));
        if (made.text) texts.push_back(*made.text);
        if (made.json) others.push_back(*made.json);
      }
      if (!has_text) break;
      // Beside a string type, text that looks like JSON is a string as well; only null is kept
      // apart.
      for (const auto& member : *keywords)
        if (!is_one_of(member.key(), {choice, "title", "description", "default", "examples"}))
          return fail(unsupported(path + "/" + std::string(member.key())));
      return one_of(texts, others);
    }
    return as_json(schema, path);
  }

  // Text that cannot contain the end marker.
  ExprId text_language() {
    if (!text_)
      text_ =
          *free_text(ir_, {{std::string(style_.value_end), 0, TextTrigger::After::kForbidden}}, {});
    return *text_;
  }

  Status unsupported(const std::string& path) const {
    return error(StatusCode::kUnimplemented,
                 "{}{} is not supported where arguments are written one by one", where_, path);
  }

 private:
  ParameterLanguages one_of(const std::vector<ExprId>& texts, const std::vector<ExprId>& others) {
    ParameterLanguages out;
    if (!texts.empty()) out.text = ir_.choice(texts);
    if (!others.empty()) out.json = ir_.choice(others);
    return out;
  }

  const json::object* resolved(const json::value& schema) const {
    const json::value* at = &schema;
    for (int i = 0; i < kReferencesMax && at->is_object(); ++i) {
      const json::value* ref = at->get_object().if_contains("$ref");
      if (ref == nullptr) return &at->get_object();
      if (!ref->is_string() || !ref->get_string().starts_with("#")) return nullptr;
      // Only shared definitions have a location in a root of their own.
      json::error_code failed;
      const std::string_view pointer = text_of(ref->get_string()).substr(1);
      const json::value* target = nullptr;
      for (const char* shared : {"$defs", "definitions"}) {
        const std::string head = "/" + std::string(shared) + "/";
        if (!pointer.starts_with(head)) continue;
        const json::value* list = root_.if_contains(shared);
        if (list != nullptr) target = list->find_pointer(pointer.substr(head.size() - 1), failed);
      }
      if (target == nullptr) return nullptr;
      at = target;
    }
    return nullptr;
  }

  // Compiles the value with the shared definitions, so that references resolve.
  Result<ParameterLanguages> as_json(const json::value& schema, const std::string& path) {
    json::value alone = schema;
    if (alone.is_object())
      for (const char* shared : {"$defs", "definitions"})
        if (const json::value* list = root_.if_contains(shared);
            list != nullptr && !alone.get_object().contains(shared))
          alone.get_object()[shared] = *list;
    auto made = parse_json_schema(ir_, json::serialize(alone), whitespace_, {}, limits_);
    if (!made) return fail(made.error().with_context(where_ + path));
    return ParameterLanguages{.json = *made};
  }

  // Returns the strings that the keywords allow, without quotes, and null where it is allowed too.
  Result<ParameterLanguages> string_value(const json::object& keywords, const std::string& path) {
    std::optional<std::vector<std::string>> texts;
    ExprId language = text_language();
    int32_t bounds[2] = {0, kUnbounded};
    for (const auto& member : keywords) {
      const std::string_view key = member.key();
      const json::value& value = member.value();
      if (key == "enum" || key == "const") {
        const json::array list =
            key == "enum" && value.is_array() ? value.get_array() : json::array{value};
        texts.emplace();
        for (const json::value& one : list) {
          if (one.is_null()) continue;  // handled below, where the type allows it
          if (!one.is_string() ||
              text_of(one.get_string()).find(style_.value_end) != std::string_view::npos)
            return fail(unsupported(path + "/" + std::string(key) + ": " + json::serialize(one)));
          texts->emplace_back(text_of(one.get_string()));
        }
      } else if (key == "pattern" || key == "format") {
        if (!value.is_string())
          return fail(invalid_argument("{}{}/{} must be a string", where_, path, key));
        std::optional<std::string_view> pattern = text_of(value.get_string());
        if (key == "format") pattern = format_pattern(*pattern);
        if (!pattern) continue;  // an unknown format annotates
        auto expr = parse_regex(ir_, *pattern, {.search = true, .encode = {}});
        if (!expr) return fail(expr.error().with_context(where_ + path + "/" + std::string(key)));
        ESP_ASSIGN_OR_RETURN(language, intersection(ir_, language, *expr, limits_));
      } else if (key == "minLength" || key == "maxLength") {
        if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() > 5'000)
          return fail(unsupported(path + "/" + std::string(key) + ": more than 5000"));
        bounds[key == "maxLength" ? 1 : 0] = static_cast<int32_t>(value.get_int64());
      } else if (!is_one_of(key, {"type", "title", "description", "default", "examples", "$comment",
                                  "deprecated", "nullable"})) {
        return fail(unsupported(path + "/" + std::string(key)));
      }
    }
    if (texts) {
      if (texts->empty()) return fail(invalid_argument("{}{}: nothing is allowed", where_, path));
      const ExprId listed = ir_.literals(*texts);
      if (keywords.contains("pattern") || keywords.contains("format") || bounds[0] > 0 ||
          bounds[1] != kUnbounded)
        return fail(unsupported(path + ": a list of values with other bounds on them"));
      language = listed;
    } else if (bounds[0] > 0 || bounds[1] != kUnbounded) {
      const ExprId any = ir_.chars({{0, 0x10ffff}});
      ESP_ASSIGN_OR_RETURN(
          language, intersection(ir_, language, ir_.repeat(any, bounds[0], bounds[1]), limits_));
    }
    if (matches_nothing(ir_, language))
      return fail(invalid_argument("{}{}: no text is allowed", where_, path));
    ParameterLanguages out{.text = language};
    if (admits(keywords, "null")) out.json = ir_.literal("null");
    return out;
  }

  Ir& ir_;
  const json::object& root_;
  const std::string& where_;  // the path of the root, for messages
  const ParameterStyle& style_;
  const Whitespace whitespace_;
  const GrammarLimits& limits_;
  std::optional<ExprId> text_;
  int num_choices_ = 0;
};

// Lowers the list of parameters. Borrows the Ir, the root schema, the style and the limits.
class ParameterFormat {
 public:
  ParameterFormat(Ir& ir, const json::object& root, std::string where, const ParameterStyle& style,
                  Whitespace whitespace, const GrammarLimits& limits)
      : ir_(ir),
        root_(root),
        where_(std::move(where)),
        style_(style),
        limits_(limits),
        values_(ir, root, where_, style, whitespace, limits) {}

  Result<ExprId> parse() {
    for (const auto& member : root_)
      if (!is_one_of(member.key(), {"type", "properties", "required", "additionalProperties",
                                    "title", "description", "$defs", "definitions", "$schema",
                                    "$id", "$comment", "default", "examples", "strict"}))
        return fail(values_.unsupported("/" + std::string(member.key())));
    if (const json::value* type = root_.if_contains("type"); type != nullptr && *type != "object")
      return fail(invalid_argument("{}/type must be \"object\": arguments are one", where_));
    ESP_ASSIGN_OR_RETURN(const std::vector<std::string> required, required_names());
    const json::object none;
    const json::object* declared = &none;
    if (const json::value* properties = root_.if_contains("properties")) {
      if (!properties->is_object())
        return fail(invalid_argument("{}/properties must be an object", where_));
      declared = &properties->get_object();
    }
    ESP_ASSIGN_OR_RETURN(const std::optional<ParameterLanguages> undeclared,
                         undeclared_value(*declared));
    std::vector<ExprId> all;
    std::vector<std::string> names;
    for (const auto& member : *declared) {
      names.emplace_back(member.key());
      const std::string path = "/properties/" + names.back();
      ESP_ASSIGN_OR_RETURN(const ParameterLanguages value, values_.value_of(member.value(), path));
      ESP_ASSIGN_OR_RETURN(const ExprId one, parameter(names.back(), value));
      const bool must = std::find(required.begin(), required.end(), names.back()) != required.end();
      all.push_back(must ? one : ir_.optional(one));
    }
    for (const std::string& name : required) {
      if (declared->contains(name)) continue;
      if (!undeclared)
        return fail(
            invalid_argument("{}/required: '{}' is required, but not allowed", where_, name));
      ESP_ASSIGN_OR_RETURN(const ExprId one, parameter(name, *undeclared));
      all.push_back(one);
      names.push_back(name);
    }
    if (undeclared) {
      ESP_ASSIGN_OR_RETURN(ExprId key, parse_regex(ir_, "[^<>\"\\s]+"));
      if (!names.empty()) {
        ESP_ASSIGN_OR_RETURN(key, difference(ir_, key, ir_.literals(names), limits_));
      }
      all.push_back(ir_.star(written(key, *undeclared)));
    }
    return ir_.sequence(all);
  }

 private:
  Result<std::vector<std::string>> required_names() const {
    std::vector<std::string> out;
    const json::value* list = root_.if_contains("required");
    if (list == nullptr) return out;
    if (list->is_array()) {
      for (const json::value& name : list->get_array()) {
        if (!name.is_string()) break;
        out.emplace_back(text_of(name.get_string()));
      }
      if (out.size() == list->get_array().size()) return out;
    }
    return fail(invalid_argument("{}/required must be a list of strings", where_));
  }

  // Returns the language of an undeclared parameter; nothing when there is none.
  Result<std::optional<ParameterLanguages>> undeclared_value(const json::object& declared) {
    const json::value* additional = root_.if_contains("additionalProperties");
    const bool any =
        additional == nullptr ? declared.empty() : additional->is_bool() && additional->get_bool();
    if (any) return std::optional(ParameterLanguages{.text = values_.text_language()});
    if (additional == nullptr || additional->is_bool()) return std::optional<ParameterLanguages>();
    ESP_ASSIGN_OR_RETURN(const ParameterLanguages value,
                         values_.value_of(*additional, "/additionalProperties"));
    return std::optional(value);
  }

  ExprId written(ExprId key, const ParameterLanguages& value) {
    std::vector<ExprId> values;
    if (value.text && value.json && style_.behind_text == style_.behind_json) {
      values.push_back(behind(style_.behind_text, ir_.choice({*value.text, *value.json})));
    } else {
      if (value.text) values.push_back(behind(style_.behind_text, *value.text));
      if (value.json) values.push_back(behind(style_.behind_json, *value.json));
    }
    std::string end(style_.own_lines ? "\n" : "");
    end += style_.value_end;
    end += style_.after;
    return ir_.sequence({ir_.literal(style_.before), key, ir_.choice(values), ir_.literal(end)});
  }
  ExprId behind(std::string_view mark, ExprId value) {
    return ir_.sequence({ir_.literal(mark), value});
  }
  Result<ExprId> parameter(const std::string& name, const ParameterLanguages& value) {
    if (name.empty() || name.find_first_of("<>\"\n") != std::string::npos)
      return fail(values_.unsupported("/properties/" + name + ": such a name"));
    return written(ir_.literal(name), value);
  }

  Ir& ir_;
  const json::object& root_;
  const std::string where_;  // the path of the root, for messages
  const ParameterStyle& style_;
  const GrammarLimits& limits_;
  ParameterValues values_;
};

}  // namespace

const ParameterStyle* find_parameter_style(std::string_view name) {
  for (const ParameterStyle& style : kParameterStyles)
    if (style.name == name) return &style;
  return nullptr;
}

Result<ExprId> parameter_format(Ir& ir, const json::value& schema, const std::string& where,
                                const ParameterStyle& style, Whitespace whitespace,
                                const GrammarLimits& limits) {
  static const json::object any;
  if (schema.is_bool() && schema.get_bool())
    return ParameterFormat(ir, any, where, style, whitespace, limits).parse();
  if (!schema.is_object()) return fail(invalid_argument("{} must be an object", where));
  return ParameterFormat(ir, schema.get_object(), where, style, whitespace, limits).parse();
}

}  // namespace espalier::grammar
