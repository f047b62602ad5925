#include "text/parse/reasoning_parser.h"

#include <algorithm>

#include "text/parse/json_space.h"

namespace espalier {
namespace {

const std::vector<ReasoningFormat>& reasoning_formats() {
  static const std::vector<ReasoningFormat> all = {
      {"deepseek-r1", "<think>", "</think>", true}, {"deepseek-v3", "<think>", "</think>", false},
      {"glm45", "<think>", "</think>", false},      {"interns1", "<think>", "</think>", false},
      {"kimi", "◁think▷", "◁/think▷", false},       {"minimax", "<think>", "</think>", true},
      {"mistral", "[THINK]", "[/THINK]", false},    {"nemotron_3", "<think>", "</think>", false},
      {"qwen3", "<think>", "</think>", false},      {"qwen3-thinking", "<think>", "</think>", true},
      {"step3", "<think>", "</think>", true},
  };
  return all;
}

}  // namespace

std::vector<std::string> reasoning_format_names() {
  std::vector<std::string> names;
  for (const ReasoningFormat& format : reasoning_formats()) names.push_back(format.name);
  return names;
}

Result<ReasoningFormat> find_reasoning_format(std::string_view name) {
  std::string all;
  for (const ReasoningFormat& format : reasoning_formats()) {
    if (format.name == name) return format;
    all += (all.empty() ? "" : ", ") + format.name;
  }
  return fail(invalid_argument("'{}' is no reasoning parser; it must be one of {}", name, all));
}

ReasoningParser::ReasoningParser(const ReasoningFormat& format)
    : format_(format), state_(format.begun_by_template ? State::kReasoning : State::kBefore) {}

ReasoningParser::Parts ReasoningParser::push(std::string_view text) {
  Parts out;
  for (const char c : text) take(c, out);
  return out;
}

void ReasoningParser::add_reasoning(char c, Parts& out) {
  if (is_json_space(c)) {
    if (has_reasoning_) space_ += c;  // white space before it is dropped
    return;
  }
  has_reasoning_ = true;
  out.reasoning += space_;
  out.reasoning += c;
  space_.clear();
}

// Invariant: in each state, pending text is a proper prefix of a mark that the state searches for.
void ReasoningParser::take(char c, Parts& out) {
  switch (state_) {
    case State::kAnswer:
      out.answer += c;
      return;
    case State::kBehind:
      if (is_json_space(c)) return;
      state_ = State::kAnswer;
      out.answer += c;
      return;
    case State::kBefore: {
      pending_ += c;
      const size_t begin = pending_.find_first_not_of(" \n\t\r");
      const std::string_view mark = begin == std::string::npos
                                        ? std::string_view()
                                        : std::string_view(pending_).substr(begin);
      if (mark == format_.begin) {
        pending_.clear();
        state_ = State::kReasoning;
        seen_ = true;
      } else if (!std::string_view(format_.begin).starts_with(mark)) {
        out.answer += pending_;
        pending_.clear();
        state_ = State::kAnswer;
      }
      return;
    }
    case State::kReasoning:
      pending_ += c;
      // Some models repeat the mark that the template has written.
      if (!has_reasoning_ && !seen_ && pending_ == format_.begin) {
        pending_.clear();
        seen_ = true;
        return;
      }
      if (pending_ == format_.end) {
        pending_.clear();
        space_.clear();
        seen_ = true;
        state_ = State::kBehind;
        return;
      }
      while (!pending_.empty() && !std::string_view(format_.end).starts_with(pending_) &&
             (has_reasoning_ || seen_ || !std::string_view(format_.begin).starts_with(pending_))) {
        add_reasoning(pending_[0], out);
        pending_.erase(0, 1);
      }
      return;
  }
}

ReasoningParser::Parts ReasoningParser::finish() {
  Parts out;
  if (state_ == State::kReasoning) {
    for (const char c : std::exchange(pending_, {})) add_reasoning(c, out);
  } else {
    out.answer = std::exchange(pending_, {});
  }
  return out;
}

}  // namespace espalier
