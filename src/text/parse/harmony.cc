#include "text/parse/harmony.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "base/check.h"
#include "text/parse/json_space.h"

namespace espalier {
namespace {

using Mark = HarmonySyntax::Mark;
constexpr std::string_view kFunctions = "functions.";
constexpr std::string_view kTo = "to=";

HarmonySyntax harmony_syntax() {
  return {.marks = {{"<|start|>", Mark::kStart},
                    {"<|channel|>", Mark::kChannel},
                    {"<|message|>", Mark::kMessage},
                    {"<|constrain|>", Mark::kConstrain},
                    {"<|end|>", Mark::kEnd},
                    {"<|call|>", Mark::kEnd},
                    {"<|return|>", Mark::kEnd}}};
}

HarmonySyntax beam_syntax() {
  HarmonySyntax syntax = harmony_syntax();
  syntax.begins_in_header = true;
  syntax.body = HarmonySyntax::Body::kMarkup;
  syntax.markup = {.opens = {},
                   .closes = {},
                   .call = "<rfl:call",
                   .name_ends = {},
                   .call_ends = {"</rfl:call>"},
                   .key = "<rfl:parameter",
                   .key_end = {},
                   .value = {},
                   .value_end = "</rfl:parameter>"};
  syntax.call_begin = "<rfl:call name=\"{}\">";
  syntax.call_end = "</rfl:call>";
  return syntax;
}

HarmonySyntax muse_syntax() {
  return {.marks = {{"<|start|>", Mark::kStart},
                    {"<|message|>", Mark::kMessage},
                    {"<|eom|>", Mark::kEnd},
                    {"<|eot|>", Mark::kEnd}},
          .begins_in_header = true,
          .recipients_are_channels = true,
          .body = HarmonySyntax::Body::kMarkup,
          .markup = {.opens = {"<atem:function_calls>"},
                     .closes = {"</atem:function_calls>"},
                     .call = "<atem:invoke",
                     .name_ends = {},
                     .call_ends = {"</atem:invoke>"},
                     .key = "<atem:parameter",
                     .key_end = {},
                     .value = {},
                     .value_end = "</atem:parameter>"}};
}

HarmonySyntax inkling_syntax() {
  return {.marks = {{"<|message_model|>", Mark::kStart},
                    {"<|content_text|>", Mark::kText},
                    {"<|content_invoke_tool_text|>", Mark::kText},  // it names no function
                    {"<|content_thinking|>", Mark::kReasoning},
                    {"<|content_invoke_tool_json|>", Mark::kCall},
                    {"<|end_message|>", Mark::kEnd},
                    {"<|content_model_end_sampling|>", Mark::kEnd}},
          .body = HarmonySyntax::Body::kNamedJson,
          .call_begin = "<tool_call>",
          .call_end = "</tool_call>"};
}

std::string_view without_space_before(std::string_view text) {
  while (!text.empty() && is_json_space(text[0])) text.remove_prefix(1);
  return text;
}

std::string_view first_word(std::string_view text) {
  text = without_space_before(text);
  return text.substr(0, text.find_first_of(" \t\r\n"));
}

// The function that a header's "to=" names; "" without one.
std::string recipient_of(std::string_view header) {
  const size_t to = header.find(kTo);
  if (to == std::string_view::npos) return {};
  std::string_view name = first_word(header.substr(to + kTo.size()));
  if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
  return std::string(name);
}

// Whether the text in front of the first mark may be the header that the prompt has begun: white
// space, then "to=" and a name.
bool may_be_header(std::string_view text) {
  text = without_space_before(text);
  if (text.size() < kTo.size()) return kTo.starts_with(text);
  return text.starts_with(kTo) && std::ranges::none_of(text, is_json_space);
}

class HarmonyCalls final : public ToolCallParser {
 public:
  HarmonyCalls(const HarmonySyntax& syntax, std::vector<std::string> tool_names,
               std::shared_ptr<const boost::json::value> tools)
      : syntax_(syntax),
        tool_names_(std::move(tool_names)),
        tools_(std::move(tools)),
        reader_(syntax) {}

 private:
  void take(char c) override { add(reader_.take(c)); }
  void end() override {
    add(reader_.finish());
    end_body(false);
  }

  void add(const HarmonyReader::Output& out) {
    if (out.begins && out.part == HarmonyReader::Part::kCall) begin_body(out.begun);
    if (out.part == HarmonyReader::Part::kText) emit_text(out.text);
    if (out.part == HarmonyReader::Part::kCall && !out.text.empty()) take_body(out.text);
    if (out.ended) end_body(true);
  }

  void begin_body(const std::string& name) {
    using Body = HarmonySyntax::Body;
    if (syntax_.body == Body::kArguments) {
      begin_call(name);
      is_open_ = true;
      has_arguments_ = false;
      return;
    }
    inner_ = syntax_.body == Body::kMarkup
                 ? make_markup_calls(syntax_.markup, tools_)
                 : std::move(*make_tool_call_parser("hermes", tool_names_, tools_));
    std::string begin = syntax_.call_begin;
    if (const size_t at = begin.find("{}"); at != std::string::npos) begin.replace(at, 2, name);
    if (!begin.empty()) forward(inner_->push(begin));
  }

  void take_body(std::string_view text) {
    if (inner_ != nullptr) return forward(inner_->push(text));
    has_arguments_ = true;
    emit_arguments(text);
  }

  // `complete`: its end was read.
  void end_body(bool complete) {
    if (std::exchange(is_open_, false) && !has_arguments_) emit_arguments("{}");
    if (inner_ == nullptr) return;
    if (complete && !syntax_.call_end.empty()) forward(inner_->push(syntax_.call_end));
    forward(inner_->finish());
    inner_.reset();
  }

  void forward(const ToolCallParts& parts) {
    emit_text(parts.text);
    for (const ToolCallParts::Piece& piece : parts.pieces) {
      if (!piece.name.empty()) begin_call(known_name(piece.name));
      emit_arguments(piece.arguments);
    }
  }

  // Muse may write a tool's name with a namespace before it.
  std::string known_name(const std::string& name) const {
    if (std::ranges::count(tool_names_, name) != 0) return name;
    const auto last = [](std::string_view text) { return text.substr(text.rfind('.') + 1); };
    const auto is_same = [&](const std::string& tool) { return last(tool) == last(name); };
    if (std::ranges::count_if(tool_names_, is_same) != 1) return name;
    return *std::ranges::find_if(tool_names_, is_same);
  }

  const HarmonySyntax& syntax_;
  const std::vector<std::string> tool_names_;
  const std::shared_ptr<const boost::json::value> tools_;
  HarmonyReader reader_;
  std::unique_ptr<ToolCallParser> inner_;  // of the call in progress, if it is not JSON alone
  bool is_open_ = false, has_arguments_ = false;  // of the call in progress
};

std::vector<std::string> texts_of(const HarmonySyntax& syntax) {
  std::vector<std::string> texts;
  for (const auto& [text, mark] : syntax.marks) texts.push_back(text);
  return texts;
}

}  // namespace

const HarmonySyntax* find_harmony_syntax(std::string_view name) {
  static const std::pair<std::string_view, HarmonySyntax> all[] = {{"gpt-oss", harmony_syntax()},
                                                                   {"beam", beam_syntax()},
                                                                   {"muse", muse_syntax()},
                                                                   {"inkling", inkling_syntax()}};
  for (const auto& [known, syntax] : all)
    if (known == name) return &syntax;
  return nullptr;
}

HarmonyReader::HarmonyReader(const HarmonySyntax& syntax)
    : syntax_(syntax),
      marks_(texts_of(syntax)),
      state_(syntax.begins_in_header ? State::kFirst : State::kOutside) {}

HarmonyReader::Output HarmonyReader::take(char c) {
  Output out;
  std::string text;
  const auto mark = marks_.take(c, text);
  switch (state_) {
    case State::kFirst:
      take_first(text, out);
      break;
    case State::kOutside:
      out.part = text.empty() ? Part::kNone : Part::kText;
      out.text = out.raw = text;
      break;
    case State::kHeader:
      header_ += text;
      if (in_channel_) channel_ += text;
      raw_ += text;
      break;
    case State::kBody:
      out.part = part_;
      out.text = out.raw = text;
      break;
  }
  if (mark) take_mark(*mark, out);
  return out;
}

// Keeps the text in header_ as long as it may be one.
void HarmonyReader::take_first(std::string_view text, Output& out) {
  header_ += text;
  if (may_be_header(header_)) return;
  state_ = State::kOutside;
  out.part = Part::kText;
  out.text = out.raw = std::exchange(header_, {});
}

void HarmonyReader::take_mark(size_t index, Output& out) {
  const Mark mark = syntax_.marks[index].second;
  if (state_ == State::kFirst) {  // the header is empty, or has a recipient
    raw_ = header_;
    state_ = State::kHeader;
  }
  switch (mark) {
    case Mark::kStart:
    case Mark::kChannel:
      return begin_header(index, out);
    case Mark::kConstrain:
      header_ += ' ';
      in_channel_ = false;
      raw_ += marks_.mark(index);
      return;
    case Mark::kMessage:
      if (state_ == State::kHeader) begin_body(index, out);
      return;
    case Mark::kText:
    case Mark::kReasoning:
    case Mark::kCall:
      if (state_ != State::kBody) begin_body(index, out);
      return;
    case Mark::kEnd:
      if (state_ == State::kBody) {
        out.ended = true;
        out.part = part_;
        out.raw += marks_.mark(index);
      }
      state_ = State::kOutside;
  }
}

void HarmonyReader::begin_header(size_t index, Output& out) {
  const Mark mark = syntax_.marks[index].second;
  if (state_ != State::kHeader || mark == Mark::kStart) {
    out.ended = state_ == State::kBody;
    header_.clear(), channel_.clear();
    raw_.clear();
  }
  state_ = State::kHeader;
  in_channel_ = mark == Mark::kChannel;
  header_ += ' ';
  raw_ += marks_.mark(index);
}

HarmonyReader::Part HarmonyReader::part_of(Mark mark, std::string_view recipient) const {
  if (mark == Mark::kText) return Part::kText;
  if (mark == Mark::kReasoning) return Part::kReasoning;
  if (mark == Mark::kCall) return Part::kCall;
  if (syntax_.recipients_are_channels) {
    if (recipient == "self") return Part::kReasoning;
    return recipient.empty() || recipient == "user" || recipient == "commentary" ? Part::kText
                                                                                 : Part::kCall;
  }
  if (!recipient.empty()) return Part::kCall;
  return first_word(channel_) == "analysis" ? Part::kReasoning : Part::kText;
}

void HarmonyReader::begin_body(size_t index, Output& out) {
  state_ = State::kBody;
  const std::string recipient = recipient_of(header_);
  part_ = part_of(syntax_.marks[index].second, recipient);
  out.part = part_;
  out.begins = true;
  out.begun = recipient;
  out.raw = std::exchange(raw_, {}) + marks_.mark(index);
}

HarmonyReader::Output HarmonyReader::finish() {
  Output out;
  if (state_ == State::kHeader) return out;  // no body came
  out.part = state_ == State::kBody ? part_ : Part::kText;
  out.text = out.raw = (state_ == State::kFirst ? header_ : "") + marks_.flush();
  return out;
}

std::unique_ptr<ToolCallParser> make_harmony_calls(
    std::string_view name, std::vector<std::string> tool_names,
    std::shared_ptr<const boost::json::value> tools) {
  const HarmonySyntax* const syntax = find_harmony_syntax(name);
  ESP_CHECK(syntax != nullptr);
  return std::make_unique<HarmonyCalls>(*syntax, std::move(tool_names), std::move(tools));
}

}  // namespace espalier
