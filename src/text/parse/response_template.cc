#include "text/parse/response_template.h"

#include <algorithm>
#include <boost/json.hpp>
#include <initializer_list>

#include "text/parse/parameter_types.h"
#include "text/parse/parameter_value.h"

namespace espalier {
namespace {

namespace json = boost::json;
using Delimiter = ResponseField::Delimiter;

std::string_view view_of(const json::string& text) { return {text.data(), text.size()}; }

// The members of a template's object, by name and type; errors name the member.
class Members {
 public:
  static Result<Members> of(const json::value& value, std::string_view what) {
    const json::object* const object = value.if_object();
    if (object == nullptr) return fail(invalid_argument("{} must be an object", what));
    return Members(*object);
  }
  Status only(std::initializer_list<std::string_view> known) const {
    for (const auto& member : object_) {
      const std::string_view key(member.key().data(), member.key().size());
      if (std::ranges::find(known, key) == known.end())
        return invalid_argument("'{}' is not known", key);
    }
    return {};
  }
  const json::value* find(std::string_view name) const {
    const json::value* const value = object_.if_contains({name.data(), name.size()});
    return value != nullptr && value->is_null() ? nullptr : value;
  }
  Result<bool> flag(std::string_view name, bool otherwise) const {
    const json::value* const value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_bool()) return fail(invalid_argument("'{}' must be true or false", name));
    return value->get_bool();
  }
  Result<std::string> text(std::string_view name, std::string_view otherwise) const {
    const json::value* const value = find(name);
    if (value == nullptr) return std::string(otherwise);
    if (!value->is_string()) return fail(invalid_argument("'{}' must be a string", name));
    return std::string(view_of(value->get_string()));
  }

 private:
  explicit Members(const json::object& object) : object_(object) {}
  const json::object& object_;
};

// Of the longer of two literals that begin alike, where both stand.
Result<Delimiter> of_literals(const json::value& value, std::string_view name) {
  std::vector<std::string> literals;
  const json::array one{value};
  for (const json::value& literal : value.is_array() ? value.get_array() : one) {
    if (!literal.is_string() || literal.get_string().empty())
      return fail(invalid_argument("'{}' must be a text or a list of texts, none empty", name));
    literals.emplace_back(view_of(literal.get_string()));
  }
  if (literals.empty()) return fail(invalid_argument("'{}' must not be empty", name));
  std::ranges::stable_sort(
      literals, [](const std::string& a, const std::string& b) { return a.size() > b.size(); });
  std::string pattern;
  for (const std::string& literal : literals)
    pattern += (pattern.empty() ? "" : "|") + escape_regex(literal);
  ESP_ASSIGN_OR_RETURN(PcreRegex regex, compile_template_regex(pattern));
  return Delimiter{std::move(regex), literals.size() == 1 ? literals[0] : std::string()};
}

Result<std::optional<Delimiter>> find_delimiter(const Members& members, const std::string& name) {
  const json::value* const literals = members.find(name);
  ESP_ASSIGN_OR_RETURN(const std::string pattern, members.text(name + "_pattern", ""));
  if (literals != nullptr && !pattern.empty())
    return fail(invalid_argument("'{}' and '{}_pattern' exclude each other", name, name));
  if (literals != nullptr) {
    ESP_ASSIGN_OR_RETURN(Delimiter found, of_literals(*literals, name));
    return std::optional(std::move(found));
  }
  if (pattern.empty()) return std::optional<Delimiter>();
  ESP_ASSIGN_OR_RETURN(PcreRegex regex, compile_template_regex(pattern));
  return std::optional(Delimiter{std::move(regex), {}});
}

Result<ResponseField::Role> role_of(std::string_view name) {
  using enum ResponseField::Role;
  if (name == "thinking" || name == "reasoning" || name == "reasoning_content") return kReasoning;
  if (name == "content") return kText;
  if (name == "tool_calls") return kCalls;
  return fail(
      invalid_argument("it must be thinking, reasoning, reasoning_content, content or tool_calls"));
}

Result<ResponseField> parse_field(std::string_view name, const json::value& spec) {
  ResponseField field;
  field.name = name;
  ESP_ASSIGN_OR_RETURN(field.role, role_of(name));
  ESP_ASSIGN_OR_RETURN(const Members members, Members::of(spec, "it"));
  ESP_RETURN_IF_ERROR(
      members.only({"open", "open_pattern", "close", "close_pattern", "content", "content_args",
                    "repeats", "join", "optional", "transform", "transform_each"}));
  ESP_ASSIGN_OR_RETURN(field.open, find_delimiter(members, "open"));
  ESP_ASSIGN_OR_RETURN(field.close, find_delimiter(members, "close"));
  ESP_ASSIGN_OR_RETURN(const std::string kind, members.text("content", "text"));
  ESP_ASSIGN_OR_RETURN(field.content, ResponseContent::parse(kind, members.find("content_args")));
  ESP_ASSIGN_OR_RETURN(field.transform_each, members.flag("transform_each", false));
  if (const json::value* const transform = members.find("transform")) field.transform = *transform;
  ESP_RETURN_IF_ERROR(check_transform(field.transform));
  if (field.transform_each && field.transform.is_null())
    return fail(invalid_argument("'transform_each' needs a 'transform'"));
  if (field.role == ResponseField::Role::kCalls) {
    if (!field.open) return fail(invalid_argument("it needs 'open' or 'open_pattern'"));
  } else if (field.content.kind != ResponseContent::Kind::kText || !field.transform.is_null() ||
             members.find("join") != nullptr) {
    return fail(invalid_argument("it must be a text without 'transform' and 'join'"));
  }
  return field;
}

// A string that the schema does not allow, as what it allows; an argument without a schema, and one
// that does not fit, stays.
void cast_argument(json::value& argument, const ParameterTypes& types) {
  if (!argument.is_string() || !types.typed) return;
  const std::string_view text = view_of(argument.get_string());
  if (types.string && !(types.null && text == "null") &&
      !(types.boolean && (text == "true" || text == "false")))
    return;
  std::string written;
  ParameterValue value;
  value.begin(types, written);
  for (const char c : text) value.take(c, written);
  value.end(written);
  json::error_code code;
  json::value cast = json::parse(written, code);
  if (!code) argument = std::move(cast);
}

Result<ResponseCall> to_call(const json::value& value, bool strings_are_meant,
                             const json::value* tools) {
  const json::object* call = value.if_object();
  if (call != nullptr && call->contains("function")) call = call->at("function").if_object();
  const json::value* const name = call == nullptr ? nullptr : call->if_contains("name");
  if (name == nullptr || !name->is_string() || name->get_string().empty())
    return fail(invalid_argument("the call has no name"));
  ResponseCall out{std::string(view_of(name->get_string())), "{}"};
  const json::value* arguments = call->if_contains("arguments");
  if (arguments == nullptr) arguments = call->if_contains("parameters");
  if (arguments == nullptr || arguments->is_null()) return out;
  if (arguments->is_string()) {  // JSON already, for OpenAI's shape has it so
    out.arguments = view_of(arguments->get_string());
    return out;
  }
  json::value written = *arguments;
  if (json::object* const object = written.if_object()) {
    for (auto& member : *object) {
      const ParameterTypes types =
          parameter_types(tools, out.name, {member.key().data(), member.key().size()});
      if (!(strings_are_meant && types.string)) cast_argument(member.value(), types);
    }
  }
  out.arguments = json::serialize(written);
  return out;
}

}  // namespace

Result<ResponseContent> ResponseContent::parse(std::string_view name,
                                               const json::value* arguments) {
  static const std::vector<std::pair<std::string_view, Kind>> kinds = {
      {"text", Kind::kText},       {"int", Kind::kInt},   {"float", Kind::kFloat},
      {"bool", Kind::kBool},       {"json", Kind::kJson}, {"xml-inline", Kind::kXmlInline},
      {"kv-lines", Kind::kKvLines}};
  const auto known =
      std::ranges::find_if(kinds, [&](const auto& entry) { return entry.first == name; });
  if (known == kinds.end()) return fail(invalid_argument("content: '{}' is not known", name));
  ResponseContent content;
  content.kind = known->second;
  const json::value none = json::object();
  ESP_ASSIGN_OR_RETURN(const Members members,
                       Members::of(arguments != nullptr ? *arguments : none, "'content_args'"));
  ESP_ASSIGN_OR_RETURN(content.strip, members.flag("strip", true));
  ESP_ASSIGN_OR_RETURN(content.unquoted_keys, members.flag("unquoted_keys", false));
  ESP_ASSIGN_OR_RETURN(content.allow_non_json, members.flag("allow_non_json", false));
  ESP_ASSIGN_OR_RETURN(content.merge_duplicates, members.flag("merge_duplicates", false));
  ESP_ASSIGN_OR_RETURN(content.line_separator, members.text("line_sep", "\n"));
  ESP_ASSIGN_OR_RETURN(content.key_separator, members.text("kv_sep", ":"));
  if (content.line_separator.empty() || content.key_separator.empty())
    return fail(invalid_argument("'line_sep' and 'kv_sep' must not be empty"));
  if (const json::value* const delims = members.find("string_delims")) {
    const json::array* const list = delims->if_array();
    for (const json::value& pair : list != nullptr ? *list : json::array{nullptr}) {
      const json::array* const two = pair.if_array();
      if (two == nullptr || two->size() != 2 || !(*two)[0].is_string() || !(*two)[1].is_string() ||
          (*two)[0].get_string().empty() || (*two)[1].get_string().empty())
        return fail(invalid_argument("'string_delims' must be a list of pairs of texts"));
      content.string_delims.emplace_back(view_of((*two)[0].get_string()),
                                         view_of((*two)[1].get_string()));
    }
  }
  if (const json::value* const value = members.find("value_parser")) {
    ESP_ASSIGN_OR_RETURN(const Members inner, Members::of(*value, "'value_parser'"));
    ESP_ASSIGN_OR_RETURN(const std::string kind, inner.text("name", "text"));
    ESP_ASSIGN_OR_RETURN(ResponseContent parsed, parse(kind, inner.find("args")));
    content.value = std::make_shared<const ResponseContent>(std::move(parsed));
  }
  if (content.kind != Kind::kXmlInline) return content;
  ESP_ASSIGN_OR_RETURN(const std::string pattern, members.text("tag_pattern", ""));
  if (pattern.find("(?P<key>") == std::string::npos ||
      pattern.find("(?P<value>") == std::string::npos)
    return fail(invalid_argument("'tag_pattern' must have the groups key and value"));
  ESP_ASSIGN_OR_RETURN(content.tag, compile_template_regex(pattern));
  return content;
}

Result<std::shared_ptr<const ResponseTemplate>> ResponseTemplate::parse(const json::value& spec) {
  auto parsed = std::make_shared<ResponseTemplate>();
  ESP_ASSIGN_OR_RETURN(const Members members, Members::of(spec, "response_template"));
  ESP_RETURN_IF_ERROR(
      members.only({"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"})
          .with_context("response_template"));
  if (const json::value* const version = members.find("version");
      version != nullptr && *version != json::value(1))
    return fail(invalid_argument("response_template: 'version' must be 1"));
  auto anchor = find_delimiter(members, "start_anchor");
  if (!anchor) return fail(anchor.error().with_context("response_template"));
  if (!*anchor)
    return fail(
        invalid_argument("response_template: 'start_anchor' or 'start_anchor_pattern' is missing"));
  parsed->start_anchor = std::move((*anchor)->regex);
  const json::value* const fields = members.find("fields");
  if (fields == nullptr || !fields->is_object() || fields->get_object().empty())
    return fail(invalid_argument("response_template: 'fields' must be an object with members"));
  for (const auto& member : fields->get_object()) {
    const std::string_view name(member.key().data(), member.key().size());
    auto field = parse_field(name, member.value());
    if (!field)
      return fail(field.error().with_context(fmt::format("response_template: field '{}'", name)));
    parsed->fields.push_back(std::move(*field));
  }
  for (const ResponseField& field : parsed->fields) {
    if (field.open) continue;
    if (parsed->implicit != nullptr)
      return fail(invalid_argument("response_template: '{}' and '{}' both have no 'open'",
                                   parsed->implicit->name, field.name));
    parsed->implicit = &field;
  }
  return std::shared_ptr<const ResponseTemplate>(std::move(parsed));
}

const ResponseField* ResponseTemplate::find(ResponseField::Role role) const {
  const auto found = std::ranges::find(fields, role, &ResponseField::role);
  return found == fields.end() ? nullptr : &*found;
}

std::string_view ResponseTemplate::begun_answer(std::string_view prompt) const {
  size_t begin = 0;
  PcreRegex::Search search(*start_anchor, prompt);
  for (size_t at = 0; at <= prompt.size();) {
    const auto found = search.find(at);
    if (!found) break;
    begin = found->end;
    at = std::max(found->end, found->begin + 1);
    while (at < prompt.size() && (static_cast<unsigned char>(prompt[at]) & 0xC0) == 0x80) ++at;
  }
  return prompt.substr(begin);
}

Result<std::vector<ResponseCall>> read_response_calls(const ResponseField& field,
                                                      std::string_view text, ResponseScope groups,
                                                      const json::value* tools) {
  ESP_ASSIGN_OR_RETURN(json::value value, field.content.read(text));
  if (field.transform_each) {
    const json::array* const elements = value.if_array();
    if (elements == nullptr) return fail(invalid_argument("it must be a list"));
    json::array shaped;
    for (const json::value& element : *elements) {
      const json::object* const object = element.if_object();
      if (object == nullptr) return fail(invalid_argument("it must be a list of objects"));
      ResponseScope scope;  // a member hides a group
      for (const auto& member : *object) scope.emplace_back(member.key(), member.value());
      scope.insert(scope.end(), groups.begin(), groups.end());
      ESP_ASSIGN_OR_RETURN(json::value one, apply_transform(field.transform, scope));
      shaped.push_back(std::move(one));
    }
    value = std::move(shaped);
  } else if (!field.transform.is_null()) {
    groups.emplace(groups.begin(), "content", std::move(value));
    ESP_ASSIGN_OR_RETURN(value, apply_transform(field.transform, groups));
  }
  std::vector<ResponseCall> calls;
  const json::array one{value};
  for (const json::value& each : value.is_array() ? value.get_array() : one) {
    ESP_ASSIGN_OR_RETURN(ResponseCall call, to_call(each, field.content.states_strings(), tools));
    calls.push_back(std::move(call));
  }
  return calls;
}

}  // namespace espalier
