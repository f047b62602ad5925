// The values of a template, which behave like Python's. All but namespaces are immutable.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"

namespace espalier::jinja {

class Value;
class Interpreter;

struct Undefined {
  std::shared_ptr<const std::string> why;  // "'x' is undefined"
};
struct None {};

struct List {
  std::vector<Value> items;
  bool is_tuple = false;
};

// Keeps the order of insertion, as Python's does. A lookup scans, because templates' dictionaries
// are small.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

// Values that are not data: namespaces, macros, the loop, functions, bound methods.
class Object {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  virtual std::optional<Value> attribute(std::string_view) const;
  virtual Result<Value> call(Interpreter& interpreter, const Arguments& arguments);
  virtual bool callable() const { return false; }
};

class Value {
 public:
  Value() : data_(None{}) {}
  Value(bool b) : data_(b) {}
  Value(int64_t i) : data_(i) {}
  Value(int i) : data_(static_cast<int64_t>(i)) {}
  Value(size_t n) : data_(static_cast<int64_t>(n)) {}
  Value(double d) : data_(d) {}
  Value(std::string s) : data_(std::make_shared<const std::string>(std::move(s))) {}
  Value(std::string_view s) : Value(std::string(s)) {}
  Value(const char* s) : Value(std::string(s)) {}
  Value(std::vector<Value> items)
      : data_(std::make_shared<const List>(List{std::move(items), false})) {}
  Value(Dict dict) : data_(std::make_shared<const Dict>(std::move(dict))) {}
  Value(std::shared_ptr<Object> object) : data_(std::move(object)) {}
  static Value undefined(std::string why);
  static Value tuple(std::vector<Value> items);
  // A string that `safe` or `escape` made. Text that is added to it is escaped for HTML, as in
  // markupsafe; other strings are never escaped.
  static Value markup(std::string text);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(data_); }  // not of bools
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_integer() || is_float(); }
  bool is_string() const { return std::holds_alternative<StringPtr>(data_); }
  bool is_markup() const { return is_markup_; }                            // a safe string
  bool is_list() const { return std::holds_alternative<ListPtr>(data_); }  // tuples too
  bool is_dict() const { return std::holds_alternative<DictPtr>(data_); }
  bool is_object() const { return std::holds_alternative<ObjectPtr>(data_); }

  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const { return is_bool() ? (boolean() ? 1 : 0) : std::get<int64_t>(data_); }
  double number() const;  // of any number
  const std::string& string() const { return *std::get<StringPtr>(data_); }
  const List& list() const { return *std::get<ListPtr>(data_); }
  const std::vector<Value>& items() const { return list().items; }
  const Dict& dict() const { return *std::get<DictPtr>(data_); }
  const std::shared_ptr<Object>& object() const { return std::get<ObjectPtr>(data_); }
  const std::string& why_undefined() const { return *std::get<Undefined>(data_).why; }
  bool same_as(const Value& other) const;  // Python's `is`, all equal strings interned

  bool truthy() const;
  std::string type_name() const;  // Python's: "str", "dict"
  std::string str() const;        // Python's str(): what {{ }} prints
  std::string repr() const;

 private:
  using StringPtr = std::shared_ptr<const std::string>;
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<const Dict>;
  using ObjectPtr = std::shared_ptr<Object>;
  std::variant<Undefined, None, bool, int64_t, double, StringPtr, ListPtr, DictPtr, ObjectPtr>
      data_;
  bool is_markup_ = false;
};

bool equal(const Value& a, const Value& b);
// -1, 0, 1; a TypeError's message where Python has no order.
Result<int> compare(const Value& a, const Value& b);

Value from_json(const boost::json::value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // one level's, e.g. "    "
  std::string item_separator = ", ", key_separator = ": ";
  bool sort_keys = false;
};
// json.dumps. kInvalidArgument for what is not serializable; depth and size are bounded.
Result<std::string> to_json(const Value& value, const JsonStyle& style);

std::string float_repr(double d);  // Python's: the shortest that reads back

// Strings by code points.
size_t length_in_characters(std::string_view text);
std::vector<std::string_view> characters(std::string_view text);

// kInvalidArgument: the template or its variables cause the failure.
inline Status template_error(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}

}  // namespace espalier::jinja
