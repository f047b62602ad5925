#include "text/parse/parameter_value.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string_view>
#include <utility>

namespace espalier {

namespace json = boost::json;

void ParameterValue::begin(ParameterTypes types, std::string& out) {
  types_ = std::move(types);
  value_.clear();
  at_start_ = true;
  has_pending_newline_ = false;
  // A string that may be null is kept until it is certain that it is not "null".
  is_streamed_ = ((types_.string && !types_.null) || !types_.known) && types_.mixed_enum.empty();
  if (is_streamed_) out += '"';
}

void ParameterValue::take(char c, std::string& out) {
  if (std::exchange(at_start_, false) && c == '\n') return;
  if (std::exchange(has_pending_newline_, false)) add('\n', out);
  if (c == '\n') {
    has_pending_newline_ = true;
  } else {
    add(c, out);
  }
}

void ParameterValue::end(std::string& out) { out += is_streamed_ ? "\"" : as_json(); }

void ParameterValue::abandon(std::string& out) {
  if (!is_streamed_) out += value_;
}

void ParameterValue::add(char c, std::string& out) {
  if (!is_streamed_) {
    value_ += c;
  } else if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\') {
    const std::string quoted = json::serialize(json::string(1, c));
    out += std::string_view(quoted).substr(1, quoted.size() - 2);
  } else {
    out += c;
  }
}

std::string ParameterValue::as_json() const {
  constexpr size_t kDepthMax = 500;  // of values within values
  if (types_.boolean && (value_ == "True" || value_ == "False")) {
    return value_ == "True" ? "true" : "false";
  }
  json::error_code failed;
  const json::value parsed = json::parse(value_, failed, {}, {.max_depth = kDepthMax});
  const auto is_choice = [&](const std::string& text) {
    return std::ranges::count(types_.mixed_enum, text) != 0;
  };
  if (!failed && is_choice(json::serialize(parsed))) return value_;
  if (std::string text = json::serialize(json::string(value_)); is_choice(text)) return text;
  const bool is_json = !failed && (!types_.string || (types_.null && parsed.is_null()));
  return is_json ? value_ : json::serialize(json::string(value_));
}

}  // namespace espalier
