#include "text/parse/pythonic_calls.h"

#include <algorithm>
#include <boost/json.hpp>
#include <cctype>
#include <charconv>
#include <utility>

#include "text/parse/json_space.h"
#include "text/parse/mark_finder.h"
#include "text/parse/markup_text.h"

namespace espalier {
namespace {

namespace json = boost::json;

constexpr int kDepthMax = 64;

// Reads a call's keyword arguments as literals of Python, with JSON's true, false and null too,
// since models mix them. Nothing for whatever else stands there: an expression, a positional
// argument, a string without its end. Later arguments of one name replace earlier ones.
class LiteralReader {
 public:
  explicit LiteralReader(std::string_view text) : text_(text) {}

  std::optional<json::object> arguments() {
    json::object out;
    while (skip_space(), !text_.empty()) {
      const std::string name = identifier();
      skip_space();
      if (name.empty() || !eat("=")) return std::nullopt;
      auto value = literal(0);
      if (!value) return std::nullopt;
      out[name] = std::move(*value);
      skip_space();
      if (!text_.empty() && !eat(",")) return std::nullopt;
    }
    return out;
  }

 private:
  void skip_space() {
    while (!text_.empty() && std::isspace(static_cast<unsigned char>(text_[0]))) pop();
  }
  void pop(size_t count = 1) { text_.remove_prefix(count); }
  bool eat(std::string_view word) {
    if (!text_.starts_with(word)) return false;
    pop(word.size());
    return true;
  }
  std::string identifier() {
    size_t size = 0;
    while (size < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[size])) || text_[size] == '_'))
      ++size;
    std::string out(text_.substr(0, size));
    pop(size);
    return out;
  }

  std::optional<json::value> literal(int depth) {
    skip_space();
    if (text_.empty() || depth > kDepthMax) return std::nullopt;
    const char c = text_[0];
    if (c == '"' || c == '\'') return string();
    if (c == '[' || c == '(') return list(c == '[' ? ']' : ')', depth);
    if (c == '{') return dictionary(depth);
    if (eat("True") || eat("true")) return json::value(true);
    if (eat("False") || eat("false")) return json::value(false);
    if (eat("None") || eat("null")) return json::value(nullptr);
    return number();
  }

  // Integers that fit 64 bits stay integers; others become doubles.
  std::optional<json::value> number() {
    size_t size = 0;
    while (size < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[size])) ||
                                   std::string_view("+-._").find(text_[size]) != std::string::npos))
      ++size;
    std::string word;
    for (const char c : text_.substr(0, size))
      if (c != '_') word += c;
    if (word.starts_with('+')) word.erase(0, 1);
    pop(size);
    int64_t whole = 0;
    const char* const end = word.data() + word.size();
    if (const auto r = std::from_chars(word.data(), end, whole);
        r.ec == std::errc() && r.ptr == end)
      return json::value(whole);
    double real = 0;
    if (const auto r = std::from_chars(word.data(), end, real); r.ec == std::errc() && r.ptr == end)
      return json::value(real);
    return std::nullopt;
  }

  std::optional<json::value> string() {
    const char quote = text_[0];
    pop();
    std::string out;
    while (!text_.empty() && text_[0] != quote) {
      char c = text_[0];
      pop();
      if (c == '\\' && !text_.empty()) {
        c = text_[0];
        pop();
        if (c == 'n') c = '\n';
        if (c == 't') c = '\t';
        if (c == 'r') c = '\r';
      }
      out += c;
    }
    if (!eat(std::string_view(&quote, 1))) return std::nullopt;
    return json::value(out);
  }

  std::optional<json::value> list(char close, int depth) {
    pop();
    json::array out;
    while (skip_space(), !eat(std::string_view(&close, 1))) {
      auto item = literal(depth + 1);
      if (!item) return std::nullopt;
      out.push_back(std::move(*item));
      skip_space();
      if (!eat(",") && !text_.starts_with(close)) return std::nullopt;
    }
    return out;
  }

  std::optional<json::value> dictionary(int depth) {
    pop();
    json::object out;
    while (skip_space(), !eat("}")) {
      const auto key = literal(depth + 1);
      skip_space();
      if (!key || !eat(":")) return std::nullopt;
      auto value = literal(depth + 1);
      if (!value) return std::nullopt;
      // JSON's keys are strings, so a key that is a number or a list is written as its JSON.
      out[key->is_string() ? key->get_string() : json::string(json::serialize(*key))] =
          std::move(*value);
      skip_space();
      if (!eat(",") && !text_.starts_with('}')) return std::nullopt;
    }
    return out;
  }

  std::string_view text_;
};

// A call is emitted when its parenthesis closes.
class PythonicCalls final : public ToolCallParser {
 public:
  PythonicCalls(std::string begin, std::string end, std::vector<std::string> tool_names)
      : is_marked_(!begin.empty()),
        marks_({std::move(begin), std::move(end)}),
        tool_names_(std::move(tool_names)),
        state_(is_marked_ ? State::kText : State::kStart) {}

 private:
  // kStart: the opening bracket is awaited. `raw_` holds what may still turn out to be no call, and
  // is emitted as text then.
  enum class State { kStart, kText, kName, kArguments };

  void take(char c) override {
    switch (state_) {
      case State::kStart:
        raw_ += c;
        if (is_json_space(c)) return;
        if (c != '[') return no_call();
        state_ = State::kName;
        return;
      case State::kText:
        return take_text(c);
      case State::kName:
        return take_name(c);
      case State::kArguments:
        return take_arguments(c);
    }
  }

  void take_text(char c) {
    if (!is_marked_) return emit_text({&c, 1});
    std::string text;
    const auto mark = marks_.take(c, text);
    emit_text(text);
    if (!mark) return;
    if (*mark == 0) {
      raw_ = marks_.mark(0);
      state_ = State::kStart;
    } else if (num_calls() == 0) {
      emit_text(marks_.mark(*mark));
    } else {
      drop_space();
    }
  }

  // Without a mark in front, a '[' may begin ordinary text, so only names of the request's tools
  // count as calls.
  void take_name(char c) {
    raw_ += c;
    if (c == '(' && !name_.empty() && (is_marked_ || is_tool(name_))) {
      state_ = State::kArguments;
      depth_ = 1;
    } else if (is_tool_name_char(c)) {
      name_ += c;
    } else if (c == ']' && name_.empty() && num_calls() > 0) {
      raw_.clear();
      state_ = State::kText;
    } else if (!is_json_space(c) && !(c == ',' && name_.empty() && num_calls() > 0)) {
      no_call();
    }
  }

  // Brackets within quotes do not count, so the call ends at the parenthesis that closes it.
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
      state_ = State::kName;
      return;
    }
    arguments_ += c;
  }

  bool is_tool(const std::string& name) const {
    return std::find(tool_names_.begin(), tool_names_.end(), name) != tool_names_.end();
  }

  void no_call() {
    emit_text(std::exchange(raw_, {}));
    name_.clear();
    arguments_.clear();
    state_ = State::kText;
  }
  void end() override {
    emit_text(raw_);
    emit_text(marks_.flush());
  }

  const bool is_marked_;
  MarkFinder marks_;
  const std::vector<std::string> tool_names_;
  State state_;
  std::string raw_, name_, arguments_;
  int depth_ = 0;
  char quote_ = '\0';
  bool escaped_ = false;
};

}  // namespace

std::optional<std::string> python_arguments_to_json(std::string_view text) {
  const auto arguments = LiteralReader(text).arguments();
  if (!arguments) return std::nullopt;
  return json::serialize(*arguments);
}

std::unique_ptr<ToolCallParser> make_pythonic_calls(std::string begin, std::string end,
                                                    std::vector<std::string> tool_names) {
  return std::make_unique<PythonicCalls>(std::move(begin), std::move(end), std::move(tool_names));
}

}  // namespace espalier
