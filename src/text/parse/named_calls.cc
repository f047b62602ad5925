#include "text/parse/named_calls.h"

#include <algorithm>
#include <boost/json.hpp>
#include <string_view>
#include <utility>

#include "text/parse/call_reader.h"
#include "text/parse/json_space.h"
#include "text/parse/mark_finder.h"

namespace espalier {
namespace {

namespace json = boost::json;

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// The name in functions.NAME:3.
std::string plain_name(std::string_view written) {
  constexpr std::string_view kNamespace = "functions.";
  while (!written.empty() && is_json_space(written.back())) written.remove_suffix(1);
  while (!written.empty() && is_json_space(written.front())) written.remove_prefix(1);
  if (written.starts_with(kNamespace)) written.remove_prefix(kNamespace.size());
  const size_t colon = written.rfind(':');
  if (colon != std::string_view::npos && is_number(written.substr(colon + 1)))
    written = written.substr(0, colon);
  return std::string(written);
}

bool declares(const json::object& function, const json::object& arguments) {
  const json::value* schema = function.if_contains("parameters");
  const json::value* properties = schema != nullptr && schema->is_object()
                                      ? schema->get_object().if_contains("properties")
                                      : nullptr;
  if (properties == nullptr || !properties->is_object()) return arguments.empty();
  return std::ranges::all_of(arguments, [&](const auto& member) {
    return properties->get_object().contains(member.key());
  });
}

// The first tool that declares the arguments, or the only tool; "" where there is none.
std::string tool_with(const json::value* tools, std::string_view arguments) {
  if (tools == nullptr) return {};
  const json::array& all = tools->get_array();
  const auto name_of = [](const json::value& tool) {
    return json::value_to<std::string>(tool.at("function").at("name"));
  };
  if (all.size() == 1) return name_of(all[0]);
  json::error_code failed;
  const json::value parsed = json::parse(arguments, failed);
  if (failed || !parsed.is_object()) return {};
  for (const json::value& tool : all)
    if (declares(tool.at("function").get_object(), parsed.get_object())) return name_of(tool);
  return {};
}

class NamedCalls final : public ToolCallParser {
 public:
  NamedCalls(NamedCallMarks marks, std::shared_ptr<const json::value> tools)
      : tools_(std::move(tools)),
        marks_({marks.calls_begin, marks.call_begin, marks.separator, marks.call_end,
                marks.calls_end}) {}

 private:
  enum class State { kText, kBetween, kHead, kBehindSeparator, kName, kArguments };
  enum Mark { kCallsBegin, kCallBegin, kSeparator, kCallEnd, kCallsEnd };

  void take(char c) override {
    if (state_ == State::kArguments) return take_argument(c);
    std::string text;
    const auto mark = marks_.take(c, text);
    for (const char each : text) take_plain(each);
    if (!mark) return;
    if (*mark == kCallsBegin || (*mark == kCallEnd && state_ != State::kText)) {
      state_ = State::kBetween;
    } else if (*mark == kCallBegin) {
      state_ = State::kHead;
      head_.clear();
    } else if (*mark == kSeparator && state_ == State::kHead) {
      state_ = State::kBehindSeparator;
    } else if (state_ == State::kText) {
      emit_text(marks_.mark(*mark));  // it closes nothing
    } else if (*mark == kCallsEnd) {
      state_ = State::kText;
    }
  }

  void take_plain(char c) {
    switch (state_) {
      case State::kText:
        return emit_text({&c, 1});
      case State::kHead:
        head_ += c;
        return;
      case State::kBehindSeparator:
        if (is_json_space(c)) return;
        if (c == '{') return begin(head_, c);
        head_ = c;  // the text before was the type; this is the name
        state_ = State::kName;
        return;
      case State::kName:
        if (c == '{') return begin(head_.substr(0, head_.find('\n')), c);
        head_ += c;
        return;
      case State::kBetween:
      case State::kArguments:
        return;
    }
  }

  void begin(std::string_view written, char c) {
    std::string name = plain_name(written);
    if (name.empty()) {
      state_ = State::kText;
      return emit_text({&c, 1});
    }
    is_nameless_ = is_number(name);
    arguments_.clear();
    if (!is_nameless_) begin_call(std::move(name));
    extent_ = {};
    state_ = State::kArguments;
    take_argument(c);
  }

  void take_argument(char c) {
    if (is_nameless_) {
      arguments_ += c;
    } else {
      emit_arguments({&c, 1});
    }
    if (!extent_.take(c)) return;
    state_ = State::kBetween;
    if (is_nameless_) end_nameless();
  }

  void end_nameless() {
    is_nameless_ = false;
    std::string name = tool_with(tools_.get(), arguments_);
    if (name.empty()) return emit_text(arguments_);
    begin_call(std::move(name));
    emit_arguments(arguments_);
  }

  void end() override {
    for (const char c : marks_.flush()) take_plain(c);
    if (is_nameless_) emit_text(arguments_);
  }

  const std::shared_ptr<const json::value> tools_;
  MarkFinder marks_;
  State state_ = State::kText;
  std::string head_;
  JsonExtent extent_;
  bool is_nameless_ = false;  // a number stands for the name of the call in progress
  std::string arguments_;     // of a call without a name
};

}  // namespace

std::unique_ptr<ToolCallParser> make_named_calls(NamedCallMarks marks,
                                                 std::shared_ptr<const json::value> tools) {
  return std::make_unique<NamedCalls>(std::move(marks), std::move(tools));
}

}  // namespace espalier
