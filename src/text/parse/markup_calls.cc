#include "text/parse/markup_calls.h"

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "text/parse/call_reader.h"
#include "text/parse/json_space.h"
#include "text/parse/mark_finder.h"
#include "text/parse/markup_text.h"
#include "text/parse/parameter_types.h"
#include "text/parse/parameter_value.h"

namespace espalier {
namespace {

namespace json = boost::json;

constexpr size_t kHeadBytesMax = 512;  // of a name, or of the attributes of a tag

std::vector<std::string> joined(std::initializer_list<std::vector<std::string>> lists) {
  std::vector<std::string> out;
  for (const auto& list : lists) out.insert(out.end(), list.begin(), list.end());
  return out;
}

// As such, or as some templates make models write it.
bool is_line_break(std::string_view mark) { return mark == "\n" || mark == "\\n"; }

bool is_blank(std::string_view text) { return std::ranges::all_of(text, is_json_space); }

// Reads the arguments of one call, from behind its name to its end, and writes them as JSON.
// Borrows the syntax and the tools. Not thread-safe.
class MarkupArguments {
 public:
  MarkupArguments(const MarkupSyntax& syntax, const json::value* tools)
      : syntax_(syntax),
        tools_(tools),
        inside_(joined({syntax.call_ends, {syntax.key}})),
        key_end_({syntax.key_end.empty() ? syntax.tag_end : syntax.key_end}),
        value_begin_(joined({syntax.call_ends, {syntax.value}})) {}

  void begin(std::string tool) {
    tool_ = std::move(tool);
    num_parameters_ = 0;
    has_json_ = false;
    state_ = State::kBetween;
  }
  void begin_key() {
    head_.clear();
    state_ = State::kKey;
  }

  // Appends the JSON that is certain to `out`; true when the call has ended.
  bool take(char c, std::string& out) {
    switch (state_) {
      case State::kBetween:
        return take_between(c, out);
      case State::kKey:
        if (key_end_.take(c, head_)) end_key(out);
        return false;
      case State::kBehindKey:
        return take_behind_key(c, out);
      case State::kValue:
        take_value(c, out);
        return false;
      case State::kJson:
        out += c;
        if (extent_.take(c)) state_ = State::kBetween;
        return false;
    }
    return false;
  }
  void end(std::string& out) const {
    if (!has_json_) out += num_parameters_ == 0 ? "{}" : "}";
  }
  // The text ended within the call.
  void abandon(std::string& out) {
    if (state_ != State::kValue) return;
    for (const char c : text_->flush()) value_.take(c, out);
    value_.abandon(out);
  }

 private:
  enum class State {
    kBetween,
    kKey,  // a bare key, or the attributes of its tag
    kBehindKey,
    kValue,
    kJson,  // all arguments as one object
  };

  bool take_between(char c, std::string& out) {
    if (c == '{' && num_parameters_ == 0 && !has_json_) {
      has_json_ = true;
      extent_ = {};
      state_ = State::kJson;
      return take(c, out);
    }
    std::string text;  // ignored: text between arguments has no meaning
    const auto mark = inside_.take(c, text);
    if (!mark) return false;
    if (*mark == syntax_.call_ends.size()) {
      begin_key();
      return false;
    }
    end(out);
    return true;
  }

  void end_key(std::string& out) {
    const bool is_bare = !syntax_.key_end.empty();
    key_ = is_bare ? head_ : markup_attribute(head_, {"name", "key"});
    types_ = is_bare ? parameter_types(tools_, tool_, key_) : attribute_types();
    if (syntax_.value.empty()) return begin_value(out);
    state_ = State::kBehindKey;
  }

  ParameterTypes attribute_types() const {
    const std::string type = markup_attribute(head_, {"type"});
    const std::string string = markup_attribute(head_, {"string"});
    if (type.empty() && string.empty()) return parameter_types(tools_, tool_, key_);
    return {.known = true, .string = type == "string" || string == "true"};
  }

  bool take_behind_key(char c, std::string& out) {
    std::string text;
    const auto mark = value_begin_.take(c, text);
    if (!mark) return false;
    if (*mark == syntax_.call_ends.size()) {
      begin_value(out);
      return false;
    }
    end(out);
    return true;
  }

  void begin_value(std::string& out) {
    out += num_parameters_++ == 0 ? "{" : ", ";
    out += json::serialize(json::string(key_)) + ": ";
    value_.begin(types_, out);
    text_.emplace(syntax_.value_end, syntax_.is_xml);
    state_ = State::kValue;
  }

  void take_value(char c, std::string& out) {
    std::string text;
    const bool ends = text_->take(c, text);
    for (const char each : text) value_.take(each, out);
    if (!ends) return;
    value_.end(out);
    state_ = State::kBetween;
  }

  const MarkupSyntax& syntax_;
  const json::value* const tools_;
  MarkFinder inside_, key_end_, value_begin_;
  State state_ = State::kBetween;
  std::string tool_, key_;
  std::string head_;  // of a key or its tag
  ParameterTypes types_;
  std::optional<MarkupText> text_;
  ParameterValue value_;
  JsonExtent extent_;
  int num_parameters_ = 0;
  bool has_json_ = false;
};

class MarkupCalls final : public ToolCallParser {
 public:
  MarkupCalls(MarkupSyntax syntax, std::shared_ptr<const json::value> tools)
      : syntax_(std::move(syntax)),
        tools_(std::move(tools)),
        around_(joined({{syntax_.call}, syntax_.opens, syntax_.closes, syntax_.ignored})),
        name_end_(syntax_.closes_names()
                      ? syntax_.name_ends
                      : joined({syntax_.name_ends, syntax_.call_ends, {syntax_.key}})),
        tag_end_({syntax_.tag_end}),
        arguments_(syntax_, tools_.get()) {}

 private:
  enum class State {
    kText,
    kOpened,  // a mark of `opens` was read
    kName,    // a bare name, or the attributes of the call's tag
    kArguments,
  };

  void take(char c) override {
    switch (state_) {
      case State::kText:
      case State::kOpened:
        return take_around(c);
      case State::kName:
        return syntax_.name_ends.empty() ? take_call_tag(c) : take_name(c);
      case State::kArguments: {
        std::string arguments;
        if (arguments_.take(c, arguments)) state_ = State::kText;
        return emit_nonempty(arguments);
      }
    }
  }

  void take_around(char c) {
    std::string text;
    const auto mark = around_.take(c, text);
    take_plain(text);
    if (mark) take_mark(*mark);
  }

  void take_plain(std::string_view text) {
    if (state_ == State::kText) return emit_text(text);
    raw_ += text;
    if (!is_blank(text)) no_call();
  }

  void take_mark(size_t mark) {
    if (mark == 0) {
      raw_ += syntax_.call;
      head_.clear();
      state_ = State::kName;
    } else if (--mark; mark < syntax_.opens.size()) {
      raw_ += syntax_.opens[mark];
      state_ = State::kOpened;
    } else if (mark -= syntax_.opens.size(); mark < syntax_.closes.size()) {
      no_call();
      if (num_calls() == 0) return emit_text(syntax_.closes[mark]);
      drop_space();
    }
  }

  void take_name(char c) {
    raw_ += c;
    std::string text;
    const auto mark = name_end_.take(c, text);
    head_ += text;
    if (head_.size() > kHeadBytesMax) return no_call();
    const size_t num_name_ends = syntax_.name_ends.size();
    const bool is_name_end = mark && *mark < num_name_ends;
    if (is_name_end && is_line_break(syntax_.name_ends[*mark]) && is_blank(head_)) return;
    while (mark && !head_.empty() && is_json_space(head_.back())) head_.pop_back();
    head_.erase(0, head_.find_first_not_of(" \t\r\n"));
    if (!std::ranges::all_of(head_, is_tool_name_char) && (mark || !ends_blank(head_)))
      return no_call();
    if (!mark) return;
    if (head_.empty()) return no_call();
    begin(std::exchange(head_, {}));
    if (is_name_end) return;
    if (*mark < num_name_ends + syntax_.call_ends.size()) return end_call();
    arguments_.begin_key();
  }

  // A name whose line ends in spaces: they may still be the name's end.
  static bool ends_blank(std::string_view head) {
    while (!head.empty() && is_json_space(head.back())) head.remove_suffix(1);
    return std::ranges::all_of(head, is_tool_name_char);
  }

  void take_call_tag(char c) {
    raw_ += c;
    std::string text;
    const auto mark = tag_end_.take(c, text);
    head_ += text;
    if (head_.size() > kHeadBytesMax || (!head_.empty() && !is_json_space(head_[0])))
      return no_call();
    if (!mark) return;
    const bool is_empty = head_.ends_with('/');
    if (is_empty) head_.pop_back();
    const std::string name = markup_attribute(head_, {"name", "tool"});
    if (name.empty()) return no_call();
    begin(name);
    if (is_empty) end_call();
  }

  void begin(std::string name) {
    raw_.clear();
    arguments_.begin(name);
    begin_call(std::move(name));
    state_ = State::kArguments;
  }

  void end_call() {
    std::string arguments;
    arguments_.end(arguments);
    emit_arguments(arguments);
    state_ = State::kText;
  }

  // An empty piece would become an event without content.
  void emit_nonempty(std::string_view arguments) {
    if (!arguments.empty()) emit_arguments(arguments);
  }

  // Emits the characters since the mark as text, because they turned out to be no call. The
  // characters behind its first may begin one.
  void no_call() {
    const std::string raw = std::exchange(raw_, {});
    name_end_.flush(), tag_end_.flush();
    const bool was_name = state_ == State::kName;
    state_ = State::kText;
    if (!was_name || raw.empty()) return emit_text(raw);
    const size_t call = raw.rfind(syntax_.call, 0) == 0 ? 0 : raw.find(syntax_.call);
    const size_t read = call + syntax_.call.size();
    emit_text(std::string_view(raw).substr(0, read));
    for (const char c : std::string_view(raw).substr(read)) take(c);
  }

  void end() override {
    if (state_ == State::kArguments) {
      std::string arguments;
      arguments_.abandon(arguments);
      return emit_nonempty(arguments);
    }
    emit_text(std::exchange(raw_, {}));
    emit_text(around_.flush());
  }

  const MarkupSyntax syntax_;
  const std::shared_ptr<const json::value> tools_;
  MarkFinder around_, name_end_, tag_end_;
  MarkupArguments arguments_;
  State state_ = State::kText;
  std::string raw_;   // the characters since the mark, until they are certain to be a call
  std::string head_;  // of a name or a tag
};

}  // namespace

std::unique_ptr<ToolCallParser> make_markup_calls(MarkupSyntax syntax,
                                                  std::shared_ptr<const json::value> tools) {
  return std::make_unique<MarkupCalls>(std::move(syntax), std::move(tools));
}

}  // namespace espalier
