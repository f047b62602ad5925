#include "text/parse/parameter_calls.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string>
#include <utility>

#include "text/parse/json_space.h"
#include "text/parse/mark_finder.h"
#include "text/parse/parameter_types.h"
#include "text/parse/parameter_value.h"

namespace espalier {
namespace {

namespace json = boost::json;

class ParameterCalls final : public ToolCallParser {
 public:
  explicit ParameterCalls(std::shared_ptr<const json::value> tools)
      : tools_(std::move(tools)),
        begins_({"<tool_call>", "<function="}),
        inside_({"<parameter=", "</function>", "</tool_call>"}),
        value_end_({"</parameter>"}),
        ends_({"</tool_call>", "<function="}) {}

 private:
  enum class State {
    kText,
    kOpened,   // <tool_call> was read
    kName,     // <function=...
    kBetween,  // parameters
    kKey,      // <parameter=...
    kValue,    //
    kBehind,   // </function> was read: an end or the next call
  };

  void take(char c) override {
    switch (state_) {
      case State::kText:
      case State::kOpened:
        return take_text(c);
      case State::kName:
        return take_name(c);
      case State::kBetween: {
        std::string text;  // ignored: text between parameters has no meaning
        const auto mark = inside_.take(c, text);
        if (!mark) return;
        if (*mark == 0) {
          key_.clear();
          state_ = State::kKey;
          return;
        }
        emit_arguments(num_parameters_ == 0 ? "{}" : "}");
        state_ = *mark == 1 ? State::kBehind : State::kText;
        return;
      }
      case State::kKey:
        if (c == '>') return begin_value();
        key_ += c;
        return;
      case State::kValue: {
        std::string text;
        const auto mark = value_end_.take(c, text);
        std::string arguments;
        for (const char each : text) value_.take(each, arguments);
        if (mark) {
          value_.end(arguments);
          state_ = State::kBetween;
        }
        emit_nonempty(arguments);
        return;
      }
      case State::kBehind:
        return take_behind(c);
    }
  }

  void take_text(char c) {
    std::string text;
    const auto mark = begins_.take(c, text);
    if (state_ == State::kOpened) {
      raw_ += text;
      if (!std::all_of(text.begin(), text.end(), is_json_space)) no_call();
    } else {
      emit_text(text);
    }
    if (!mark) return;
    if (*mark == 0) {
      no_call();  // a <tool_call> before this one opened no call
      raw_ = "<tool_call>";
      state_ = State::kOpened;
    } else {
      raw_ += "<function=";
      name_.clear();
      state_ = State::kName;
    }
  }

  void take_name(char c) {
    raw_ += c;
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '.' || c == '-';
    if (fits) {
      name_ += c;
    } else if (c != '>' || name_.empty()) {
      no_call();
    } else {
      raw_.clear();
      begin_call(name_);
      num_parameters_ = 0;
      state_ = State::kBetween;
    }
  }

  void begin_value() {
    std::string arguments = num_parameters_++ == 0 ? "{" : ", ";
    arguments += json::serialize(json::string(key_)) + ": ";
    value_.begin(parameter_types(tools_.get(), name_, key_), arguments);
    emit_arguments(arguments);
    state_ = State::kValue;
  }

  // An empty piece would become an event without content.
  void emit_nonempty(std::string_view arguments) {
    if (!arguments.empty()) emit_arguments(arguments);
  }

  void take_behind(char c) {
    std::string text;
    const auto mark = ends_.take(c, text);
    if (mark && *mark == 1) {
      raw_ = "<function=";
      name_.clear();
      state_ = State::kName;
    } else if (mark) {
      state_ = State::kText;
    } else if (!std::all_of(text.begin(), text.end(), is_json_space)) {
      state_ = State::kText;
      text += ends_.flush();
      for (const char each : text) take_text(each);
    }
  }

  // Emits the characters since the mark as text, because they turned out to be no call.
  void no_call() {
    emit_text(std::exchange(raw_, {}));
    state_ = State::kText;
  }

  void end() override {
    if (state_ == State::kText || state_ == State::kOpened || state_ == State::kName) {
      emit_text(raw_ + begins_.flush());
    } else if (state_ == State::kValue) {
      std::string arguments;
      for (const char each : value_end_.flush()) value_.take(each, arguments);
      value_.abandon(arguments);
      emit_nonempty(arguments);
    }
  }

  const std::shared_ptr<const json::value> tools_;
  MarkFinder begins_, inside_, value_end_, ends_;
  State state_ = State::kText;
  std::string raw_;  // the characters since the mark, until they are certain to be a call
  std::string name_, key_;
  ParameterValue value_;
  int num_parameters_ = 0;
};

}  // namespace

std::unique_ptr<ToolCallParser> make_parameter_calls(std::shared_ptr<const json::value> tools) {
  return std::make_unique<ParameterCalls>(std::move(tools));
}

}  // namespace espalier
