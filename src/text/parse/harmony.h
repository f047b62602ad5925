// The harmony format of gpt-oss: messages with a channel and a recipient,
//   <|channel|>analysis<|message|>...<|end|>
//   <|start|>assistant<|channel|>commentary to=functions.f
//   <|constrain|>json<|message|>{...}<|call|>
//   <|start|>assistant<|channel|>final<|message|>...<|return|>
// Internal to the folder.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/parse/mark_finder.h"
#include "text/parse/tool_call_parser.h"

namespace espalier {

// Splits text, character by character, into what belongs to which message. Not thread-safe.
class HarmonyReader {
 public:
  enum class Part { kNone, kReasoning, kText, kCall };
  struct Output {
    Part part = Part::kNone;
    std::string text;    // of the body
    std::string begun;   // not empty: a call of this function begins, before `text`
    bool ended = false;  // the message ends, behind `text`
    std::string raw;     // all characters that are certain, marks and headers included
  };

  HarmonyReader();
  Output take(char c);
  Output finish();

 private:
  enum class State { kOutside, kHeader, kBody };
  void take_mark(size_t mark, Output& out);
  void begin_body(Output& out);

  MarkFinder marks_;
  State state_ = State::kOutside;
  Part part_ = Part::kText;  // of the body
  std::string raw_;          // of a message, until its header is complete
  std::string header_, channel_;
  bool in_channel_ = false;  // the header's part behind <|channel|>
};

// Text of the channels "final" and "commentary" is text; that of "analysis" is dropped, for it is
// the reasoning parser's. Thread-safe.
std::unique_ptr<ToolCallParser> make_harmony_calls();

}  // namespace espalier
