#include "text/parse/reasoning_parser.h"

#include <algorithm>

#include "text/parse/harmony.h"
#include "text/parse/json_space.h"

namespace espalier {
namespace {

const std::vector<ReasoningFormat>& reasoning_formats() {
  static const char* const kBegin = "<think>";
  static const char* const kEnd = "</think>";
  static const char* const kToolCall = "<tool_call>";
  static const std::vector<ReasoningFormat> all = {
      {"apertus2509", "<|inner_prefix|>", "<|inner_suffix|>", false, "<|tools_prefix|>"},
      {"beam", "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", true, {}, true},
      {"cohere_command4", "<|START_THINKING|>", "<|END_THINKING|>", false, "<|START_ACTION|>"},
      {"deepseek-r1", kBegin, kEnd, true},
      {"deepseek-v3", kBegin, kEnd},
      {"deepseek-v4", kBegin, kEnd},
      {"deepseek-v41", kBegin, kEnd},
      {"dots", kBegin, kEnd},
      {"gemma4", "<|channel>thought\n", "<channel|>", false, "<|tool_call>"},
      {"gigachat35", kBegin, kEnd, true},
      {"glm45", kBegin, kEnd, false, kToolCall},
      {"gpt-oss", "<|channel|>analysis<|message|>", "<|channel|>final<|message|>", true, {}, true},
      {"granite_thinking_parser", kBegin, kEnd, false, kToolCall},
      {"hunyuan", kBegin, kEnd},
      {"inkling", "<|content_thinking|>", "<|content_text|>", true, {}, true},
      {"interns1", kBegin, kEnd},
      {"iquest_q1", kBegin, kEnd, true},
      {"k2_horizon", "<ifm|think>", "</ifm|think>", true, "<ifm|tool_call"},
      {"kimi", "◁think▷", "◁/think▷"},
      {"kimi_k2", kBegin, kEnd, false, "<|tool_calls_section_begin|>"},
      {"kimi_k3", "<|open|>think<|sep|>", "<|close|>think<|sep|>", false, "<|open|>tools<|sep|>"},
      {"ling3", kBegin, kEnd, false, kToolCall},
      {"mimo", kBegin, kEnd},
      {"minimax", kBegin, kEnd, true},
      {"minimax-append-think", kBegin, kEnd, true, {}, false, true},
      {"minimax-m3", "<mm:think>", "</mm:think>"},
      {"mistral", "[THINK]", "[/THINK]"},
      {"muse", " to=self<|message|>", " to=user<|message|>", true, {}, true},
      {"nanbeige", kBegin, kEnd},
      {"nemotron_3", kBegin, kEnd, false, kToolCall},
      {"poolside_v1", kBegin, kEnd},
      {"qwen3", kBegin, kEnd, false, kToolCall},
      {"qwen3-thinking", kBegin, kEnd, true},
      {"response_template", "", ""},
      {"step3", kBegin, kEnd, true},
      {"step3p5", kBegin, kEnd, true},
  };
  return all;
}

}  // namespace

std::vector<std::string> reasoning_format_names() {
  std::vector<std::string> names;
  for (const ReasoningFormat& format : reasoning_formats()) names.push_back(format.name);
  return names;
}

// Formats with the same marks differ in the mark of tool calls, which follows the first sign.
std::string detect_reasoning_format(std::string_view chat_template) {
  constexpr std::pair<std::string_view, std::string_view> kSigns[] = {
      {"◁think▷", "kimi"},
      {"<|START_THINKING|>", "cohere_command4"},
      {"<|inner_prefix|>", "apertus2509"},
      {"<mm:think>", "minimax-m3"},
      {"<ifm|think>", "k2_horizon"},
      {"<|open|>think<|sep|>", "kimi_k3"},
      {"[THINK]", "mistral"},
      {"<rfl:parameter", "beam"},
      {"<atem:invoke", "muse"},
      {"<|content_thinking|>", "inkling"},
      {"<|channel|>analysis", "gpt-oss"},
      {"<|channel>thought", "gemma4"},
  };
  const auto has = [&](std::string_view sign) {
    return chat_template.find(sign) != std::string_view::npos;
  };
  for (const auto& [sign, name] : kSigns)
    if (has(sign)) return std::string(name);
  if (!has("</think>")) return {};
  return has("<|tool_calls_section_begin|>") ? "kimi_k2" : "qwen3";
}

Result<ReasoningFormat> find_reasoning_format(std::string_view name) {
  std::string all;
  for (const ReasoningFormat& format : reasoning_formats()) {
    if (format.name == name) return format;
    all += (all.empty() ? "" : ", ") + format.name;
  }
  return fail(invalid_argument(
      "reasoning_parser: '{}' is no reasoning parser; it must be one of {}", name, all));
}

Result<ReasoningFormat> reasoning_format_of(std::shared_ptr<const ResponseTemplate> spec) {
  ESP_ASSIGN_OR_RETURN(ReasoningFormat format, find_reasoning_format("response_template"));
  const ResponseField* const field = spec->find(ResponseField::Role::kReasoning);
  if (field == nullptr)
    return fail(invalid_argument("the model's response_template has no field for reasoning"));
  if (field->open && field->close && !field->open->literal.empty() &&
      !field->close->literal.empty()) {
    format.begin = field->open->literal;
    format.end = field->close->literal;
  }
  format.response_template = std::move(spec);
  return format;
}

ReasoningParser::ReasoningParser(const ReasoningFormat& format)
    : format_(format),
      state_(format.in_answer           ? State::kAnswer
             : format.begun_by_template ? State::kReasoning
                                        : State::kBefore) {
  if (format.is_harmony) harmony_.emplace(*find_harmony_syntax(format.name));
  if (format.response_template == nullptr) return;
  regions_.emplace(format.response_template);
  Parts ignored;
  for (const ResponseRegions::Part& part : regions_->begin_behind(format.begun_answer))
    take_region(part, ignored);
  begun_ = std::move(ignored.answer);
}

ReasoningParser::Parts ReasoningParser::push(std::string_view text) {
  Parts out;
  if (regions_) {
    out.answer = std::exchange(begun_, {});
    std::vector<ResponseRegions::Part> parts;
    regions_->push(text, parts);
    for (const ResponseRegions::Part& part : parts) take_region(part, out);
    return out;
  }
  if (format_.in_answer && !text.empty()) {
    if (!std::exchange(seen_, true)) out.answer = format_.begin;
    out.answer += text;
    return out;
  }
  for (const char c : text) {
    if (harmony_) {
      take_harmony(harmony_->take(c), out);
    } else {
      take(c, out);
    }
  }
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
      return take_reasoning(c, out);
  }
}

// Some models repeat the mark that the template has written.
bool ReasoningParser::may_be_mark() const {
  return std::string_view(format_.end).starts_with(pending_) ||
         std::string_view(format_.tool_begin).starts_with(pending_) ||
         (!has_reasoning_ && !seen_ && std::string_view(format_.begin).starts_with(pending_));
}

void ReasoningParser::take_reasoning(char c, Parts& out) {
  pending_ += c;
  if (pending_ == format_.end || pending_ == format_.tool_begin) {
    const bool is_end = pending_ == format_.end;
    if (!is_end) out.answer += pending_;
    pending_.clear();
    space_.clear();
    seen_ = true;
    state_ = is_end ? State::kBehind : State::kAnswer;
    return;
  }
  if (!has_reasoning_ && !seen_ && pending_ == format_.begin) {
    pending_.clear();
    seen_ = true;
    return;
  }
  while (!pending_.empty() && !may_be_mark()) {
    add_reasoning(pending_[0], out);
    pending_.erase(0, 1);
  }
}

void ReasoningParser::take_harmony(const HarmonyReader::Output& part, Parts& out) {
  using Part = HarmonyReader::Part;
  if (part.part == Part::kReasoning) {
    seen_ = true;
    state_ = State::kReasoning;
    for (const char c : part.text) add_reasoning(c, out);
  } else if (part.part != Part::kNone) {
    state_ = State::kAnswer;
    space_.clear();
    out.answer += part.part == Part::kCall ? part.raw : part.text;
  }
}

// Calls keep their delimiters, which the tool call parser reads. White space around reasoning and
// around text is dropped where the field strips it. Without a field for it all text is text.
void ReasoningParser::take_region(const ResponseRegions::Part& part, Parts& out) {
  using Kind = ResponseRegions::Part::Kind;
  using Role = ResponseField::Role;
  if (part.field != nullptr && part.field->role == Role::kReasoning) {
    seen_ = true;
    state_ = part.kind == Kind::kClose ? State::kBehind : State::kReasoning;
    if (part.kind != Kind::kText) return space_.clear();
    for (const char c : part.text) add_reasoning(c, out);
    return;
  }
  if (part.field != nullptr && part.field->role == Role::kCalls) {
    state_ = part.kind == Kind::kClose ? State::kBehind : State::kAnswer;
    space_.clear();
    out.answer += part.text;
    return;
  }
  if (part.kind != Kind::kText) {
    space_.clear();
    state_ = State::kBehind;
    return;
  }
  const ResponseField* const text = format_.response_template->find(Role::kText);
  if (part.field == nullptr && text != nullptr) return;  // between messages
  for (const char c : part.text) {
    if (text == nullptr || !text->content.strip) {
      state_ = State::kAnswer;
      out.answer += c;
    } else if (!is_json_space(c)) {
      state_ = State::kAnswer;
      out.answer += std::exchange(space_, {}) + c;
    } else if (state_ == State::kAnswer) {
      space_ += c;
    }
  }
}

ReasoningParser::Parts ReasoningParser::finish() {
  Parts out;
  if (regions_) {
    out.answer = std::exchange(begun_, {});
    std::vector<ResponseRegions::Part> parts;
    regions_->finish(parts);
    for (const ResponseRegions::Part& part : parts) take_region(part, out);
    return out;
  }
  if (harmony_) {
    take_harmony(harmony_->finish(), out);
  } else if (state_ == State::kReasoning) {
    for (const char c : std::exchange(pending_, {})) add_reasoning(c, out);
  } else {
    out.answer = std::exchange(pending_, {});
  }
  return out;
}

}  // namespace espalier
