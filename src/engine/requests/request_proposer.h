// The TokenProposer of all requests: a sample with a grammar or text to heal gets what its grammar
// proposes, any other one draft tokens from its text, recent answers and the radix tree (of one
// rank), or from a draft head, where these are on. Of a head, samples with a grammar get what the
// grammar takes.
//
// Not thread-safe: the loop's thread alone uses it. Owns the grammars' proposer; borrows
// the table, the masks and the cache.
#pragma once

#include <memory>
#include <vector>

#include "cache/rank_caches.h"
#include "engine/config.h"
#include "engine/constrained/grammar_proposer.h"
#include "engine/executor/executor.h"
#include "engine/requests/request_table.h"
#include "engine/scheduler/token_proposer.h"
#include "engine/speculation/head_drafter.h"
#include "engine/speculation/speculator.h"

namespace espalier {

class RequestProposer final : public TokenProposer {
 public:
  RequestProposer(const EngineConfig& config, const RequestTable& requests, StepMasks& masks,
                  const RankCaches& caches, const Executor& executor);

  GrammarProposer& grammars() { return grammars_; }

  // A sample before it enters the scheduler: `speculates` is set if it may get draft tokens from
  // elsewhere than its grammar's earlier answers.
  void start(SampleState& sample, int32_t max_new_tokens);
  void observe_token(SampleState& sample, TokenId token);  // REQUIRES sample.speculates
  void finish(SampleState& sample);                        // any sample ends

  void propose_forced(SequenceId id, std::vector<TokenId>& forced) override;
  bool forces_after_next(SequenceId id) override;
  void propose_draft_tokens(const DraftSite& site, DraftTokens& draft) override;
  bool draft_tokens_after_next(const DraftSite& site) override;
  int32_t chain_length(SequenceId id, bool samples) override;
  void take_chain(SequenceId id, std::span<const TokenId> chain) override;
  void observe_chains(const ForwardBatch& batch, const StepSeconds& seconds,
                      double draft_seconds) override;
  bool plans_draft_tokens() const override { return speculator_ || head_; }
  bool plan_draft_tokens(const DraftStep& step) override;
  void observe_step(const ForwardBatch& batch, const StepSeconds& seconds) override;

 private:
  static bool is_constrained(const SampleState& sample) {
    return sample.has_grammar || sample.heals;
  }

  const RequestTable& requests_;
  const bool penalises_draft_tokens_;
  GrammarProposer grammars_;
  std::unique_ptr<Speculator> speculator_;  // null: off
  std::unique_ptr<HeadDrafter> head_;       // null: there is no draft head; else no speculator_
};

}  // namespace espalier
