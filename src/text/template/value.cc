#include "text/template/value.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>

#include "text/unicode/char_class.h"
#include "text/unicode/utf8.h"

namespace espalier::jinja {

namespace json = boost::json;

namespace {

// Deeper values would exhaust the stack of recursive functions. Real documents nest less.
constexpr int kNestingMax = 200;

// repr() of a str: single quotes unless only double ones avoid escapes, and escapes for what Python
// does not consider printable among controls and spaces.
std::string python_literal(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  const CharClasses classes;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    if (c.code == static_cast<char32_t>(quote) || c.code == '\\') {
      out += '\\';
      out += static_cast<char>(c.code);
    } else if (c.code == '\n') {
      out += "\\n";
    } else if (c.code == '\r') {
      out += "\\r";
    } else if (c.code == '\t') {
      out += "\\t";
    } else if (c.code < 0x20 || (c.code >= 0x7F && c.code <= 0xA0) || c.code == 0xAD) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c.code));
    } else if (classes.is(c.code, kSpace) && c.code != ' ') {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c.code));
    } else {
      out.append(text, i, c.size);
    }
    i += c.size;
  }
  return out += quote;
}

std::string joined(const std::vector<Value>& items) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += ", ";
    out += items[i].repr();
  }
  return out;
}

}  // namespace

std::optional<Value> Object::attribute(std::string_view) const { return std::nullopt; }

Result<Value> Object::call(Interpreter&, const Arguments&) {
  return fail(template_error(fmt::format("'{}' object is not callable", type_name())));
}

Value Value::undefined(std::string why) {
  Value value;
  value.data_ = Undefined{std::make_shared<const std::string>(std::move(why))};
  return value;
}

Value Value::markup(std::string text) {
  Value value(std::move(text));
  value.is_markup_ = true;
  return value;
}

Value Value::tuple(std::vector<Value> items) {
  Value value;
  value.data_ = std::make_shared<const List>(List{std::move(items), true});
  return value;
}

double Value::number() const { return is_float() ? std::get<double>(data_) : double(integer()); }

// Lists and dictionaries are the same when they share their storage, as Python's objects are; a
// copy of a value shares it.
bool Value::same_as(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_list()) return std::get<ListPtr>(data_) == std::get<ListPtr>(other.data_);
  if (is_dict()) return std::get<DictPtr>(data_) == std::get<DictPtr>(other.data_);
  return equal(*this, other);
}

const Value* Dict::find(const Value& key) const {
  for (const auto& [k, v] : entries) {
    if (equal(k, key)) return &v;
  }
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [k, v] : entries) {
    if (k.is_string() && k.string() == key) return &v;
  }
  return nullptr;
}

void Dict::set(Value key, Value value) {
  for (auto& [k, v] : entries) {
    if (equal(k, key)) {
      v = std::move(value);
      return;
    }
  }
  entries.emplace_back(std::move(key), std::move(value));
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_float()) return number() != 0.0;
  if (is_number()) return integer() != 0;
  if (is_string()) return !string().empty();
  if (is_list()) return !items().empty();
  if (is_dict()) return !dict().entries.empty();
  return true;
}

std::string Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_integer()) return "int";
  if (is_float()) return "float";
  if (is_string()) return is_markup_ ? "Markup" : "str";
  if (is_list()) return list().is_tuple ? "tuple" : "list";
  if (is_dict()) return "dict";
  return object()->type_name();
}

std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<size_t>(end.ptr - buffer));
  // Python writes exponents below -4 and from 16 on.
  const size_t e = text.find('e');
  int exponent = 0;
  const char* digits = text.data() + e + 1 + (text[e + 1] == '+' ? 1 : 0);
  std::from_chars(digits, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::fixed);
  std::string out(buffer, static_cast<size_t>(fixed.ptr - buffer));
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

std::string Value::str() const {
  if (is_undefined()) return "";
  if (is_string()) return string();
  return repr();
}

std::string Value::repr() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "None";
  if (is_bool()) return boolean() ? "True" : "False";
  if (is_integer()) return std::to_string(integer());
  if (is_float()) return float_repr(number());
  if (is_string()) {
    return is_markup_ ? fmt::format("Markup({})", python_literal(string()))
                      : python_literal(string());
  }
  if (is_list()) {
    const bool is_tuple = list().is_tuple;
    std::string out(is_tuple ? "(" : "[");
    out += joined(items());
    if (is_tuple && items().size() == 1) out += ",";
    return out += is_tuple ? ")" : "]";
  }
  if (is_dict()) {
    std::string out = "{";
    for (const auto& [key, value] : dict().entries) {
      if (out.size() > 1) out += ", ";
      out += key.repr();
      out += ": ";
      out += value.repr();
    }
    return out += "}";
  }
  return fmt::format("<{}>", object()->type_name());
}

// Numbers of all kinds compare by value (True == 1 == 1.0), as in Python; a list never equals a
// tuple, and the order of a dictionary's keys does not matter.
bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return a.number() == b.number();
    return a.integer() == b.integer();
  }
  if (a.is_string() && b.is_string()) return a.string() == b.string();
  if (a.is_list() && b.is_list()) {
    return a.list().is_tuple == b.list().is_tuple &&
           std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                      [](const Value& x, const Value& y) { return equal(x, y); });
  }
  if (a.is_dict() && b.is_dict()) {
    if (a.dict().entries.size() != b.dict().entries.size()) return false;
    for (const auto& [key, value] : a.dict().entries) {
      const Value* other = b.dict().find(key);
      if (other == nullptr || !equal(value, *other)) return false;
    }
    return true;
  }
  if (a.is_object() && b.is_object()) return a.object() == b.object();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

// The first items that differ decide between lists, then the lengths. A NaN compares as equal here,
// so < and > of it are false and <= and >= true, unlike Python's.
Result<int> compare(const Value& a, const Value& b) {
  const auto sign = [](const auto& x, const auto& y) { return x < y ? -1 : y < x ? 1 : 0; };
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return sign(a.number(), b.number());
    return sign(a.integer(), b.integer());
  }
  // Bytes of UTF-8 compare as their code points do.
  if (a.is_string() && b.is_string()) return sign(a.string(), b.string());
  if (a.is_list() && b.is_list()) {
    for (size_t i = 0; i < std::min(a.items().size(), b.items().size()); ++i) {
      if (equal(a.items()[i], b.items()[i])) continue;
      return compare(a.items()[i], b.items()[i]);
    }
    return sign(a.items().size(), b.items().size());
  }
  if (a.is_undefined()) return fail(template_error(a.why_undefined()));
  if (b.is_undefined()) return fail(template_error(b.why_undefined()));
  return fail(template_error(fmt::format("'<' not supported between instances of '{}' and '{}'",
                                         a.type_name(), b.type_name())));
}

// Recursive: the parser of the JSON has bounded its depth.
Value from_json(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return {};
    case json::kind::bool_:
      return value.get_bool();
    case json::kind::int64:
      return value.get_int64();
    case json::kind::uint64:  // beyond our integers
      return static_cast<double>(value.get_uint64());
    case json::kind::double_:
      return value.get_double();
    case json::kind::string:
      return Value(std::string_view(value.get_string()));
    case json::kind::array: {
      std::vector<Value> items;
      items.reserve(value.get_array().size());
      for (const json::value& item : value.get_array()) items.push_back(from_json(item));
      return Value(std::move(items));
    }
    case json::kind::object: {
      Dict dict;  // keys are distinct already
      for (const auto& [key, item] : value.get_object()) {
        dict.entries.emplace_back(Value(std::string_view(key)), from_json(item));
      }
      return Value(std::move(dict));
    }
  }
  return {};
}

namespace {

// Python's json.dumps: the same separators, escapes, float spelling and order of keys, for a model
// was trained on prompts that Python made, byte for byte.
class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  Status write(const Value& value, int depth) {
    if (depth > kNestingMax) return template_error("tojson: the value is nested too deeply");
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is_bool()) {
      out_ += value.boolean() ? "true" : "false";
    } else if (value.is_integer()) {
      out_ += std::to_string(value.integer());
    } else if (value.is_float()) {
      write_float(value.number());
    } else if (value.is_string()) {
      write_string(value.string());
    } else if (value.is_list()) {
      return write_list(value.items(), depth);
    } else if (value.is_dict()) {
      return write_dict(value.dict(), depth);
    } else {
      return template_error(
          fmt::format("Object of type {} is not JSON serializable", value.type_name()));
    }
    return {};
  }
  std::string take() { return std::move(out_); }

 private:
  void write_float(double d) {
    if (std::isnan(d)) {
      out_ += "NaN";
    } else if (std::isinf(d)) {
      out_ += d < 0 ? "-Infinity" : "Infinity";
    } else {
      out_ += float_repr(d);
    }
  }

  void write_unicode_escape(char32_t code) {
    if (code >= 0x10000) {
      write_unicode_escape(0xD800 + ((code - 0x10000) >> 10));
      write_unicode_escape(0xDC00 + ((code - 0x10000) & 0x3FF));
    } else {
      out_ += fmt::format("\\u{:04x}", static_cast<uint32_t>(code));
    }
  }

  void write_string(std::string_view text) {
    out_ += '"';
    for (size_t i = 0; i < text.size();) {
      const Utf8Char c = decode_utf8(text, i);
      static constexpr std::string_view kPlain = "\"\\\n\r\t\b\f", kEscaped = "\"\\nrtbf";
      const size_t escape =
          c.code < 0x80 ? kPlain.find(static_cast<char>(c.code)) : std::string_view::npos;
      if (escape != std::string_view::npos) {
        out_ += '\\';
        out_ += kEscaped[escape];
      } else if (c.code < 0x20 || (style_.ensure_ascii && c.code > 0x7E)) {
        write_unicode_escape(c.code);
      } else {
        out_.append(text, i, c.size);
      }
      i += c.size;
    }
    out_ += '"';
  }

  void new_line(int depth) {
    if (!style_.indent) return;
    out_ += '\n';
    for (int i = 0; i < depth; ++i) out_ += *style_.indent;
  }

  Status write_list(const std::vector<Value>& items, int depth) {
    if (items.empty()) {
      out_ += "[]";
      return {};
    }
    out_ += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(depth + 1);
      ESP_RETURN_IF_ERROR(write(items[i], depth + 1));
    }
    new_line(depth);
    out_ += ']';
    return {};
  }

  Status write_key(const Value& key) {
    if (key.is_string()) {
      write_string(key.string());
    } else if (key.is_none() || key.is_number()) {
      out_ += '"';
      ESP_RETURN_IF_ERROR(write(key, 0));
      out_ += '"';
    } else {
      return template_error(
          fmt::format("keys must be str, int, float, bool or None, not {}", key.type_name()));
    }
    return {};
  }

  Status write_dict(const Dict& dict, int depth) {
    if (dict.entries.empty()) {
      out_ += "{}";
      return {};
    }
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) {
      for (const auto* entry : entries) {
        // Keys without an order among them are refused before sorting, since the comparison of a
        // sort cannot return an error.
        if (Result<int> order = compare(entries[0]->first, entry->first); !order) {
          return order.error();
        }
      }
      std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
        return compare(a->first, b->first).value_or(0) < 0;
      });
    }
    out_ += '{';
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_ += style_.item_separator;
      new_line(depth + 1);
      ESP_RETURN_IF_ERROR(write_key(entries[i]->first));
      out_ += style_.key_separator;
      ESP_RETURN_IF_ERROR(write(entries[i]->second, depth + 1));
    }
    new_line(depth);
    out_ += '}';
    return {};
  }

  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

Result<std::string> to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  ESP_RETURN_IF_ERROR(writer.write(value, 0));
  return writer.take();
}

size_t length_in_characters(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return count;
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> result;
  for (size_t i = 0; i < text.size();) {
    const size_t size = decode_utf8(text, i).size;
    result.push_back(text.substr(i, size));
    i += size;
  }
  return result;
}

}  // namespace espalier::jinja
