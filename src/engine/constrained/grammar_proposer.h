// The engine's TokenProposer: tokens that a request's grammar forces (jump-forward), and draft
// tokens from the history of answers of the same grammar. Also what a constrained sample does with
// each of its tokens: its matcher and its history advance, or its text begins with the healed
// tokens.
//
// Not thread-safe: the loop's thread alone uses it. Borrows the masks and the table.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/config.h"
#include "engine/constrained/draft_history.h"
#include "engine/constrained/step_masks.h"
#include "engine/requests/request_table.h"
#include "engine/scheduler/token_proposer.h"

namespace espalier {

// What a request gets that fails because its grammar has no state left for its text.
Status exhausted_grammar();

// Advances a grammar by an output token, whose request has these stop ids, sorted. Returns why the
// output ends with it, if it does; kError: the token is not of the grammar, or that has no state
// left.
std::optional<FinishReason> advance_matcher(grammar::Matcher& matcher,
                                            const std::vector<TokenId>& stops, TokenId token);

class GrammarProposer final : public TokenProposer {
 public:
  GrammarProposer(const EngineConfig& config, const RequestTable& requests, StepMasks& masks);

  // The request's grammar is compiled: each sample gets a matcher.
  void start(LiveRequest& request, const std::shared_ptr<grammar::CompiledGrammar>& grammar);
  // Token healing: removes the prompt's last tokens; each sample must begin with their text.
  void heal(LiveRequest& request);

  // An output token of a sample with a grammar or with text to heal. Returns why the sample ends
  // with it, if it does.
  std::optional<FinishReason> advance(SampleState& sample, TokenId token, bool forced);

  // Cuts a sample's draft tokens where its grammar takes them no further. Where it forces others
  // behind one, these stand at the end.
  void keep_allowed(SampleState& sample, DraftTokens& draft);

  void propose_forced(SequenceId id, std::vector<TokenId>& forced) override;
  bool forces_after_next(SequenceId id) override;
  void propose_draft_tokens(const DraftSite& site, DraftTokens& draft) override;
  bool draft_tokens_after_next(const DraftSite& site) override;

 private:
  bool uses_history(const SampleState& sample) const;
  void remember(SampleState& sample, TokenId token, bool forced);
  std::optional<FinishReason> advance_healing(SampleState& sample, TokenId token);

  const bool overlap_;
  const RequestTable& requests_;
  StepMasks& masks_;
  std::unique_ptr<DraftHistory> history_;  // made with the first grammar
};

}  // namespace espalier
