// The harmony format of gpt-oss: messages with a channel and a recipient,
//   <|channel|>analysis<|message|>...<|end|>
//   <|start|>assistant<|channel|>commentary to=functions.f
//   <|constrain|>json<|message|>{...}<|call|>
//   <|start|>assistant<|channel|>final<|message|>...<|return|>
// and its kin, whose calls have a notation of their own: Beam, whose prompt ends behind the first
// <|start|>assistant,
//    to=f<|channel|>analysis <|constrain|>xml<|message|>
//   <rfl:parameter name="k">
//   v
//   </rfl:parameter><|call|>
// Muse, whose recipients are its channels,
//    to=self<|message|>...<|eom|><|start|>assistant to=functions.f<|message|>
//   <atem:function_calls><atem:invoke name="f">...</atem:invoke></atem:function_calls><|eot|>
// and Inkling, whose messages state the kind of their content:
//   <|message_model|><|content_thinking|>...<|end_message|>
//   <|message_model|>f<|content_invoke_tool_json|>{"name": "f", "args": {...}}<|end_message|>
// Internal to the folder.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/parse/mark_finder.h"
#include "text/parse/markup_calls.h"
#include "text/parse/tool_call_parser.h"

namespace espalier {

struct HarmonySyntax {
  enum class Mark {
    kStart,      // of a header
    kChannel,    // in it, in front of a channel's name
    kConstrain,  // in it, in front of a format's name
    kMessage,    // begins a body, of which the header says what it is
    kText,       // begins a body of text, and so on
    kReasoning,
    kCall,
    kEnd,  // of a body
  };
  std::vector<std::pair<std::string, Mark>> marks;
  bool begins_in_header = false;         // the prompt ends inside the first one
  bool recipients_are_channels = false;  // "self" has reasoning, "user" and "commentary" text
  // What a call's body is: the arguments as JSON, markup, or JSON with the name.
  enum class Body { kArguments, kMarkup, kNamedJson };
  Body body = Body::kArguments;
  MarkupSyntax markup = {};  // of kMarkup
  // What the body's reader gets around it; "{}" is the recipient.
  std::string call_begin = {}, call_end = {};
};

// Of "gpt-oss", "beam", "muse" and "inkling"; null: of no other name. It lives as long as the
// process.
const HarmonySyntax* find_harmony_syntax(std::string_view name);

// Splits text, character by character, into what belongs to which message. Not thread-safe.
class HarmonyReader {
 public:
  enum class Part { kNone, kReasoning, kText, kCall };
  struct Output {
    Part part = Part::kNone;
    std::string text;     // of the body
    bool begins = false;  // a body begins, before `text`
    std::string begun;    // then, of a call: the recipient in its header, if there is one
    bool ended = false;   // the message ends, behind `text`
    std::string raw;      // all characters that are certain, marks and headers included
  };

  explicit HarmonyReader(const HarmonySyntax& syntax);  // which is to outlive it
  Output take(char c);
  Output finish();

 private:
  enum class State { kFirst, kOutside, kHeader, kBody };
  using Mark = HarmonySyntax::Mark;
  void take_first(std::string_view text, Output& out);
  void take_mark(size_t index, Output& out);
  void begin_header(size_t index, Output& out);
  void begin_body(size_t index, Output& out);
  Part part_of(Mark mark, std::string_view recipient) const;

  const HarmonySyntax& syntax_;
  MarkFinder marks_;
  State state_;
  Part part_ = Part::kText;  // of the body
  std::string raw_;          // of a message, until its header is complete
  std::string header_, channel_;
  bool in_channel_ = false;  // the header's part behind <|channel|>
};

// Text of the channels "final" and "commentary" is text; that of "analysis" is dropped, for it is
// the reasoning parser's. Thread-safe. REQUIRES: find_harmony_syntax(name).
std::unique_ptr<ToolCallParser> make_harmony_calls(std::string_view name,
                                                   std::vector<std::string> tool_names,
                                                   std::shared_ptr<const boost::json::value> tools);

}  // namespace espalier
