#include "text/parse/call_reader.h"

#include <boost/json.hpp>

#include "text/parse/json_space.h"

namespace espalier {

std::string json_string_value(std::string_view literal) {
  boost::json::error_code failed;
  const boost::json::value value = boost::json::parse(literal, failed);
  if (failed || !value.is_string()) return {};
  return std::string(value.get_string().data(), value.get_string().size());
}

bool JsonExtent::take(char c) {
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
    }
    return false;
  }
  if (c == '"') in_string_ = true;
  if (c == '{' || c == '[') ++depth_;
  return (c == '}' || c == ']') && --depth_ <= 0;
}

CallReader::State CallReader::take(char c) {
  switch (place_) {
    case Place::kBegin:
      if (c != '{') return State::kNoCall;
      place_ = Place::kKey;
      return State::kGoesOn;
    case Place::kKey:
      if (!text_.empty()) {
        text_ += c;
        if (c == '"' && !escaped_) place_ = Place::kColon;
        escaped_ = c == '\\' && !escaped_;
      } else if (c == '"') {
        text_ = c;
      } else if (c == '}') {
        return end_object();
      } else if (!is_json_space(c) && c != ',') {
        return has_name_ ? State::kGoesOn : State::kNoCall;
      }
      return State::kGoesOn;
    case Place::kColon:
      if (c == ':') place_ = Place::kValue;
      return State::kGoesOn;
    case Place::kValue:
      return is_json_space(c) ? State::kGoesOn : begin_value(c);
    case Place::kInside:
      if (is_scalar_ && (c == ',' || c == '}' || is_json_space(c))) {
        if (const State ended = end_value(); ended != State::kGoesOn) return ended;
        return c == '}' ? end_object() : State::kGoesOn;
      }
      if (is_string_ || value_ != Value::kArguments || is_scalar_) {
        text_ += c;
      } else {
        pass_arguments({&c, 1});
      }
      if (is_string_) {
        const bool closes = c == '"' && !escaped_;
        escaped_ = c == '\\' && !escaped_;
        return closes ? end_value() : State::kGoesOn;
      }
      return !is_scalar_ && extent_.take(c) ? end_value() : State::kGoesOn;
    case Place::kBehind:
      break;
  }
  return State::kNoCall;
}

// False when this is no call.
bool CallReader::take_key(const std::string& key) {
  if (key_is_name_) {
    if (has_name_ || key.empty() || !sink_.on_name(key)) return false;
    has_name_ = true;
    value_ = Value::kArguments;
    return true;
  }
  if (key == "name" || key == "tool_name") {
    value_ = Value::kName;
  } else if (key == "arguments" || key == "parameters" || key == "args") {
    value_ = Value::kArguments;
  } else {
    value_ = Value::kOther;
  }
  return true;
}

CallReader::State CallReader::begin_value(char c) {
  if (!take_key(json_string_value(text_))) return State::kNoCall;
  text_.clear();
  escaped_ = false;
  place_ = Place::kInside;
  is_string_ = c == '"';
  is_scalar_ = !is_string_ && c != '{' && c != '[';
  extent_ = {};
  if (!is_string_ && !is_scalar_) extent_.take(c);
  if (value_ == Value::kArguments && !is_string_ && !is_scalar_) {
    pass_arguments({&c, 1});
  } else {
    text_ = c;
  }
  return State::kGoesOn;
}

CallReader::State CallReader::end_value() {
  place_ = Place::kKey;
  const std::string value = std::exchange(text_, {});
  if (value_ == Value::kName) {
    std::string name = json_string_value(value);
    if (name.empty() || !sink_.on_name(std::move(name))) return State::kNoCall;
    has_name_ = true;
    if (!arguments_.empty()) sink_.on_arguments(std::exchange(arguments_, {}));
  } else if (value_ == Value::kArguments && is_string_) {
    pass_arguments(json_string_value(value));  // JSON inside of a string
  }
  return State::kGoesOn;
}

CallReader::State CallReader::end_object() {
  place_ = Place::kBehind;
  if (!has_name_) return State::kNoCall;
  if (!has_arguments_) sink_.on_arguments("{}");
  return State::kDone;
}

void CallReader::pass_arguments(std::string_view json) {
  if (json.empty()) return;
  has_arguments_ = true;
  if (has_name_) {
    sink_.on_arguments(json);
  } else {
    arguments_ += json;
  }
}

}  // namespace espalier
