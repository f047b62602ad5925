#include "text/parse/harmony.h"

#include <utility>

#include "text/parse/json_space.h"

namespace espalier {
namespace {

enum HarmonyMark : size_t { kStartMark, kChannelMark, kMessageMark, kConstrainMark };
constexpr std::string_view kFunctions = "functions.";

std::string_view first_word(std::string_view text) {
  while (!text.empty() && is_json_space(text[0])) text.remove_prefix(1);
  return text.substr(0, text.find_first_of(" \t\r\n"));
}

// The function that a header's "to=" names; "" without one.
std::string recipient_of(std::string_view header) {
  const size_t to = header.find("to=");
  if (to == std::string_view::npos) return {};
  std::string_view name = first_word(header.substr(to + 3));
  if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
  return std::string(name);
}

class HarmonyCalls final : public ToolCallParser {
 private:
  void take(char c) override { add(reader_.take(c)); }
  void end() override {
    add(reader_.finish());
    end_arguments();
  }

  void add(const HarmonyReader::Output& out) {
    if (!out.begun.empty()) {
      begin_call(out.begun);
      is_open_ = true;
      has_arguments_ = false;
    }
    if (out.part == HarmonyReader::Part::kText) emit_text(out.text);
    if (out.part == HarmonyReader::Part::kCall && !out.text.empty()) {
      has_arguments_ = true;
      emit_arguments(out.text);
    }
    if (out.ended) end_arguments();
  }

  void end_arguments() {
    if (std::exchange(is_open_, false) && !has_arguments_) emit_arguments("{}");
  }

  HarmonyReader reader_;
  bool is_open_ = false, has_arguments_ = false;  // of the call in progress
};

}  // namespace

HarmonyReader::HarmonyReader()
    : marks_({"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>",
              "<|return|>"}) {}

HarmonyReader::Output HarmonyReader::take(char c) {
  Output out;
  std::string text;
  const auto mark = marks_.take(c, text);
  switch (state_) {
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

void HarmonyReader::take_mark(size_t mark, Output& out) {
  switch (mark) {
    case kStartMark:
    case kChannelMark:
      if (state_ != State::kHeader || mark == kStartMark) {
        out.ended = state_ == State::kBody;
        header_.clear(), channel_.clear();
        raw_.clear();
      }
      state_ = State::kHeader;
      in_channel_ = mark == kChannelMark;
      header_ += ' ';
      raw_ += marks_.mark(mark);
      return;
    case kConstrainMark:
      header_ += ' ';
      in_channel_ = false;
      raw_ += marks_.mark(mark);
      return;
    case kMessageMark:
      if (state_ == State::kHeader) begin_body(out);
      return;
    default:  // an end
      if (state_ == State::kBody) {
        out.ended = true;
        out.part = part_;
        out.raw += marks_.mark(mark);
      }
      state_ = State::kOutside;
  }
}

void HarmonyReader::begin_body(Output& out) {
  state_ = State::kBody;
  const std::string recipient = recipient_of(header_);
  const bool is_analysis = first_word(channel_) == "analysis";
  part_ = !recipient.empty() ? Part::kCall : is_analysis ? Part::kReasoning : Part::kText;
  out.part = part_;
  out.begun = recipient;
  out.raw = std::exchange(raw_, {}) + marks_.mark(kMessageMark);
}

HarmonyReader::Output HarmonyReader::finish() {
  Output out;
  if (state_ == State::kHeader) return out;  // no body came
  out.part = state_ == State::kBody ? part_ : Part::kText;
  out.text = out.raw = marks_.flush();
  return out;
}

std::unique_ptr<ToolCallParser> make_harmony_calls() { return std::make_unique<HarmonyCalls>(); }

}  // namespace espalier
