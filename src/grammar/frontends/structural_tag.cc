#include "grammar/frontends/structural_tag.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <vector>

#include "grammar/frontends/ebnf.h"
#include "grammar/frontends/free_text.h"
#include "grammar/frontends/regex.h"
#include "grammar/frontends/tool_parameters.h"
#include "grammar/schema/json_schema.h"
#include "grammar/schema/json_text.h"

namespace espalier::grammar {
namespace {

namespace json = boost::json;
using After = TextTrigger::After;

constexpr int kFormatDepthMax = 64;     // nesting of formats
constexpr int64_t kMaxCount = 100'000;  // of what repeats

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

// An object of the source with its path for messages.
class Part {
 public:
  Part(const json::object& object, std::string where) : object_(object), where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  const json::value* find(std::string_view name) const {
    const json::value* member = object_.if_contains(name);
    return member == nullptr || member->is_null() ? nullptr : member;
  }
  std::string at(std::string_view name) const { return fmt::format("{}.{}", where_, name); }

  Result<std::string> text(std::string_view name) const {
    const json::value* member = find(name);
    if (member == nullptr || !member->is_string())
      return fail(invalid_argument("{} must be a string", at(name)));
    return std::string(view(member->get_string()));
  }
  Result<bool> flag(std::string_view name) const {
    const json::value* member = find(name);
    if (member == nullptr) return false;
    if (!member->is_bool()) return fail(invalid_argument("{} must be true or false", at(name)));
    return member->get_bool();
  }
  // A string counts as a list of one; an absent member as an empty list.
  Result<std::vector<std::string>> texts(std::string_view name) const {
    std::vector<std::string> out;
    const json::value* member = find(name);
    if (member == nullptr) return out;
    if (member->is_string()) return std::vector{std::string(view(member->get_string()))};
    if (member->is_array()) {
      for (const json::value& item : member->get_array()) {
        if (!item.is_string()) break;
        out.emplace_back(view(item.get_string()));
      }
      if (out.size() == member->get_array().size()) return out;
    }
    return fail(invalid_argument("{} must be a list of strings", at(name)));
  }
  Result<std::vector<Part>> objects(std::string_view name) const {
    const json::value* member = find(name);
    if (member == nullptr || !member->is_array() || member->get_array().empty())
      return fail(invalid_argument("{} must be a list of objects, not empty", at(name)));
    std::vector<Part> out;
    for (const json::value& item : member->get_array()) {
      const std::string where = fmt::format("{}[{}]", at(name), out.size());
      if (!item.is_object()) return fail(invalid_argument("{} must be an object", where));
      out.emplace_back(item.get_object(), where);
    }
    return out;
  }
  Result<Part> object(std::string_view name) const {
    const json::value* member = find(name);
    if (member == nullptr || !member->is_object())
      return fail(invalid_argument("{} must be an object", at(name)));
    return Part(member->get_object(), at(name));
  }
  // Rejects members outside the list, which would otherwise be ignored silently.
  Status only(std::initializer_list<std::string_view> names) const {
    for (const auto& member : object_) {
      const std::string_view key(member.key().data(), member.key().size());
      if (std::find(names.begin(), names.end(), key) == names.end())
        return error(StatusCode::kUnimplemented, "{} is not supported", at(key));
    }
    return {};
  }

 private:
  const json::object& object_;  // borrowed from the source
  std::string where_;
};

struct Tag {
  std::string begin;
  ExprId rest = 0;  // content and end
};

using Ends = std::vector<std::string>;

Result<ExprId> named(Result<ExprId> made, const std::string& where) {
  if (!made) return fail(made.error().with_context(where));
  return made;
}

constexpr std::string_view kLeafTypes[] = {"const_string", "json_schema", "qwen_xml_parameter",
                                           "regex", "grammar"};

// Lowers formats that contain no other format. Borrows the Ir and the limits.
class LeafFormats {
 public:
  LeafFormats(Ir& ir, Whitespace whitespace, const GrammarLimits& limits)
      : ir_(ir), whitespace_(whitespace), limits_(limits) {}

  static bool knows(std::string_view type) {
    return std::ranges::find(kLeafTypes, type) != std::end(kLeafTypes);
  }

  // REQUIRES: knows(type).
  Result<ExprId> lower(const Part& part, const std::string& type) {
    if (type == "const_string") {
      ESP_RETURN_IF_ERROR(part.only({"type", "value"}));
      ESP_ASSIGN_OR_RETURN(const std::string value, part.text("value"));
      return ir_.literal(value);
    }
    if (type == "json_schema") return json_schema(part);
    if (type == "qwen_xml_parameter") {
      ESP_RETURN_IF_ERROR(part.only({"type", "json_schema"}));
      return parameters(part, *find_parameter_style("qwen_xml"));
    }
    if (type == "regex") {
      ESP_RETURN_IF_ERROR(part.only({"type", "pattern"}));
      ESP_ASSIGN_OR_RETURN(const std::string pattern, part.text("pattern"));
      return named(parse_regex(ir_, pattern), part.at("pattern"));
    }
    ESP_RETURN_IF_ERROR(part.only({"type", "grammar"}));
    ESP_ASSIGN_OR_RETURN(const std::string text, part.text("grammar"));
    const auto root = parse_ebnf(ir_, text, "root", limits_);
    if (!root) return fail(root.error().with_context(part.at("grammar")));
    return ir_.rule(*root);
  }

  Result<ExprId> schema_expr(const json::value& schema, const std::string& where) {
    const std::string text =
        schema.is_string() ? std::string(view(schema.get_string())) : json::serialize(schema);
    return named(parse_json_schema(ir_, text, whitespace_, {}, limits_), where);
  }

 private:
  Result<ExprId> parameters(const Part& part, const ParameterStyle& style) {
    const json::value* schema = part.find("json_schema");
    if (schema == nullptr) return fail(invalid_argument("{} is missing", part.at("json_schema")));
    return parameter_format(ir_, *schema, part.at("json_schema"), style, whitespace_, limits_);
  }

  Result<ExprId> json_schema(const Part& part) {
    ESP_RETURN_IF_ERROR(part.only({"type", "json_schema", "style"}));
    if (const json::value* style = part.find("style"); style != nullptr && *style != "json") {
      const ParameterStyle* const known =
          style->is_string() ? find_parameter_style(view(style->get_string())) : nullptr;
      if (known != nullptr) return parameters(part, *known);
      return fail(error(StatusCode::kUnimplemented,
                        "{} {} is not supported, only \"json\", \"qwen_xml\", \"minimax_xml\", "
                        "\"deepseek_xml\" and \"glm_xml\"",
                        part.at("style"), json::serialize(*style)));
    }
    const json::value* schema = part.find("json_schema");
    if (schema == nullptr) return fail(invalid_argument("{} is missing", part.at("json_schema")));
    return schema_expr(*schema, part.at("json_schema"));
  }

  Ir& ir_;
  const Whitespace whitespace_;
  const GrammarLimits& limits_;
};

// Text in which tags may stand. Borrows the Ir and the limits.
class TagText {
 public:
  TagText(Ir& ir, const GrammarLimits& limits) : ir_(ir), limits_(limits) {}

  // Each trigger opens the tags that begin with it; each tag has exactly one trigger.
  Result<ExprId> triggered(const Part& part, const std::vector<Tag>& tags,
                           const std::vector<std::string>& triggers,
                           const std::vector<std::string>& excludes, const Ends& ends,
                           bool at_least_one, bool stop_after_first) {
    if (triggers.empty()) return fail(invalid_argument("{} is missing", part.at("triggers")));
    std::vector<bool> opened(tags.size(), false);
    std::vector<TextTrigger> out;
    std::vector<ExprId> first;  // with at_least_one the text begins with a tag
    const ExprId after = stop_after_first && !ends.empty() ? ir_.literals(ends) : ir_.empty();
    for (const std::string& trigger : triggers) {
      ESP_RETURN_IF_ERROR(limits_.check_time());
      std::vector<ExprId> alternatives;
      for (size_t i = 0; i < tags.size(); ++i) {
        if (!tags[i].begin.starts_with(trigger)) continue;
        if (!opened[i])
          first.push_back(ir_.sequence({ir_.literal(tags[i].begin), tags[i].rest, after}));
        opened[i] = true;
        alternatives.push_back(
            ir_.sequence({ir_.literal(std::string_view(tags[i].begin).substr(trigger.size())),
                          tags[i].rest, after}));
      }
      if (alternatives.empty())
        return fail(invalid_argument("{}: no tag begins with the trigger '{}'", part.at("triggers"),
                                     trigger));
      out.push_back({trigger, ir_.choice(alternatives),
                     stop_after_first ? After::kEnds : After::kTextGoesOn});
    }
    for (size_t i = 0; i < tags.size(); ++i)
      if (!opened[i])
        return fail(invalid_argument("{}: the tag '{}' begins with no trigger", part.at("triggers"),
                                     tags[i].begin));
    if (at_least_one && stop_after_first) return ir_.choice(first);
    ESP_ASSIGN_OR_RETURN(const ExprId text,
                         text_until(std::move(out), excludes, ends, {.may_end = true}, part));
    return at_least_one ? ir_.sequence({ir_.choice(first), text}) : text;
  }

  // Text up to one of the ends, which it consumes; to its own end where there are none.
  Result<ExprId> text_until(std::vector<TextTrigger> triggers,
                            const std::vector<std::string>& excludes, const Ends& ends,
                            FreeTextOptions options, const Part& part) {
    for (const std::string& text : excludes) triggers.push_back({text, 0, After::kForbidden});
    // An empty end lets the text end anywhere; the other ends still end it where they are written.
    const bool may_end_anywhere = std::ranges::find(ends, "") != ends.end();
    for (const std::string& text : ends) {
      if (!text.empty()) triggers.push_back({text, ir_.empty(), After::kEnds});
    }
    if (!ends.empty()) options.may_end = may_end_anywhere;
    return named(free_text(ir_, triggers, options), part.where());
  }

 private:
  Ir& ir_;
  const GrammarLimits& limits_;
};

// Parses the source. Formats may contain formats. Borrows the Ir and the limits.
class TagParser {
 public:
  TagParser(Ir& ir, Whitespace whitespace, const GrammarLimits& limits)
      : ir_(ir), leaves_(ir, whitespace, limits), text_(ir, limits) {}

  Result<ExprId> parse(const Part& source) {
    if (source.find("format") != nullptr) {
      ESP_RETURN_IF_ERROR(source.only({"type", "format"}));
      ESP_ASSIGN_OR_RETURN(const Part inner, source.object("format"));
      return format(inner, nullptr);
    }
    ESP_RETURN_IF_ERROR(source.only({"type", "structures", "triggers", "at_least_one"}));
    ESP_ASSIGN_OR_RETURN(const std::vector<Part> structures, source.objects("structures"));
    std::vector<Tag> tags;
    for (const Part& part : structures) {
      ESP_RETURN_IF_ERROR(part.only({"begin", "schema", "end"}));
      Tag& tag = tags.emplace_back();
      ESP_ASSIGN_OR_RETURN(tag.begin, part.text("begin"));
      ESP_ASSIGN_OR_RETURN(const std::string end, part.text("end"));
      const json::value* schema = part.find("schema");
      ESP_ASSIGN_OR_RETURN(
          const ExprId content,
          leaves_.schema_expr(schema != nullptr ? *schema : json::value(true), part.at("schema")));
      tag.rest = ir_.sequence({content, ir_.literal(end)});
    }
    ESP_ASSIGN_OR_RETURN(const auto triggers, source.texts("triggers"));
    ESP_ASSIGN_OR_RETURN(const bool at_least_one, source.flag("at_least_one"));
    return text_.triggered(source, tags, triggers, {}, {}, at_least_one, false);
  }

 private:
  // `ends`: where the format is the whole content of a tag, the strings that end the tag, which the
  // format then consumes. Null elsewhere.
  Result<ExprId> format(const Part& part, const Ends* ends) {
    if (++depth_ > kFormatDepthMax)
      return fail(invalid_argument("{}: formats are nested too deep", part.where()));
    auto out = format_inside(part, ends);
    --depth_;
    return out;
  }

  Result<ExprId> format_inside(const Part& part, const Ends* ends) {
    ESP_ASSIGN_OR_RETURN(const std::string type, part.text("type"));
    if (type == "any_text") {
      ESP_RETURN_IF_ERROR(part.only({"type", "excludes"}));
      ESP_ASSIGN_OR_RETURN(const auto excludes, part.texts("excludes"));
      return text_.text_until({}, excludes, ends != nullptr ? *ends : Ends(), {}, part);
    }
    if (type == "triggered_tags") return triggered_tags(part, ends != nullptr ? *ends : Ends());
    ESP_ASSIGN_OR_RETURN(const ExprId content, closed_format(part, type));
    if (ends == nullptr) return content;
    return ir_.sequence({content, ir_.literals(*ends)});
  }

  // Formats whose own grammar determines where they end.
  Result<ExprId> closed_format(const Part& part, const std::string& type) {
    if (LeafFormats::knows(type)) return leaves_.lower(part, type);
    if (type == "sequence" || type == "or") return elements(part, type == "or");
    if (type == "optional") return repeated(part, 0, 1);
    if (type == "star") return repeated(part, 0, kUnbounded);
    if (type == "plus") return repeated(part, 1, kUnbounded);
    if (type == "repeat") return counted(part);
    if (type == "tag") {
      ESP_ASSIGN_OR_RETURN(const Tag tag, tag_of(part));
      return ir_.sequence({ir_.literal(tag.begin), tag.rest});
    }
    if (type == "tags_with_separator") return separated(part);
    return fail(error(StatusCode::kUnimplemented, "{}: a format of type '{}' is not supported",
                      part.where(), type));
  }

  Result<ExprId> elements(const Part& part, bool any) {
    ESP_RETURN_IF_ERROR(part.only({"type", "elements"}));
    ESP_ASSIGN_OR_RETURN(const std::vector<Part> parts, part.objects("elements"));
    std::vector<ExprId> out;
    for (const Part& one : parts) {
      ESP_ASSIGN_OR_RETURN(out.emplace_back(), format(one, nullptr));
    }
    return any ? ir_.choice(out) : ir_.sequence(out);
  }

  Result<ExprId> repeated(const Part& part, int32_t min, int32_t max) {
    ESP_RETURN_IF_ERROR(part.only({"type", "content"}));
    ESP_ASSIGN_OR_RETURN(const Part content, part.object("content"));
    ESP_ASSIGN_OR_RETURN(const ExprId one, format(content, nullptr));
    return ir_.repeat(one, min, max);
  }

  Result<ExprId> counted(const Part& part) {
    ESP_RETURN_IF_ERROR(part.only({"type", "content", "min", "max"}));
    int32_t bounds[2] = {0, kUnbounded};
    for (const size_t i : {0u, 1u}) {
      const char* const name = i == 0 ? "min" : "max";
      const json::value* value = part.find(name);
      if (value == nullptr) continue;
      if (i == 1 && *value == kUnbounded) continue;  // -1: no maximum
      if (!value->is_int64() || value->get_int64() < bounds[0] || value->get_int64() > kMaxCount)
        return fail(invalid_argument("{} must be a count, min at most max", part.at(name)));
      bounds[i] = static_cast<int32_t>(value->get_int64());
    }
    ESP_ASSIGN_OR_RETURN(const Part content, part.object("content"));
    ESP_ASSIGN_OR_RETURN(const ExprId one, format(content, nullptr));
    return ir_.repeat(one, bounds[0], bounds[1]);
  }

  Result<Tag> tag_of(const Part& part) {
    ESP_RETURN_IF_ERROR(part.only({"type", "begin", "content", "end"}));
    Tag tag;
    ESP_ASSIGN_OR_RETURN(tag.begin, part.text("begin"));
    ESP_ASSIGN_OR_RETURN(Ends ends, part.texts("end"));
    if (ends.empty()) return fail(invalid_argument("{} is missing", part.at("end")));
    ESP_ASSIGN_OR_RETURN(const Part content, part.object("content"));
    ESP_ASSIGN_OR_RETURN(tag.rest, format(content, &ends));
    return tag;
  }

  Result<std::vector<Tag>> tags_of(const Part& part) {
    ESP_ASSIGN_OR_RETURN(const std::vector<Part> parts, part.objects("tags"));
    std::vector<Tag> out;
    for (const Part& one : parts) {
      if (const json::value* type = one.find("type"); type != nullptr && *type != "tag")
        return fail(invalid_argument("{} must be \"tag\"", one.at("type")));
      ESP_ASSIGN_OR_RETURN(out.emplace_back(), tag_of(one));
    }
    return out;
  }

  Result<ExprId> triggered_tags(const Part& part, const Ends& ends) {
    ESP_RETURN_IF_ERROR(
        part.only({"type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes"}));
    ESP_ASSIGN_OR_RETURN(const std::vector<Tag> tags, tags_of(part));
    ESP_ASSIGN_OR_RETURN(const auto triggers, part.texts("triggers"));
    ESP_ASSIGN_OR_RETURN(const auto excludes, part.texts("excludes"));
    ESP_ASSIGN_OR_RETURN(const bool at_least_one, part.flag("at_least_one"));
    ESP_ASSIGN_OR_RETURN(const bool stop, part.flag("stop_after_first"));
    return text_.triggered(part, tags, triggers, excludes, ends, at_least_one, stop);
  }

  Result<ExprId> separated(const Part& part) {
    ESP_RETURN_IF_ERROR(
        part.only({"type", "tags", "separator", "at_least_one", "stop_after_first", "max"}));
    ESP_ASSIGN_OR_RETURN(const std::vector<Tag> tags, tags_of(part));
    int32_t max_more = kUnbounded;
    if (const json::value* max = part.find("max"); max != nullptr && *max != kUnbounded) {
      if (!max->is_int64() || max->get_int64() < 1 || max->get_int64() > kMaxCount)
        return fail(
            invalid_argument("{} must be a count from 1 to {}, or -1", part.at("max"), kMaxCount));
      max_more = static_cast<int32_t>(max->get_int64()) - 1;
    }
    std::string separator;
    if (part.find("separator") != nullptr) {
      ESP_ASSIGN_OR_RETURN(separator, part.text("separator"));
    }
    ESP_ASSIGN_OR_RETURN(const bool at_least_one, part.flag("at_least_one"));
    ESP_ASSIGN_OR_RETURN(const bool stop, part.flag("stop_after_first"));
    std::vector<ExprId> alternatives;
    for (const Tag& tag : tags)
      alternatives.push_back(ir_.sequence({ir_.literal(tag.begin), tag.rest}));
    const ExprId one = ir_.choice(alternatives);
    const ExprId more = ir_.repeat(ir_.sequence({ir_.literal(separator), one}), 0, max_more);
    const ExprId all = stop ? one : ir_.sequence({one, more});
    return at_least_one ? all : ir_.optional(all);
  }

  Ir& ir_;
  LeafFormats leaves_;
  TagText text_;
  int depth_ = 0;
};

}  // namespace

Result<ExprId> parse_structural_tag(Ir& ir, std::string_view source, Whitespace whitespace,
                                    const GrammarLimits& limits) {
  ESP_ASSIGN_OR_RETURN(const json::value value, parse_json_text(source, "structural_tag"));
  if (!value.is_object()) return fail(invalid_argument("structural_tag must be a JSON object"));
  return TagParser(ir, whitespace, limits).parse(Part(value.get_object(), "structural_tag"));
}

}  // namespace espalier::grammar
