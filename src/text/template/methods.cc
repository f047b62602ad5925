// Methods of strings, lists and dictionaries that templates call.
#include <utf8proc.h>

#include <algorithm>
#include <functional>
#include <span>

#include "text/template/interpreter.h"
#include "text/unicode/char_class.h"
#include "text/unicode/utf8.h"

namespace espalier::jinja {

namespace {

using Bound = std::vector<std::optional<Value>>;

template <typename Fn>
bool all_characters(std::string_view text, Fn&& fn) {  // false for ""
  for (const std::string_view c : characters(text)) {
    if (!fn(decode_utf8(c, 0).code)) return false;
  }
  return !text.empty();
}

bool is_python_space(char32_t code) {  // Python's isspace counts the separators 0x1C to 0x1F too
  return CharClasses().is(code, kSpace) || (code >= 0x1C && code <= 0x1F);
}

bool is_cased(char32_t code) { return CharClasses().is(code, kUpper | kLower); }

// Removes the characters for which `drop` holds from either side.
std::string_view strip(std::string_view text, bool left, bool right,
                       const std::function<bool(std::string_view)>& drop) {
  while (left && !text.empty()) {
    const size_t size = decode_utf8(text, 0).size;
    if (!drop(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (right && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!drop(text.substr(begin))) break;
    text.remove_suffix(text.size() - begin);
  }
  return text;
}

Status wants_string(std::string_view method, const std::optional<Value>& value) {
  if (value && value->is_string()) return {};
  return template_error(fmt::format("{}() argument must be str, not {}", method,
                                    value ? value->type_name() : "nothing"));
}

Result<int64_t> integer_or(const std::optional<Value>& value, int64_t otherwise) {
  if (!value || value->is_none()) return otherwise;
  if (value->is_number() && !value->is_float()) return value->integer();
  return fail(template_error(
      fmt::format("'{}' object cannot be interpreted as an integer", value->type_name())));
}

Result<Value> strip_method(const std::string& text, std::string_view name,
                           const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind(name, arguments, {"chars"}));
  const bool left = name != "rstrip", right = name != "lstrip";
  if (!bound[0] || bound[0]->is_none()) {
    return Value(strip(text, left, right,
                       [](std::string_view c) { return is_python_space(decode_utf8(c, 0).code); }));
  }
  ESP_RETURN_IF_ERROR(wants_string(name, bound[0]));
  const std::vector<std::string_view> set = characters(bound[0]->string());
  return Value(strip(text, left, right, [&](std::string_view c) {
    return std::find(set.begin(), set.end(), c) != set.end();
  }));
}

// Splits at runs of white space. The remainder after `count_max` splits keeps its white space.
std::vector<Value> split_spaces(std::string_view text, int64_t count_max) {
  const auto drop = [](std::string_view c) { return is_python_space(decode_utf8(c, 0).code); };
  std::vector<Value> parts;
  text = strip(text, true, false, drop);
  while (!text.empty()) {
    if (count_max >= 0 && static_cast<int64_t>(parts.size()) == count_max) {
      parts.emplace_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      const Utf8Char c = decode_utf8(text, end);
      if (is_python_space(c.code)) break;
      end += c.size;
    }
    parts.emplace_back(text.substr(0, end));
    text = strip(text.substr(end), true, false, drop);
  }
  return parts;
}

std::vector<Value> rsplit_spaces(std::string_view text, int64_t count_max) {
  const auto drop = [](std::string_view c) { return is_python_space(decode_utf8(c, 0).code); };
  const auto keep = [&](std::string_view c) { return !drop(c); };
  std::vector<Value> parts;
  text = strip(text, false, true, drop);
  while (!text.empty()) {
    if (count_max >= 0 && static_cast<int64_t>(parts.size()) == count_max) {
      parts.emplace_back(text);
      break;
    }
    const std::string_view head = strip(text, false, true, keep);
    parts.emplace_back(text.substr(head.size()));
    text = strip(head, false, true, drop);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Result<Value> split_method(const std::string& text, std::string_view name,
                           const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind(name, arguments, {"sep", "maxsplit"}));
  ESP_ASSIGN_OR_RETURN(const int64_t count_max, integer_or(bound[1], -1));
  const bool from_right = name == "rsplit";
  if (!bound[0] || bound[0]->is_none()) {
    return Value(from_right ? rsplit_spaces(text, count_max) : split_spaces(text, count_max));
  }
  ESP_RETURN_IF_ERROR(wants_string(name, bound[0]));
  const std::string& separator = bound[0]->string();
  if (separator.empty()) return fail(template_error("empty separator"));
  std::vector<Value> parts;
  std::string_view rest = text;
  while (count_max < 0 || static_cast<int64_t>(parts.size()) < count_max) {
    const size_t at = from_right ? rest.rfind(separator) : rest.find(separator);
    if (at == std::string_view::npos) break;
    if (from_right) {
      parts.emplace_back(rest.substr(at + separator.size()));
      rest = rest.substr(0, at);
    } else {
      parts.emplace_back(rest.substr(0, at));
      rest.remove_prefix(at + separator.size());
    }
  }
  parts.emplace_back(rest);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return Value(std::move(parts));
}

Result<Value> partition_method(const std::string& text, std::string_view name,
                               const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind(name, arguments, {"sep"}));
  ESP_RETURN_IF_ERROR(wants_string(name, bound[0]));
  const std::string& separator = bound[0]->string();
  if (separator.empty()) return fail(template_error("empty separator"));
  const bool from_right = name == "rpartition";
  const size_t at = from_right ? text.rfind(separator) : text.find(separator);
  if (at == std::string::npos) {
    return from_right ? Value::tuple({Value(""), Value(""), Value(text)})
                      : Value::tuple({Value(text), Value(""), Value("")});
  }
  return Value::tuple(
      {Value(text.substr(0, at)), Value(separator), Value(text.substr(at + separator.size()))});
}

Result<Value> affix_method(const std::string& text, std::string_view name,
                           const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind(name, arguments, {"prefix"}));
  const bool at_start = name == "startswith" || name == "removeprefix";
  const auto has = [&](const std::string& affix) {
    return at_start ? text.starts_with(affix) : text.ends_with(affix);
  };
  if (name == "startswith" || name == "endswith") {
    if (bound[0] && bound[0]->is_list() && bound[0]->list().is_tuple) {
      for (const Value& item : bound[0]->items()) {
        ESP_RETURN_IF_ERROR(wants_string(name, item));
        if (has(item.string())) return Value(true);
      }
      return Value(false);
    }
    if (!bound[0] || !bound[0]->is_string()) {
      return fail(template_error(fmt::format("{} first arg must be str or a tuple of str, not {}",
                                             name, bound[0] ? bound[0]->type_name() : "nothing")));
    }
    return Value(has(bound[0]->string()));
  }
  ESP_RETURN_IF_ERROR(wants_string(name, bound[0]));
  const std::string& affix = bound[0]->string();
  if (!has(affix)) return Value(text);
  return Value(at_start ? text.substr(affix.size()) : text.substr(0, text.size() - affix.size()));
}

std::string replace_text(std::string_view text, std::string_view from, std::string_view to,
                         int64_t count) {
  std::string out;
  while (count != 0) {
    if (from.empty()) {  // before each character, and at the end
      out += to;
      if (text.empty()) return out;
      const size_t size = decode_utf8(text, 0).size;
      out += text.substr(0, size);
      text.remove_prefix(size);
    } else {
      const size_t at = text.find(from);
      if (at == std::string_view::npos) break;
      out += text.substr(0, at);
      out += to;
      text.remove_prefix(at + from.size());
    }
    --count;
  }
  return out += text;
}

Result<Value> replace_method(Interpreter& interpreter, const std::string& text,
                             const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("replace", arguments, {"old", "new", "count"}));
  ESP_RETURN_IF_ERROR(wants_string("replace", bound[0]));
  ESP_RETURN_IF_ERROR(wants_string("replace", bound[1]));
  ESP_ASSIGN_OR_RETURN(const int64_t count, integer_or(bound[2], -1));
  const size_t grown = text.size() + 1 < (64 << 20) / (bound[1]->string().size() + 1)
                           ? 0
                           : text.size() / std::max<size_t>(1, bound[0]->string().size()) *
                                 bound[1]->string().size();
  ESP_RETURN_IF_ERROR(interpreter.charge_bytes(text.size() + grown));
  std::string out = replace_text(text, bound[0]->string(), bound[1]->string(), count);
  ESP_RETURN_IF_ERROR(interpreter.charge_bytes(out.size()));
  return Value(std::move(out));
}

Result<Value> find_method(const std::string& text, std::string_view name,
                          const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind(name, arguments, {"sub", "start", "end"}));
  ESP_RETURN_IF_ERROR(wants_string(name, bound[0]));
  // In characters: the searched part, then where in it.
  ESP_ASSIGN_OR_RETURN(const Value part, slice(Value(text), bound[1].value_or(Value()),
                                               bound[2].value_or(Value()), Value()));
  ESP_ASSIGN_OR_RETURN(const int64_t start, integer_or(bound[1], 0));
  const auto count = static_cast<int64_t>(length_in_characters(text));
  const int64_t offset = start < 0 ? std::max<int64_t>(0, start + count) : start;
  const std::string& needle = bound[0]->string();
  if (name == "count") {
    if (needle.empty()) return Value(length_in_characters(part.string()) + 1);
    size_t found = 0;
    for (size_t at = part.string().find(needle); at != std::string::npos;
         at = part.string().find(needle, at + needle.size())) {
      ++found;
    }
    return Value(found);
  }
  const bool from_right = name[0] == 'r';
  const size_t at = from_right ? part.string().rfind(needle) : part.string().find(needle);
  if (at == std::string::npos || offset > count) {
    if (name == "index" || name == "rindex") return fail(template_error("substring not found"));
    return Value(-1);
  }
  return Value(offset + static_cast<int64_t>(length_in_characters(part.string().substr(0, at))));
}

Result<Value> splitlines_method(const std::string& text, const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind("splitlines", arguments, {"keepends"}));
  const bool keep_ends = bound[0] && bound[0]->truthy();
  std::vector<Value> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    const size_t end = i;
    i += c.size;
    const bool ends = (c.code >= '\n' && c.code <= '\r') || (c.code >= 0x1C && c.code <= 0x1E) ||
                      c.code == 0x85 || c.code == 0x2028 || c.code == 0x2029;
    if (!ends) continue;
    if (c.code == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.emplace_back(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.emplace_back(text.substr(begin));
  return Value(std::move(lines));
}

std::string title_case(std::string_view text) {
  std::string out;
  bool after_cased = false;
  for (const std::string_view c : characters(text)) {
    out += after_cased ? to_lower(c) : to_upper(c);
    after_cased = is_cased(decode_utf8(c, 0).code);
  }
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  for (const std::string_view c : characters(text)) {
    const bool upper = CharClasses().is(decode_utf8(c, 0).code, kUpper);
    out += upper ? to_lower(c) : to_upper(c);
  }
  return out;
}

// ljust, rjust, center, zfill.
Result<Value> pad_method(Interpreter& interpreter, const std::string& text, std::string_view name,
                         const Arguments& arguments) {
  ESP_ASSIGN_OR_RETURN(const Bound bound, bind(name, arguments, {"width", "fillchar"}));
  ESP_ASSIGN_OR_RETURN(const int64_t width, integer_or(bound[0], 0));
  const auto length = static_cast<int64_t>(length_in_characters(text));
  if (width <= length) return Value(text);
  if (width > (1 << 20)) return fail(template_error("the width is too large"));
  const std::string fill = bound[1] && bound[1]->is_string() ? bound[1]->string() : " ";
  const auto missing = static_cast<size_t>(width - length);
  ESP_RETURN_IF_ERROR(interpreter.charge_bytes(missing * fill.size()));
  const auto filled = [&](size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += name == "zfill" ? "0" : fill;
    return out;
  };
  if (name == "ljust") return Value(text + filled(missing));
  if (name == "rjust") return Value(filled(missing) + text);
  if (name == "zfill") {
    const bool has_sign = text.starts_with('-') || text.starts_with('+');
    return Value(text.substr(0, has_sign ? 1 : 0) + filled(missing) +
                 text.substr(has_sign ? 1 : 0));
  }
  // CPython puts the odd one left where the width is odd.
  const size_t left = missing / 2 + (missing & static_cast<size_t>(width) & 1);
  return Value(filled(left) + text + filled(missing - left));
}

// The result depends on letters alone, and is false without any.
bool has_case(std::string_view text, uint8_t wanted) {
  const CharClasses classes;
  bool any = false;
  for (const std::string_view c : characters(text)) {
    const char32_t code = decode_utf8(c, 0).code;
    if (!is_cased(code)) continue;
    if (!classes.is(code, wanted)) return false;
    any = true;
  }
  return any;
}

std::optional<bool> string_property(const std::string& text, std::string_view name) {
  const CharClasses classes;
  const auto all = [&](uint8_t wanted) {
    return all_characters(text, [&](char32_t code) { return classes.is(code, wanted); });
  };
  if (name == "isdigit" || name == "isdecimal") return all(kDecimal);
  if (name == "isnumeric") return all(kNumber);
  if (name == "isalpha") return all(kLetter);
  if (name == "isalnum") return all(kLetter | kNumber);
  if (name == "isspace") return all_characters(text, is_python_space);
  if (name == "isupper") return has_case(text, kUpper);
  if (name == "islower") return has_case(text, kLower);
  if (name == "isascii") {
    return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
  }
  return std::nullopt;
}

Result<std::string> format_braces(std::string_view format, const Arguments& arguments,
                                  Interpreter& interpreter);

Result<Value> call_string_method(Interpreter& interpreter, const std::string& text,
                                 std::string_view name, const Arguments& arguments) {
  ESP_RETURN_IF_ERROR(interpreter.charge_bytes(text.size()));
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    return strip_method(text, name, arguments);
  }
  if (name == "split" || name == "rsplit") return split_method(text, name, arguments);
  if (name == "startswith" || name == "endswith" || name == "removeprefix" ||
      name == "removesuffix") {
    return affix_method(text, name, arguments);
  }
  if (name == "replace") return replace_method(interpreter, text, arguments);
  if (name == "upper") return Value(to_upper(text));
  if (name == "lower" || name == "casefold") return Value(to_lower(text));
  if (name == "title") return Value(title_case(text));
  if (name == "swapcase") return Value(swap_case(text));
  if (name == "capitalize") {
    const std::vector<std::string_view> all = characters(text);
    if (all.empty()) return Value("");
    return Value(to_upper(all[0]) + to_lower(std::string_view(text).substr(all[0].size())));
  }
  if (name == "find" || name == "rfind" || name == "index" || name == "rindex" || name == "count") {
    return find_method(text, name, arguments);
  }
  if (name == "splitlines") return splitlines_method(text, arguments);
  if (name == "partition" || name == "rpartition") return partition_method(text, name, arguments);
  if (name == "ljust" || name == "rjust" || name == "center" || name == "zfill") {
    return pad_method(interpreter, text, name, arguments);
  }
  if (name == "format") {
    ESP_ASSIGN_OR_RETURN(std::string out, format_braces(text, arguments, interpreter));
    return Value(std::move(out));
  }
  if (name == "join") {
    ESP_ASSIGN_OR_RETURN(const Bound bound, bind("join", arguments, {"iterable"}));
    ESP_ASSIGN_OR_RETURN(const std::vector<Value> items,
                         interpreter.iterate(bound[0].value_or(Value())));
    std::string out;
    for (size_t i = 0; i < items.size(); ++i) {
      if (!items[i].is_string()) {
        return fail(template_error(fmt::format("sequence item {}: expected str instance, {} found",
                                               i, items[i].type_name())));
      }
      if (i > 0) out += text;
      out += items[i].string();
    }
    ESP_RETURN_IF_ERROR(interpreter.charge_bytes(out.size()));
    return Value(std::move(out));
  }
  if (const std::optional<bool> property = string_property(text, name)) return Value(*property);
  return fail(template_error(fmt::format("the method str.{} is not supported", name)));
}

// One field's value by a specification of Python's:
// [[fill]align][sign][0][width][,][.precision][type]
Result<std::string> format_field(const Value& value, std::string_view specification) {
  static constexpr std::string_view kAligns = "<>^=";
  std::string fill = " ";
  char align = value.is_number() && !value.is_bool() ? '>' : '<';
  std::string_view rest = specification;
  const size_t fill_size = rest.empty() ? 0 : decode_utf8(rest, 0).size;
  if (rest.size() > fill_size && kAligns.find(rest[fill_size]) != std::string_view::npos) {
    fill = rest.substr(0, fill_size);
    align = rest[fill_size];
    rest.remove_prefix(fill_size + 1);
  } else if (!rest.empty() && kAligns.find(rest[0]) != std::string_view::npos) {
    align = rest[0];
    rest.remove_prefix(1);
  }
  std::string sign;
  if (!rest.empty() && (rest[0] == '+' || rest[0] == ' ' || rest[0] == '-')) {
    if (rest[0] != '-') sign = rest[0];
    rest.remove_prefix(1);
  }
  if (!rest.empty() && rest[0] == '0') {
    fill = "0";
    align = '=';
    rest.remove_prefix(1);
  }
  size_t width = 0;
  for (; !rest.empty() && rest[0] >= '0' && rest[0] <= '9'; rest.remove_prefix(1)) {
    width = std::min<size_t>(width * 10 + static_cast<size_t>(rest[0] - '0'), 4096);
  }
  const bool thousands = rest.starts_with(',');
  if (thousands) rest.remove_prefix(1);
  std::string percent(rest);
  const bool has_type =
      !rest.empty() && ((rest.back() >= 'a' && rest.back() <= 'z') || rest.back() == 'X');
  if (!has_type)
    percent += !value.is_number() || value.is_bool() ? "s" : value.is_float() ? "" : "d";
  std::string text;
  if (percent.empty()) {
    text = value.str();
  } else {
    if (!has_type && value.is_float()) percent += "g";
    ESP_ASSIGN_OR_RETURN(text, percent_format("%" + percent, Value::tuple({value})));
  }
  if (value.is_number() && value.number() >= 0 && !sign.empty()) text.insert(0, sign);
  if (thousands) {
    const size_t first = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
    const size_t end = std::min(text.find('.'), text.size());
    for (size_t at = end; at > first + 3; at -= 3) text.insert(at - 3, ",");
  }
  const size_t length = length_in_characters(text);
  if (length >= width) return text;
  const size_t missing = width - length;
  const auto filled = [&](size_t count) {
    std::string out;
    for (size_t i = 0; i < count; ++i) out += fill;
    return out;
  };
  if (align == '<') return text + filled(missing);
  if (align == '>') return filled(missing) + text;
  if (align == '^') return filled(missing / 2) + text + filled(missing - missing / 2);
  const size_t sign_size = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  return text.substr(0, sign_size) + filled(missing) + text.substr(sign_size);
}

// {} {0} {name} {!r} {:specification}; attributes and items of arguments are left out.
Result<std::string> format_braces(std::string_view format, const Arguments& arguments,
                                  Interpreter& interpreter) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (i + 1 < format.size() && format[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    const size_t end = format.find('}', i);
    if (c == '}' || end == std::string_view::npos) {
      return fail(template_error("a brace of the format string stands alone"));
    }
    std::string_view field = format.substr(i + 1, end - i - 1);
    i = end;
    std::string_view specification;
    if (const size_t colon = field.find(':'); colon != std::string_view::npos) {
      specification = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    const bool by_repr = field.ends_with("!r");
    if (by_repr || field.ends_with("!s")) field.remove_suffix(2);
    const Value* value = nullptr;
    const bool is_index = all_characters(field, [](char32_t d) { return d >= '0' && d <= '9'; });
    if (field.empty() || (is_index && field.size() < 6)) {
      const size_t index = field.empty() ? next++ : std::stoul(std::string(field));
      if (index < arguments.positional.size()) value = &arguments.positional[index];
    } else {
      for (const auto& [name, named] : arguments.named) {
        if (name == field) value = &named;
      }
    }
    if (value == nullptr) {
      return fail(template_error(fmt::format("the format's field '{}' has no argument", field)));
    }
    const Value shown = by_repr ? Value(value->repr()) : *value;
    ESP_ASSIGN_OR_RETURN(const std::string piece, specification.empty()
                                                      ? Result<std::string>(shown.str())
                                                      : format_field(shown, specification));
    out += piece;
    ESP_RETURN_IF_ERROR(interpreter.charge_bytes(out.size()));
  }
  return out;
}

constexpr std::string_view kStringMethods[] = {
    "strip",    "lstrip",     "rstrip",    "split",   "rsplit",       "startswith",
    "endswith", "replace",    "upper",     "lower",   "casefold",     "title",
    "swapcase", "capitalize", "find",      "rfind",   "index",        "rindex",
    "count",    "splitlines", "format",    "join",    "partition",    "rpartition",
    "ljust",    "rjust",      "center",    "zfill",   "removeprefix", "removesuffix",
    "isdigit",  "isdecimal",  "isnumeric", "isalpha", "isalnum",      "isspace",
    "isupper",  "islower",    "isascii",   "encode",  "expandtabs",   "translate"};
constexpr std::string_view kDictMethods[] = {"items",      "keys",    "values",  "get",
                                             "copy",       "update",  "pop",     "clear",
                                             "setdefault", "popitem", "fromkeys"};
constexpr std::string_view kListMethods[] = {"index",  "count",   "copy",   "append",
                                             "extend", "insert",  "remove", "pop",
                                             "sort",   "reverse", "clear"};

bool is_one_of(std::string_view name, std::span<const std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Status unsafe(const Value& self, std::string_view name) {
  return template_error(
      fmt::format("access to attribute '{}' of '{}' object is unsafe. A template may not change "
                  "data (build a new list with + or use a namespace)",
                  name, self.type_name()));
}

Result<Value> call_dict_method(const Value& self, std::string_view name,
                               const Arguments& arguments) {
  const Dict& dict = self.dict();
  std::vector<Value> items;
  if (name == "items") {
    for (const auto& [key, value] : dict.entries) items.push_back(Value::tuple({key, value}));
    return Value(std::move(items));
  }
  if (name == "keys") {
    for (const auto& entry : dict.entries) items.push_back(entry.first);
    return Value(std::move(items));
  }
  if (name == "values") {
    for (const auto& entry : dict.entries) items.push_back(entry.second);
    return Value(std::move(items));
  }
  if (name == "copy") return self;
  if (name == "get") {
    ESP_ASSIGN_OR_RETURN(const Bound bound, bind("get", arguments, {"key", "default"}));
    if (!bound[0]) return fail(template_error("get expected at least 1 argument, got 0"));
    const Value* value = dict.find(*bound[0]);
    return value != nullptr ? *value : bound[1].value_or(Value());
  }
  return fail(unsafe(self, name));
}

Result<Value> call_list_method(const Value& self, std::string_view name,
                               const Arguments& arguments) {
  if (name == "copy") return self;
  if (name == "count" || name == "index") {
    ESP_ASSIGN_OR_RETURN(const Bound bound, bind(name, arguments, {"value"}));
    const Value wanted = bound[0].value_or(Value());
    size_t count = 0;
    for (size_t i = 0; i < self.items().size(); ++i) {
      if (!equal(self.items()[i], wanted)) continue;
      if (name == "index") return Value(i);
      ++count;
    }
    if (name == "count") return Value(count);
    return fail(template_error(fmt::format("{} is not in list", wanted.repr())));
  }
  return fail(unsafe(self, name));
}

std::string map_case(std::string_view text, utf8proc_int32_t (*map)(utf8proc_int32_t)) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    append_utf8(static_cast<char32_t>(map(static_cast<utf8proc_int32_t>(c.code))), out);
    i += c.size;
  }
  return out;
}

}  // namespace

std::string to_upper(std::string_view text) {
  // The common letter whose upper case is two.
  if (text.find("\xC3\x9F") != std::string_view::npos) {
    return map_case(replace_text(text, "\xC3\x9F", "SS", -1), utf8proc_toupper);
  }
  return map_case(text, utf8proc_toupper);
}
std::string to_lower(std::string_view text) { return map_case(text, utf8proc_tolower); }

bool has_method(const Value& self, std::string_view name) {
  if (self.is_string()) return is_one_of(name, kStringMethods);
  if (self.is_dict()) return is_one_of(name, kDictMethods);
  if (self.is_list()) {
    return self.list().is_tuple ? name == "index" || name == "count"
                                : is_one_of(name, kListMethods);
  }
  return false;
}

Result<Value> call_method(Interpreter& interpreter, const Value& self, std::string_view name,
                          const Arguments& arguments) {
  if (self.is_markup()) return call_markup_method(interpreter, self, name, arguments);
  if (self.is_string()) return call_string_method(interpreter, self.string(), name, arguments);
  if (self.is_dict()) {
    ESP_RETURN_IF_ERROR(interpreter.charge(self.dict().entries.size() / 8));
    return call_dict_method(self, name, arguments);
  }
  ESP_RETURN_IF_ERROR(interpreter.charge(self.items().size() / 8));
  return call_list_method(self, name, arguments);
}

}  // namespace espalier::jinja
