#include "text/parse/gemma_calls.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "text/parse/json_space.h"
#include "text/parse/mark_finder.h"
#include "text/parse/markup_text.h"

namespace espalier {
namespace {

namespace json = boost::json;

constexpr int kDepthMax = 64;
constexpr std::string_view kCallWord = "call:";

// Reads a value of the notation. Borrows the text.
class GemmaReader {
 public:
  explicit GemmaReader(std::string_view text) : text_(text) {}

  std::optional<json::object> arguments() {
    skip_space();
    auto out = object(0);
    skip_space();
    return text_.empty() ? out : std::nullopt;
  }

 private:
  bool eat(std::string_view word) {
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  void skip_space() {
    while (!text_.empty() && is_json_space(text_[0])) text_.remove_prefix(1);
  }
  std::optional<std::string> quoted() {
    if (!eat(kGemmaQuote)) return std::nullopt;
    const size_t end = text_.find(kGemmaQuote);
    if (end == std::string_view::npos) return std::nullopt;
    std::string out(text_.substr(0, end));
    text_.remove_prefix(end + std::string_view(kGemmaQuote).size());
    return out;
  }
  std::string bare(std::string_view ends) {
    const std::string_view word = text_.substr(0, text_.find_first_of(ends));
    text_.remove_prefix(word.size());
    const size_t last = word.find_last_not_of(" \t\r\n");
    return std::string(word.substr(0, last == std::string_view::npos ? 0 : last + 1));
  }

  std::optional<json::object> object(int depth) {
    if (depth > kDepthMax || !eat("{")) return std::nullopt;
    json::object out;
    while (skip_space(), !eat("}")) {
      auto key = text_.starts_with(kGemmaQuote) ? quoted() : bare(":,}");
      skip_space();
      if (!key || !eat(":")) return std::nullopt;
      auto one = value(depth);
      if (!one) return std::nullopt;
      out[*key] = std::move(*one);
      skip_space();
      if (!eat(",") && !text_.starts_with('}')) return std::nullopt;
    }
    return out;
  }
  std::optional<json::value> list(int depth) {
    json::array out;
    while (skip_space(), !eat("]")) {
      auto one = value(depth);
      if (!one) return std::nullopt;
      out.push_back(std::move(*one));
      skip_space();
      if (!eat(",") && !text_.starts_with(']')) return std::nullopt;
    }
    return out;
  }
  std::optional<json::value> value(int depth) {
    skip_space();
    if (text_.starts_with(kGemmaQuote)) {
      const auto text = quoted();
      if (!text) return std::nullopt;
      return json::value(json::string(*text));
    }
    if (text_.starts_with('{')) {
      auto made = object(depth + 1);
      if (!made) return std::nullopt;
      return json::value(std::move(*made));
    }
    if (depth < kDepthMax && eat("[")) return list(depth + 1);
    const std::string word = bare(",}]");
    json::error_code failed;
    json::value parsed = json::parse(word, failed);
    if (failed) return json::value(json::string(word));
    return parsed;
  }

  std::string_view text_;
};

class GemmaCalls final : public ToolCallParser {
 public:
  GemmaCalls() : begins_({kGemmaCallBegin}), ends_({kGemmaCallEnd}) {}

 private:
  void take(char c) override {
    std::string text;
    if (!in_call_) {
      in_call_ = begins_.take(c, text).has_value();
      return emit_text(text);
    }
    if (!ends_.take(c, call_)) return;
    in_call_ = false;
    const std::string call = std::exchange(call_, {});
    if (!emit_call(call)) emit_text(kGemmaCallBegin + call + kGemmaCallEnd);
  }

  bool emit_call(std::string_view call) {
    const size_t brace = call.find('{');
    if (!call.starts_with(kCallWord) || brace == std::string_view::npos) return false;
    const std::string_view name = call.substr(kCallWord.size(), brace - kCallWord.size());
    const auto arguments = gemma_arguments_to_json(call.substr(brace));
    if (name.empty() || !std::ranges::all_of(name, is_tool_name_char) || !arguments) return false;
    begin_call(std::string(name));
    emit_arguments(*arguments);
    return true;
  }

  void end() override {
    emit_text(begins_.flush());
    if (in_call_) emit_text(kGemmaCallBegin + call_ + ends_.flush());
  }

  MarkFinder begins_, ends_;
  bool in_call_ = false;
  std::string call_;  // the characters since the mark
};

}  // namespace

std::optional<std::string> gemma_arguments_to_json(std::string_view text) {
  const auto arguments = GemmaReader(text).arguments();
  if (!arguments) return std::nullopt;
  return json::serialize(*arguments);
}

std::unique_ptr<ToolCallParser> make_gemma_calls() { return std::make_unique<GemmaCalls>(); }

}  // namespace espalier
