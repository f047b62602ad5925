// Takes the results of a step: log-probabilities, prefixes for others to reuse, sampled, forced and
// draft tokens, and ends. Order of ends: length, what the observer returns (stop strings), stop
// ids.
//
// Forced tokens are output at once and computed together in the sequence's next entry. The entry in
// flight, if any, has computed the token before them; its sample is stale and dropped. With
// return_logprob it gives the log-probability of the first forced token, and the next entry gives
// the others. So jump-forward needs no entry of a kind of its own and works with overlap.
//
// Not thread-safe. Borrows everything; owns no sequence. Steady decode allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "engine/scheduler/inflight_prefixes.h"
#include "engine/scheduler/kv_budget.h"
#include "engine/scheduler/kv_loader.h"
#include "engine/scheduler/running_set.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/step_counter.h"
#include "engine/scheduler/wait_queue.h"
#include "seams/step_result.h"

namespace espalier {

// Counted over all sequences; see RequestStats.
struct TokenCounts {
  int64_t generated_tokens = 0;
  int64_t forced_tokens = 0, forwards_saved = 0;
  int64_t drafted_tokens = 0, accepted_draft_tokens = 0, verify_steps = 0;
};

class Committer {
 public:
  struct Parts {
    const Clock& clock;
    const StepCounter& steps;
    RunningSet& running;
    KvBudget& budget;
    InflightPrefixes& inflight;
    WaitQueue& queue;
    SequenceObserver& observer;
    TokenProposer& proposer;
  };
  explicit Committer(const Parts& parts) : parts_(parts) {}

  // Takes the results of the step that StepCounter has just counted as committed. Returns the
  // sequences whose last step this was; valid until the next call.
  std::span<Sequence* const> commit(const ForwardBatch& batch, const StepResult& result);

  // Outputs the tokens that the proposer forces before anything has run; they are computed with the
  // prompt. False: the sequence has finished with one of them.
  [[nodiscard]] bool take_first_forced(Sequence& sequence);

  // A load has filled the first `num_tokens` tokens' pages: others may reuse them.
  void take_loaded(Sequence& sequence, int32_t num_tokens);

  // A prefill server has computed all of the sequence's tokens and sampled the next one, which is
  // output as if a step had. Fails the sequence where its log-probabilities are not those wanted.
  void take_prefill(Sequence& sequence, RemotePrefill& prefill);

  // Reports the end of a sequence, once. It gets no further entries.
  void finish(Sequence& sequence, FinishReason reason);

  // Gives back the pages and the slot of a sequence whose last step is committed.
  void release(Sequence& sequence);

  const TokenCounts& counts() const { return counts_; }
  const DraftTotals& draft_totals() const { return draft_totals_; }

 private:
  void commit_entry(const ForwardBatch& batch, const BatchEntry& entry, const EntryResult& result);
  void take_result(Sequence& sequence, const ForwardBatch& batch, const BatchEntry& entry,
                   const EntryResult& result);
  void take_sample(Sequence& sequence, const EntryResult& result);
  void take_draft_samples(Sequence& sequence, const ForwardBatch& batch, const BatchEntry& entry,
                          const EntryResult& result);
  void take_chain(const Sequence& sequence, const EntryResult& result);
  void take_prefill_only(Sequence& sequence, const BatchEntry& entry, const EntryResult& result);
  void take_input_logprobs(Sequence& sequence, const BatchEntry& entry, const EntryResult& result);
  void report_input_logprobs(Sequence& sequence, int32_t first,
                             std::span<const TokenLogprobs> logprobs);
  void give(Sequence& sequence, const BatchEntry& entry, const EntryResult& result);
  void share(Sequence& sequence);
  bool take_token(Sequence& sequence, TokenId token, TokenOrigin origin, TokenLogprobs&& logprobs);
  bool append_token(Sequence& sequence, TokenId token, TokenOrigin origin,
                    TokenLogprobs&& logprobs);
  void take_forced(Sequence& sequence);
  void propose_forced(const Sequence& sequence);  // into forced_
  void request_forced_logprobs(Sequence& sequence, int32_t num_in_flight);
  void count_verify_step(Sequence& sequence, int32_t num_draft_tokens);
  void count_accepted(Sequence& sequence, int32_t num_before, int32_t num_now);
  void count_saved(Sequence& sequence, int32_t num_forwards_saved);
  bool in_flight(const Sequence& sequence) const {
    return parts_.steps.in_flight(sequence.last_step);
  }

  const Parts parts_;
  TimePoint now_{};  // of the commit being done
  TokenCounts counts_;
  DraftTotals draft_totals_{};
  std::vector<TokenId> forced_;       // scratch
  std::vector<Sequence*> departing_;  // whose last step is the one being committed
};

}  // namespace espalier
