// Builds the entries of a step: decode entries with forced and draft tokens, then prompt chunks,
// and the prefix segments that decode entries share. It decides how many tokens each sequence gets
// in this step; which sequences run at all is decided by the scheduler and its KvBudget.
//
// Rules:
//  - A token that a step in flight samples is kTokenFromSlot. A sequence whose end by length is
//    certain gets no entry; one that ends otherwise has one entry that is thrown away.
//  - Prompt tokens, forced tokens beyond the first, and draft tokens share one limit per step
//    (chunked_prefill_size, or less to keep step_bound). Decode comes first.
//  - Where the proposer plans draft tokens, decode entries stay in one step: while draft tokens are
//    verified, or where it pays to know the last sample first, nothing is built before the commit.
//  - Draft tokens use only pages left over after one page for each running sequence, so speculation
//    never delays another request.
//
// Not thread-safe. Borrows the running set, the budget and the proposer. Steady decode allocates
// nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "cache/prefix_cache.h"
#include "engine/scheduler/kv_budget.h"
#include "engine/scheduler/page_table_layout.h"
#include "engine/scheduler/running_set.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/shared_prefixes.h"
#include "engine/scheduler/step_counter.h"
#include "engine/scheduler/step_time.h"

namespace espalier {

// The shares that have prompts to compute. Their parts of a step's prompt tokens are in proportion
// to their weights.
struct PromptShares {
  int32_t count = 1;
  double weight = 1;  // of all
  // The weight of those who wait for their prompts over that of those who wait for their next
  // token; without shares their numbers.
  double per_decode = 1;
};
using CountPromptShares = std::function<PromptShares()>;

class BatchBuilder {
 public:
  BatchBuilder(const SchedulerConfig& config, const PrefixCache& cache, const RunningSet& running,
               const StepCounter& steps, KvBudget& budget, TokenProposer& proposer);

  // begin(), then add_running() and any number of add_chunk(), then end(). add_running() may be
  // repeated while the batch is empty.
  void begin(ForwardBatch& batch, uint64_t step);
  // Decode entries, then chunks of the prompts of running sequences; sets the step's limits anew.
  // With several shares that have prompts to compute, each one's take at most its part of the
  // step's prompt tokens, forced tokens among them, so that long prompts of one leave room for
  // those that wait. `count_shares` is called at the first prompt token or draft token, if there is
  // one, and for step_bound, because it reads all running sequences; without it there is one share.
  void add_running(ForwardBatch& batch, const CountPromptShares& count_shares = {});
  // As much of the sequence's prompt as the step and the memory allow; maybe nothing.
  void add_chunk(ForwardBatch& batch, Sequence& sequence);
  void end(ForwardBatch& batch);

  // Prompt tokens that the step may still take; below 0 behind a picture that went in whole.
  int32_t prompt_tokens_left() const { return prompt_tokens_left_; }

  // Learns the durations of a step that has been committed now, for step_bound and the proposer.
  void observe_step_time(const ForwardBatch& batch, const StepResult& result, TimePoint now);

  // Aborts unless the sequence's launched tokens and samples are consistent.
  void check_sequence(const Sequence& sequence) const;

 private:
  void add_decode_entries(ForwardBatch& batch, const CountPromptShares& count_shares);
  class PartLimit;
  void limit_prompt_tokens(int32_t most);
  void limit_step_time(const ForwardBatch& batch, const CountPromptShares& count_shares);
  const PromptShares& shares(const CountPromptShares& count_shares);
  int32_t keep_pictures_whole(const ForwardBatch& batch, const Sequence& sequence, int32_t count);
  void add_entry(ForwardBatch& batch, Sequence& sequence, int32_t num_query_tokens);
  static void add_slot_init(ForwardBatch& batch, Sequence& sequence);
  void set_page_table(ForwardBatch& batch, BatchEntry& entry, Sequence& sequence);
  void propose_draft_tokens(Sequence& sequence, int32_t num_query_tokens);  // into draft_tokens_
  void add_draft_tokens(ForwardBatch& batch, BatchEntry& entry) const;
  bool can_draft(const Sequence& sequence) const;
  bool may_draft(const Sequence& sequence) const {
    return draft_samples_left_ > 0 && can_draft(sequence);
  }
  bool waits_for_draft_tokens(Sequence& sequence);
  void set_chain(BatchEntry& entry, const Sequence& sequence);
  bool awaits_sample(const Sequence& sequence) const;
  bool waits_for_commit();
  static void add_logprob_targets(BatchEntry& entry, Sequence& sequence);
  static void add_spans(ForwardBatch& batch, const BatchEntry& entry, const Sequence& sequence);
  static void add_rotary_spans(ForwardBatch& batch, const BatchEntry& entry,
                               const PromptSpans& spans);
  static void set_pooling(BatchEntry& entry, const Sequence& sequence);
  static void set_hidden_states(BatchEntry& entry, Sequence& sequence);
  void add_shared_prefixes(ForwardBatch& batch);

  const SchedulerConfig config_;
  const PrefixCache& cache_;
  const RunningSet& running_;
  const StepCounter& steps_;
  KvBudget& budget_;
  TokenProposer& proposer_;
  StepTime step_time_;
  PageTableLayout page_tables_;
  SharedPrefixes shared_prefixes_;
  int32_t prompt_tokens_left_ = 0;  // of the step being built
  int32_t draft_samples_left_ = 0;  // the same
  bool is_time_limited_ = false;    // the same
  int32_t picture_tokens_due_ = 0;  // of a whole picture that had no room in the step before
  std::optional<PromptShares> prompt_shares_;         // the same: as soon as they are counted
  int32_t prompt_tokens_most_ = 0;                    // the same: used and left
  std::map<const WaitingShare*, int32_t> part_used_;  // the same, with several shares
  DraftTokens draft_tokens_;                          // of the entry being built
  std::vector<DraftSite> sites_;                      // scratch
  uint64_t verifying_step_ = 0;                       // the last one with planned draft tokens
  TimePoint last_commit_{};
};

}  // namespace espalier
