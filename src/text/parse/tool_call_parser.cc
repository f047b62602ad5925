#include "text/parse/tool_call_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "text/parse/call_reader.h"
#include "text/parse/gemma_calls.h"
#include "text/parse/harmony.h"
#include "text/parse/json_space.h"
#include "text/parse/mark_finder.h"
#include "text/parse/markup_calls.h"
#include "text/parse/markup_text.h"
#include "text/parse/named_calls.h"
#include "text/parse/nested_calls.h"
#include "text/parse/pythonic_calls.h"
#include "text/parse/response_regions.h"
#include "text/parse/tool_call_formats.h"

namespace espalier {
namespace {

constexpr size_t kReadAgainMax = 4096;  // bytes

// Objects of JSON behind a mark, or from the start on: hermes, llama3, mistral, interns1, json.
class JsonCalls final : public ToolCallParser {
 public:
  JsonCalls(const ToolCallFormat& format, std::vector<std::string> tool_names)
      : format_(format),
        tool_names_(std::move(tool_names)),
        begins_(format.text_marks()),
        ends_({format.end}),
        state_(format.bare ? State::kStart : State::kText) {}

 private:
  enum class State {
    kStart,    // of the answer, where a call needs no mark
    kText,     //
    kBetween,  // behind a mark or a call: brackets, separators, the next call
    kObject,   // {"name": ...
    kName,     // name[ARGS]{...}: the name, and
    kValue,    // its arguments
    kEnd,      // the end's mark
  };

  void take(char c) override {
    switch (state_) {
      case State::kStart:
        if (is_json_space(c)) return emit_text({&c, 1});
        if (c == '{' || c == '[') {
          is_bare_ = true;
          state_ = State::kBetween;
          return take_between(c);
        }
        state_ = State::kText;
        return take_text(c);
      case State::kText:
        return take_text(c);
      case State::kBetween:
        return take_between(c);
      case State::kObject:
        return take_object(c);
      case State::kName:
        return take_name(c);
      case State::kValue:
        emit_arguments({&c, 1});
        if (extent_.take(c)) state_ = State::kBetween;
        return;
      case State::kEnd: {
        std::string text;
        const auto found = ends_.take(c, text);
        if (found) state_ = State::kText;
        if (!text.empty()) {  // anything but the end mark is text
          state_ = State::kText;
          text += ends_.flush();
          for (const char each : text) take_text(each);
        }
        return;
      }
    }
  }

  void take_text(char c) {
    if (format_.begin.empty() && format_.ignored.empty()) return emit_text({&c, 1});
    std::string text;
    const auto found = begins_.take(c, text);
    emit_text(text);
    if (!found || *found > format_.other_begins.size()) return;  // none, or one that is ignored
    is_bare_ = list_closed_ = false;
    raw_ = begins_.mark(*found);
    state_ = State::kBetween;
  }

  void take_between(char c) {
    // Text may follow a list of calls, and may begin like a name or a call.
    if (list_closed_ && !is_json_space(c)) {
      no_call();
      return take_text(c);
    }
    if (c == '{') {
      reader_.emplace(
          CallReader::Sink{[this](std::string name) {
                             if (is_bare_ && std::find(tool_names_.begin(), tool_names_.end(),
                                                       name) == tool_names_.end())
                               return false;
                             begin_call(std::move(name));
                             raw_.clear();
                             return true;
                           },
                           [this](std::string_view json) { emit_arguments(json); }},
          format_.key_is_name);
      state_ = State::kObject;
      return take_object(c);
    }
    if (is_json_space(c) || c == '[' || c == ']' || c == ',' || c == ';') {
      if (!raw_.empty() || num_calls() == 0) raw_ += c;
      list_closed_ |= format_.names_outside && c == ']' && raw_.empty();
      return;
    }
    if (format_.names_outside && is_tool_name_char(c) && !is_bare_) {
      state_ = State::kName;
      return take_name(c);
    }
    if (!format_.end.empty() && c == format_.end[0] && raw_.empty()) {
      state_ = State::kEnd;
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
        state_ = State::kBetween;
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
    if (name.empty() || !std::all_of(name.begin(), name.end(), is_tool_name_char)) {
      raw_ += name;
      no_call();
      return take_text(c);
    }
    begin_call(std::move(name));
    raw_.clear();
    emit_arguments({&c, 1});
    extent_ = {};
    extent_.take(c);
    state_ = State::kValue;
  }

  // Emits the characters since the mark as text, because they turned out to be no call. Behind the
  // mark, or the first character of a bare call, another mark may stand. Long texts are not read
  // again, so that the work stays linear.
  void no_call() {
    const std::string raw = std::exchange(raw_, {});
    state_ = State::kText;
    size_t read = raw.size() > kReadAgainMax ? raw.size() : std::min<size_t>(raw.size(), 1);
    for (const std::string& mark : format_.text_marks())
      if (!mark.empty() && raw.starts_with(mark)) read = std::max(read, mark.size());
    emit_text(std::string_view(raw).substr(0, read));
    for (const char c : std::string_view(raw).substr(read)) take(c);
  }

  void end() override {
    emit_text(begins_.flush());
    raw_ += name_;
    if (num_calls() == 0 || raw_.find_first_not_of(" \n\t\r") != std::string::npos) emit_text(raw_);
  }

  const ToolCallFormat format_;
  const std::vector<std::string> tool_names_;
  MarkFinder begins_, ends_;
  State state_;
  bool is_bare_ = false;  // no mark precedes the calls in progress
  bool list_closed_ = false;
  std::string raw_;  // the characters since the mark, until they are certain to be a call
  std::string name_;
  std::optional<CallReader> reader_;
  JsonExtent extent_;
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

Status check_tool_call_format(std::string_view name) {
  if (find_tool_call_format(name) != nullptr) return {};
  std::string all;
  for (const std::string& known : tool_call_format_names())
    all += (all.empty() ? "" : ", ") + known;
  return invalid_argument("tool_call_parser: '{}' is no tool call parser; it must be one of {}",
                          name, all);
}

Result<std::unique_ptr<ToolCallParser>> make_tool_call_parser(
    std::string_view name, std::vector<std::string> tool_names,
    std::shared_ptr<const boost::json::value> tools, std::shared_ptr<const ResponseTemplate> spec) {
  ESP_RETURN_IF_ERROR(check_tool_call_format(name));
  const ToolCallFormat* const format = find_tool_call_format(name);
  switch (format->kind) {
    case ToolCallFormat::Kind::kJson:
      return std::make_unique<JsonCalls>(*format, std::move(tool_names));
    case ToolCallFormat::Kind::kNamed:
      return make_named_calls(format->named, std::move(tools));
    case ToolCallFormat::Kind::kMarkup:
      return make_markup_calls(format->markup, std::move(tools));
    case ToolCallFormat::Kind::kPythonic:
      return make_pythonic_calls(format->begin, format->end, std::move(tool_names));
    case ToolCallFormat::Kind::kHarmony:
      return make_harmony_calls(format->name, std::move(tool_names), std::move(tools));
    case ToolCallFormat::Kind::kGemma:
      return make_gemma_calls();
    case ToolCallFormat::Kind::kNested:
      return make_nested_calls(std::move(tools));
    case ToolCallFormat::Kind::kResponseTemplate:
      if (spec == nullptr)
        return fail(error(StatusCode::kFailedPrecondition,
                          "tool_call_parser: response_template needs a model whose "
                          "tokenizer_config.json has a response_template"));
      return make_response_template_calls(std::move(spec), std::move(tools));
  }
  return fail(error(StatusCode::kInternal, "tool call format '{}' has no parser", name));
}

}  // namespace espalier
