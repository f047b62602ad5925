// Writes JSON straight into a string: what streams send is built thousands of times a second.
//   JsonWriter w(out);
//   w.begin_object().member("id", rid).key("ids").begin_array().value(1).end_array().end_object();
// Not thread-safe. REQUIRES: calls nest as JSON does (not checked). Invalid UTF-8 becomes U+FFFD.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace espalier::server {

// Appends `text` in quotes, escaped.
void append_json_string(std::string& out, std::string_view text);
// The shortest decimal that reads back the same; null for what JSON has no number for.
void append_json_number(std::string& out, double value);
void append_json_number(std::string& out, float value);

class JsonWriter {
 public:
  explicit JsonWriter(std::string& out) : out_(out) {}

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name) {
    comma();
    append_json_string(out_, name);
    out_.push_back(':');
    needs_comma_ = false;
    return *this;
  }

  JsonWriter& null() { return raw("null"); }
  JsonWriter& raw(std::string_view json) {  // a value that is JSON already
    comma();
    out_.append(json);
    needs_comma_ = true;
    return *this;
  }
  JsonWriter& value(std::string_view text) {
    comma();
    append_json_string(out_, text);
    needs_comma_ = true;
    return *this;
  }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(std::nullptr_t) { return null(); }
  template <typename X>
  requires std::is_arithmetic_v<X> JsonWriter& value(X number) {
    if constexpr (std::is_same_v<X, bool>) {
      return raw(number ? "true" : "false");
    } else if constexpr (std::is_integral_v<X>) {
      return raw(std::to_string(number));
    } else {
      comma();
      append_json_number(out_, number);
      needs_comma_ = true;
      return *this;
    }
  }
  template <typename X>
  JsonWriter& value(const std::optional<X>& maybe) {
    return maybe ? value(*maybe) : null();
  }
  template <typename X>
  JsonWriter& member(std::string_view name, const X& v) {
    return key(name).value(v);
  }

 private:
  void comma() {
    if (needs_comma_) out_.push_back(',');
  }
  JsonWriter& open(char c) {
    comma();
    out_.push_back(c);
    needs_comma_ = false;
    return *this;
  }
  JsonWriter& close(char c) {
    out_.push_back(c);
    needs_comma_ = true;
    return *this;
  }

  std::string& out_;
  bool needs_comma_ = false;
};

}  // namespace espalier::server
