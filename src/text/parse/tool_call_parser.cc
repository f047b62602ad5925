#include "text/parse/tool_call_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "text/parse/call_reader.h"
#include "text/parse/json_space.h"
#include "text/parse/mark_finder.h"
#include "text/parse/parameter_calls.h"
#include "text/parse/pythonic_calls.h"
#include "text/parse/tool_call_formats.h"

namespace espalier {
namespace {

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '-';
}

// Objects of JSON behind a mark, or from the start on: hermes, llama3, mistral, json.
class JsonCalls final : public ToolCallParser {
 public:
  JsonCalls(const ToolCallFormat& format, std::vector<std::string> tool_names)
      : format_(format),
        tool_names_(std::move(tool_names)),
        begins_({format.begin}),
        ends_({format.end}),
        place_(format.bare ? Place::kStart : Place::kText) {}

 private:
  enum class Place {
    kStart,    // of the answer, where a call needs no mark
    kText,     //
    kBetween,  // behind a mark or a call: brackets, separators, the next call
    kObject,   // {"name": ...
    kName,     // name[ARGS]{...}: the name, and
    kValue,    // its arguments
    kEnd,      // the end's mark
  };

  void take(char c) override {
    switch (place_) {
      case Place::kStart:
        if (is_json_space(c)) return emit_text({&c, 1});
        if (c == '{' || c == '[') {
          is_bare_ = true;
          place_ = Place::kBetween;
          return take_between(c);
        }
        place_ = Place::kText;
        return take_text(c);
      case Place::kText:
        return take_text(c);
      case Place::kBetween:
        return take_between(c);
      case Place::kObject:
        return take_object(c);
      case Place::kName:
        return take_name(c);
      case Place::kValue:
        emit_arguments({&c, 1});
        if (extent_.take(c)) place_ = Place::kBetween;
        return;
      case Place::kEnd: {
        std::string text;
        const auto found = ends_.take(c, text);
        if (found) place_ = Place::kText;
        if (!text.empty()) {  // anything but the end mark is text
          place_ = Place::kText;
          text += ends_.flush();
          for (const char each : text) take_text(each);
        }
        return;
      }
    }
  }

  void take_text(char c) {
    if (format_.begin.empty()) return emit_text({&c, 1});
    std::string text;
    const auto found = begins_.take(c, text);
    emit_text(text);
    if (!found) return;
    is_bare_ = list_closed_ = false;
    raw_ = format_.begin;
    place_ = Place::kBetween;
  }

  void take_between(char c) {
    if (c == '{') {
      reader_.emplace(CallReader::Sink{[this](std::string name) {
                                         if (is_bare_ &&
                                             std::find(tool_names_.begin(), tool_names_.end(),
                                                       name) == tool_names_.end())
                                           return false;
                                         begin_call(std::move(name));
                                         raw_.clear();
                                         return true;
                                       },
                                       [this](std::string_view json) { emit_arguments(json); }});
      place_ = Place::kObject;
      return take_object(c);
    }
    // Text may follow a list of calls, and may begin like a name.
    if (list_closed_ && !is_json_space(c)) {
      no_call();
      return take_text(c);
    }
    if (is_json_space(c) || c == '[' || c == ']' || c == ',' || c == ';') {
      if (!raw_.empty() || num_calls() == 0) raw_ += c;
      list_closed_ = format_.names_outside && c == ']' && raw_.empty();
      return;
    }
    if (format_.names_outside && is_name_char(c) && !is_bare_) {
      place_ = Place::kName;
      return take_name(c);
    }
    if (!format_.end.empty() && c == format_.end[0] && raw_.empty()) {
      place_ = Place::kEnd;
      return take(c);
    }
    no_call();
    take_text(c);
  }

  void take_object(char c) {
    if (!reader_->has_name()) raw_ += c;
    switch (reader_->take(c)) {
      case CallReader::State::kGoesOn:
        return;
      case CallReader::State::kDone:
        raw_.clear();
        place_ = Place::kBetween;
        return;
      case CallReader::State::kNoCall:
        return no_call();
    }
  }

  void take_name(char c) {
    if (c != '{') {
      name_ += c;
      if (c == '\n') {  // a name does not contain a line break
        raw_ += std::exchange(name_, {});
        no_call();
      }
      return;
    }
    constexpr std::string_view kArgs = "[ARGS]";
    std::string name = std::exchange(name_, {});
    while (!name.empty() && is_json_space(name.back())) name.pop_back();
    if (name.ends_with(kArgs)) name.resize(name.size() - kArgs.size());
    // This is the mark before another call, whose bracket was read as a list's.
    if (const std::string rest = format_.begin.substr(1); name.starts_with(rest))
      name.erase(0, rest.size());
    if (name.empty() || !std::all_of(name.begin(), name.end(), is_name_char)) {
      raw_ += name;
      no_call();
      return take_text(c);
    }
    begin_call(std::move(name));
    raw_.clear();
    emit_arguments({&c, 1});
    extent_ = {};
    extent_.take(c);
    place_ = Place::kValue;
  }

  // Emits the characters since the mark as text, because they turned out to be no call.
  void no_call() {
    emit_text(std::exchange(raw_, {}));
    place_ = Place::kText;
  }

  void end() override {
    emit_text(begins_.flush());
    raw_ += name_;
    if (num_calls() == 0 || raw_.find_first_not_of(" \n\t\r") != std::string::npos) emit_text(raw_);
  }

  const ToolCallFormat format_;
  const std::vector<std::string> tool_names_;
  MarkFinder begins_, ends_;
  Place place_;
  bool is_bare_ = false;  // no mark precedes the calls in progress
  bool list_closed_ = false;
  std::string raw_;  // the characters since the mark, until they are certain to be a call
  std::string name_;
  std::optional<CallReader> reader_;
  JsonExtent extent_;
};

// <calls begin><call begin>function<sep>NAME\n```json\n{...}\n```<call end>...<calls end>, and the
// newer <call begin>NAME<sep>{...}<call end>.
class DeepSeekCalls final : public ToolCallParser {
 public:
  DeepSeekCalls()
      : marks_({kDeepSeekCallsBegin, kDeepSeekCallBegin, kDeepSeekSep, kDeepSeekCallEnd,
                kDeepSeekCallsEnd}) {}

 private:
  enum class Place { kText, kBetween, kHead, kBehindSep, kName, kArguments };
  enum Mark { kCallsBegin, kCallBegin, kSep, kCallEnd, kCallsEnd };

  void take(char c) override {
    if (place_ == Place::kArguments) {
      emit_arguments({&c, 1});
      if (extent_.take(c)) place_ = Place::kBetween;
      return;
    }
    std::string text;
    const auto mark = marks_.take(c, text);
    for (const char each : text) take_plain(each);
    if (!mark) return;
    if (*mark == kCallsBegin || *mark == kCallEnd) place_ = Place::kBetween;
    if (*mark == kCallsEnd) place_ = Place::kText;
    if (*mark == kCallBegin) {
      place_ = Place::kHead;
      head_.clear();
    }
    if (*mark == kSep) place_ = Place::kBehindSep;
  }

  void take_plain(char c) {
    switch (place_) {
      case Place::kText:
        return emit_text({&c, 1});
      case Place::kHead:
        head_ += c;
        return;
      case Place::kBehindSep:
        if (is_json_space(c)) return;
        if (c == '{') return begin(head_, c);
        head_ = c;  // the text before was the type; this is the name
        place_ = Place::kName;
        return;
      case Place::kName:
        if (c == '{') {
          const size_t line = head_.find('\n');
          return begin(head_.substr(0, line), c);
        }
        head_ += c;
        return;
      case Place::kBetween:
      case Place::kArguments:
        return;
    }
  }

  void begin(std::string name, char c) {
    while (!name.empty() && is_json_space(name.back())) name.pop_back();
    if (name.empty()) {
      place_ = Place::kText;
      return emit_text({&c, 1});
    }
    begin_call(std::move(name));
    emit_arguments({&c, 1});
    extent_ = {};
    extent_.take(c);
    place_ = Place::kArguments;
  }

  void end() override {
    for (const char c : marks_.flush()) take_plain(c);
  }

  MarkFinder marks_;
  Place place_ = Place::kText;
  std::string head_;
  JsonExtent extent_;
};

// [f(a=1), g(b="x")] as the whole answer. A call is emitted when its parenthesis closes.
class PythonicCalls final : public ToolCallParser {
 public:
  explicit PythonicCalls(std::vector<std::string> tool_names)
      : tool_names_(std::move(tool_names)) {}

 private:
  enum class Place { kStart, kText, kName, kArguments };

  void take(char c) override {
    switch (place_) {
      case Place::kStart:
        if (is_json_space(c)) return emit_text({&c, 1});
        place_ = c == '[' ? Place::kName : Place::kText;
        if (c != '[') return emit_text({&c, 1});
        raw_ = c;
        return;
      case Place::kText:
        return emit_text({&c, 1});
      case Place::kName:
        return take_name(c);
      case Place::kArguments:
        return take_arguments(c);
    }
  }

  void take_name(char c) {
    raw_ += c;
    if (c == '(' && std::find(tool_names_.begin(), tool_names_.end(), name_) != tool_names_.end()) {
      place_ = Place::kArguments;
      depth_ = 1;
    } else if (is_name_char(c)) {
      name_ += c;
    } else if (c == ']' && name_.empty() && num_calls() > 0) {
      raw_.clear();
      place_ = Place::kText;
    } else if (!is_json_space(c) && !(c == ',' && name_.empty() && num_calls() > 0)) {
      no_call();
    }
  }

  void take_arguments(char c) {
    raw_ += c;
    if (quote_ != '\0') {
      if (c == quote_ && !escaped_) quote_ = '\0';
      escaped_ = c == '\\' && !escaped_;
    } else if (c == '"' || c == '\'') {
      quote_ = c;
    } else if (c == '(' || c == '[' || c == '{') {
      ++depth_;
    } else if ((c == ')' || c == ']' || c == '}') && --depth_ == 0) {
      const auto json = python_arguments_to_json(arguments_);
      if (!json) return no_call();
      begin_call(std::exchange(name_, {}));
      emit_arguments(*json);
      arguments_.clear();
      raw_.clear();
      place_ = Place::kName;
      return;
    }
    arguments_ += c;
  }

  void no_call() {
    emit_text(std::exchange(raw_, {}));
    place_ = Place::kText;
  }
  void end() override { emit_text(raw_); }

  const std::vector<std::string> tool_names_;
  Place place_ = Place::kStart;
  std::string raw_, name_, arguments_;
  int depth_ = 0;
  char quote_ = '\0';
  bool escaped_ = false;
};

}  // namespace

ToolCallParts ToolCallParser::push(std::string_view text) {
  for (const char c : text) take(c);
  return std::exchange(out_, {});
}

ToolCallParts ToolCallParser::finish() {
  end();
  if (num_calls_ == 0) out_.text += space_;
  space_.clear();
  return std::exchange(out_, {});
}

void ToolCallParser::emit_text(std::string_view text) {
  for (const char c : text) {
    if (is_json_space(c)) {
      space_ += c;
      continue;
    }
    out_.text += std::exchange(space_, {});
    out_.text += c;
  }
}

void ToolCallParser::begin_call(std::string name) {
  space_.clear();
  out_.pieces.push_back({.index = num_calls_++, .name = std::move(name), .arguments = {}});
}

void ToolCallParser::emit_arguments(std::string_view json) {
  if (out_.pieces.empty())
    out_.pieces.push_back({.index = num_calls_ - 1, .name = {}, .arguments = {}});
  out_.pieces.back().arguments += json;
}

Result<std::unique_ptr<ToolCallParser>> make_tool_call_parser(
    std::string_view name, std::vector<std::string> tool_names,
    std::shared_ptr<const boost::json::value> tools) {
  const ToolCallFormat* const format = find_tool_call_format(name);
  if (format == nullptr) {
    std::string all;
    for (const std::string& known : tool_call_format_names())
      all += (all.empty() ? "" : ", ") + known;
    return fail(invalid_argument("'{}' is no tool call parser; it must be one of {}", name, all));
  }
  using Kind = ToolCallFormat::Kind;
  if (format->kind == Kind::kParameters) return make_parameter_calls(std::move(tools));
  if (format->kind == Kind::kDeepSeek) return std::make_unique<DeepSeekCalls>();
  if (format->kind == Kind::kPythonic)
    return std::make_unique<PythonicCalls>(std::move(tool_names));
  return std::make_unique<JsonCalls>(*format, std::move(tool_names));
}

}  // namespace espalier
