// Reads one call as models write it: {"name": "f", "arguments": {...}}, character by character.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace espalier {

// Follows a JSON object or array to its end. Not a validator: it knows strings and brackets.
class JsonExtent {
 public:
  // True when `c` is the value's last character.
  bool take(char c);
  bool inside_string() const { return in_string_; }
  int depth() const { return depth_; }

 private:
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false;
};

// Not thread-safe.
class CallReader {
 public:
  struct Sink {
    std::function<bool(std::string name)> on_name;  // false: this is no call
    std::function<void(std::string_view json)> on_arguments;
  };
  enum class State { kGoesOn, kDone, kNoCall };

  // With `key_is_name` a call is {"f": {...}}, an object with one member.
  explicit CallReader(Sink sink, bool key_is_name = false)
      : sink_(std::move(sink)), key_is_name_(key_is_name) {}

  // Takes the next character; the first one is the object's '{'. The name may come before or behind
  // the arguments ("arguments", "parameters" or "args"), and other members are ignored. After kDone
  // or kNoCall no character may follow.
  State take(char c);
  bool has_name() const { return has_name_; }

 private:
  enum class Place { kBegin, kKey, kColon, kValue, kInside, kBehind };
  enum class Value { kName, kArguments, kOther };
  bool take_key(const std::string& key);
  State begin_value(char c);
  State end_value();
  State end_object();
  void pass_arguments(std::string_view json);

  const Sink sink_;
  const bool key_is_name_;
  Place place_ = Place::kBegin;
  Value value_ = Value::kOther;
  std::string text_;       // of the key or the value being read
  std::string arguments_;  // read before the name
  JsonExtent extent_;
  bool is_string_ = false, is_scalar_ = false, escaped_ = false;
  bool has_name_ = false, has_arguments_ = false;
};

// A JSON string literal's value; "" when it is none.
std::string json_string_value(std::string_view literal);

}  // namespace espalier
