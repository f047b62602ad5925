// The gens and selects of one prompt state, and API speculation: what an earlier call wrote beyond
// its stop answers later gens. Internal to the room.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lang/interpreter/calls.h"
#include "lang/interpreter/operation.h"
#include "lang/interpreter/outcomes.h"
#include "lang/interpreter/pending_message.h"
#include "lang/interpreter/prompt_text.h"
#include "lang/interpreter/session.h"
#include "lang/interpreter/speculation.h"

namespace espalier::lang {

// Not thread-safe: belongs to the thread that has the stream's turn. The parts outlive it.
class GenRunner {
 public:
  GenRunner(Session& session, PromptText& text, Outcomes& outcomes, Calls& calls,
            PendingMessage& message)
      : session_(session), text_(text), outcomes_(outcomes), calls_(calls), message_(message) {}

  Step gen(Operation& op, const std::shared_ptr<const Gen>& gen);
  Step reasoning(Operation& op, const Reasoning& reasoning);
  Step select(Operation& op, const Select& select);
  // One call for the gens of the pending message; `op` is the end of its role, and `then` ends the
  // message once its text is written.
  Step send_message(Operation& op, std::function<Step(Operation&)> then);

  // The primitive at hand writes constant text: what a call wrote beyond its stop must continue
  // with it, or is dropped.
  void expect(std::string_view constant) { ahead_.expect(constant); }
  void drop_ahead() { ahead_.clear(); }

 private:
  GenOptions complete(const Gen& gen) const;
  Step send_gen(Operation& op, const std::shared_ptr<const Gen>& gen);
  Step take_completion(Operation& op, Completion completion);
  Step take_scores(Operation& op, ChoicesMethod method, Result<std::vector<ChoiceScore>> scores);
  Step take_message(Operation& op, Completion completion, std::function<Step(Operation&)> then);
  void write_message(const std::vector<std::string>& gen_texts, const MetaInfo& meta);
  bool take_ahead(Operation& op, const Gen& gen);
  void count_call(const MetaInfo& meta);
  void count_saved();

  Session& session_;
  PromptText& text_;
  Outcomes& outcomes_;
  Calls& calls_;
  PendingMessage& message_;
  Lookahead ahead_;
  // The last call's own count, by which spared input is estimated.
  int64_t last_prompt_tokens_ = 0;
  size_t last_prompt_chars_ = 0;
};

}  // namespace espalier::lang
