#include "text/parse/response_content.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>

namespace espalier {
namespace {

namespace json = boost::json;

constexpr std::string_view kPythonSpace = " \t\n\r\f\v";

bool is_word_byte(char c) {
  return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<unsigned char>(c) >= 0x80;
}

json::string text_of(std::string_view text) { return json::string(text.data(), text.size()); }

template <typename Number>
Result<json::value> number_of(std::string_view text) {
  std::string_view digits = without_space_around(text);
  if (digits.starts_with('+')) digits.remove_prefix(1);
  Number number{};
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.empty())
    return fail(invalid_argument("'{}' is no number", text));
  return json::value(number);
}

// JSON with the quirks that are allowed, as JSON: strings between other delimiters and keys without
// quotes get quotes.
std::string without_quirks(std::string_view text, const ResponseContent& content) {
  std::string out;
  char before = 0;  // the last character that is no white space
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    const auto delimited = std::ranges::find_if(content.string_delims, [&](const auto& pair) {
      return rest.starts_with(pair.first) &&
             rest.find(pair.second, pair.first.size()) != std::string_view::npos;
    });
    size_t length = 1;
    if (delimited != content.string_delims.end()) {
      const size_t end = rest.find(delimited->second, delimited->first.size());
      out += json::serialize(
          text_of(rest.substr(delimited->first.size(), end - delimited->first.size())));
      length = end + delimited->second.size();
    } else if (rest[0] == '"') {
      while (length < rest.size() && rest[length] != '"') length += rest[length] == '\\' ? 2 : 1;
      length = std::min(length + 1, rest.size());
      out += rest.substr(0, length);
    } else if (content.unquoted_keys && (before == '{' || before == ',') && is_word_byte(rest[0])) {
      while (length < rest.size() && is_word_byte(rest[length])) ++length;
      const size_t behind = rest.find_first_not_of(kPythonSpace, length);
      const bool is_key = behind != std::string_view::npos && rest[behind] == ':';
      out += is_key ? json::serialize(text_of(rest.substr(0, length)))
                    : std::string(rest.substr(0, length));
    } else {
      out += rest[0];
    }
    if (kPythonSpace.find(rest[0]) == std::string_view::npos) before = rest[length - 1];
    i += length;
  }
  return out;
}

Result<json::value> read_json(std::string_view text, const ResponseContent& content) {
  const bool has_quirks = content.unquoted_keys || !content.string_delims.empty();
  json::error_code code;
  json::value value =
      json::parse(has_quirks ? without_quirks(text, content) : std::string(text), code);
  if (!code) return value;
  if (content.allow_non_json) return json::value(text_of(without_space_around(text)));
  return fail(invalid_argument("no JSON: {}", code.message()));
}

Result<json::value> member_of(std::string_view text, const ResponseContent& content) {
  if (content.value != nullptr) return content.value->read(text);
  return json::value(text_of(text));
}

Result<json::value> read_tags(std::string_view text, const ResponseContent& content) {
  json::object out;
  PcreRegex::Search search(*content.tag, text);
  size_t at = 0;
  while (const auto found = search.find(at)) {
    std::string key, raw;
    for (auto& [name, value] : search.named_groups()) {
      if (name == "key") key = std::move(value);
      if (name == "value") raw = std::move(value);
    }
    ESP_ASSIGN_OR_RETURN(json::value value, member_of(raw, content));
    json::value* const known = out.if_contains(key);
    if (known == nullptr || !content.merge_duplicates) {
      out[key] = std::move(value);
    } else {
      if (!known->is_array()) *known = json::array{std::move(*known)};
      known->get_array().push_back(std::move(value));
    }
    at = found->end;
    if (found->end == found->begin) break;  // an empty tag would be found for ever
  }
  return json::value(std::move(out));
}

Result<json::value> read_lines(std::string_view text, const ResponseContent& content) {
  const auto trimmed = [&](std::string_view part) {
    return content.strip ? without_space_around(part) : part;
  };
  json::object out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(content.line_separator), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + content.line_separator.size(), text.size()));
    const size_t colon = line.find(content.key_separator);
    if (colon == std::string_view::npos) continue;
    ESP_ASSIGN_OR_RETURN(
        json::value value,
        member_of(trimmed(line.substr(colon + content.key_separator.size())), content));
    const std::string_view key = trimmed(line.substr(0, colon));
    out[json::string_view(key.data(), key.size())] = std::move(value);
  }
  return json::value(std::move(out));
}

// The name in "{name}" or "{name.key}"; nothing for another string.
std::optional<std::string_view> placeholder(std::string_view text) {
  if (text.size() < 3 || text.front() != '{' || text.back() != '}') return std::nullopt;
  const std::string_view name = text.substr(1, text.size() - 2);
  char before = '.';
  for (const char c : name) {
    if (!is_word_byte(c) && (c != '.' || before == '.')) return std::nullopt;
    before = c;
  }
  if (before == '.') return std::nullopt;
  return name;
}

Result<json::value> look_up(std::string_view path, const ResponseScope& scope) {
  const std::string_view root = path.substr(0, path.find('.'));
  const auto entry =
      std::ranges::find_if(scope, [&](const auto& candidate) { return candidate.first == root; });
  if (entry == scope.end()) return fail(invalid_argument("there is no '{}'", root));
  const json::value* value = &entry->second;
  for (size_t at = root.size(); at < path.size();) {
    const size_t end = std::min(path.find('.', at + 1), path.size());
    const std::string_view key = path.substr(at + 1, end - at - 1);
    const json::object* const object = value->if_object();
    value = object == nullptr ? nullptr : object->if_contains({key.data(), key.size()});
    if (value == nullptr) return fail(invalid_argument("there is no '{}'", path));
    at = end;
  }
  return *value;
}

}  // namespace

std::string_view without_space_around(std::string_view text) {
  const size_t begin = text.find_first_not_of(kPythonSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kPythonSpace) + 1 - begin);
}

// Python's \Z is the end alone, PCRE2's \z; the groups (?P<name>...) are the same.
Result<PcreRegex> compile_template_regex(std::string_view pattern) {
  std::string translated = "(?s)";
  for (size_t i = 0; i < pattern.size(); ++i) {
    translated += pattern[i];
    if (pattern[i] == '\\' && i + 1 < pattern.size())
      translated += pattern[++i] == 'Z' ? 'z' : pattern[i];
  }
  return PcreRegex::compile(translated, {.match_steps_max = 1'000'000, .growing = true});
}

Result<json::value> ResponseContent::read(std::string_view text) const {
  switch (kind) {
    case Kind::kText:
      return json::value(text_of(strip ? without_space_around(text) : text));
    case Kind::kInt:
      return number_of<int64_t>(text);
    case Kind::kFloat:
      return number_of<double>(text);
    case Kind::kBool: {
      std::string word(without_space_around(text));
      for (char& c : word) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
      return json::value(word == "true" || word == "1");
    }
    case Kind::kJson:
      return read_json(text, *this);
    case Kind::kXmlInline:
      return read_tags(text, *this);
    case Kind::kKvLines:
      return read_lines(text, *this);
  }
  return fail(error(StatusCode::kInternal, "a content of no kind"));
}

Result<json::value> apply_transform(const json::value& shape, const ResponseScope& scope) {
  if (const json::object* const object = shape.if_object()) {
    json::object out;
    for (const auto& member : *object) {
      ESP_ASSIGN_OR_RETURN(json::value value, apply_transform(member.value(), scope));
      out[member.key()] = std::move(value);
    }
    return json::value(std::move(out));
  }
  if (const json::array* const array = shape.if_array()) {
    json::array out;
    for (const json::value& element : *array) {
      ESP_ASSIGN_OR_RETURN(json::value value, apply_transform(element, scope));
      out.push_back(std::move(value));
    }
    return json::value(std::move(out));
  }
  const json::string* const text = shape.if_string();
  const auto path = text == nullptr ? std::nullopt : placeholder({text->data(), text->size()});
  return path ? look_up(*path, scope) : Result<json::value>(shape);
}

Status check_transform(const json::value& shape) {
  if (const json::object* const object = shape.if_object())
    for (const auto& member : *object) ESP_RETURN_IF_ERROR(check_transform(member.value()));
  if (const json::array* const array = shape.if_array())
    for (const json::value& element : *array) ESP_RETURN_IF_ERROR(check_transform(element));
  const json::string* const string = shape.if_string();
  if (string == nullptr) return {};
  const std::string_view text(string->data(), string->size());
  if (placeholder(text)) return {};
  for (size_t open = text.find('{'); open != std::string_view::npos;
       open = text.find('{', open + 1)) {
    const size_t close = text.find('}', open);
    if (close != std::string_view::npos && placeholder(text.substr(open, close + 1 - open)))
      return invalid_argument("transform: '{}' mixes a placeholder with other text", text);
  }
  return {};
}

}  // namespace espalier
