// Splits generated text into the reasoning ("<think>...</think>") and the answer, while it arrives.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/parse/harmony.h"
#include "text/parse/response_regions.h"

namespace espalier {

// How a family of models marks its reasoning.
struct ReasoningFormat {
  std::string name;
  std::string begin, end;
  bool begun_by_template = false;  // the prompt ends inside the reasoning: no `begin` comes
  std::string tool_begin = {};     // the mark of a tool call, which ends the reasoning too
  bool is_harmony = false;         // messages as harmony.h has them; `end` begins the answer
  bool in_answer = false;          // it stays in the answer, with `begin` in front and its end
  // Of "response_template", set by the caller that chose the format: the checkpoint's template, and
  // what the prompt has written of the answer (ResponseTemplate::begun_answer).
  std::shared_ptr<const ResponseTemplate> response_template = nullptr;
  std::string begun_answer = {};
};

// The format "response_template" of a checkpoint's template. `begin` and `end` are the field's
// delimiters where each is one text, else empty. kInvalidArgument: it has no field for reasoning.
Result<ReasoningFormat> reasoning_format_of(std::shared_ptr<const ResponseTemplate> spec);

// By the names that SGLang's --reasoning-parser has. kInvalidArgument lists them.
Result<ReasoningFormat> find_reasoning_format(std::string_view name);
std::vector<std::string> reasoning_format_names();

// The format of a chat template, by the marks in it; "" for a template without marks. Pure.
std::string detect_reasoning_format(std::string_view chat_template);

// Not thread-safe; one parser for each answer. The concatenated parts do not depend on how the text
// is cut into pieces: a mark that a piece cuts stays pending until it is complete or refuted. White
// space next to the marks is dropped. An answer without reasoning is returned unchanged. Calls in
// the harmony format and of response templates stay in the answer with their marks.
class ReasoningParser {
 public:
  struct Parts {
    std::string reasoning, answer;
  };
  explicit ReasoningParser(const ReasoningFormat& format);

  Parts push(std::string_view text);
  Parts finish();  // the pending text; no push() may follow

  bool inside() const { return state_ == State::kReasoning; }
  bool seen() const { return seen_; }  // there was some reasoning, or its end

 private:
  enum class State { kBefore, kReasoning, kBehind, kAnswer };
  void take(char c, Parts& out);
  void take_reasoning(char c, Parts& out);
  void add_reasoning(char c, Parts& out);
  void take_harmony(const HarmonyReader::Output& part, Parts& out);
  void take_region(const ResponseRegions::Part& part, Parts& out);
  bool may_be_mark() const;

  const ReasoningFormat format_;
  State state_;
  bool seen_ = false;
  std::string pending_;  // could still become a mark
  std::string space_;    // white space of the reasoning that is not its end yet
  bool has_reasoning_ = false;
  std::optional<HarmonyReader> harmony_;
  std::optional<ResponseRegions> regions_;
  std::string begun_;  // a call that the prompt has begun, until the answer's first text
};

}  // namespace espalier
