// The schedulers of an engine: one, or with data-parallel attention one for each rank. A rank has
// slots, pages and a queue of its own, and a sequence stays on the rank that it is given when it
// arrives; a step is what all ranks compute of it together (ForwardBatch::ranks). With one rank all
// calls go to its scheduler, and batches are the scheduler's own.
//
// Not thread-safe. The references outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cache/rank_caches.h"
#include "engine/scheduler/scheduler.h"

namespace espalier {

class RankSchedulers {
 public:
  // config: of all ranks together. Each has an equal part of max_running, chunked_prefill_size and
  // draft_samples_max, at least 1 of those that are not 0. loader: REQUIRES one rank.
  RankSchedulers(const SchedulerConfig& config, const RankCaches& caches, const Clock& clock,
                 SequenceObserver& observer, TokenProposer* proposer = nullptr,
                 KvLoader* loader = nullptr);
  ~RankSchedulers();

  // As Scheduler's, for all ranks. A sequence goes to the rank whose cache has the most of its
  // prompt, unless that rank has much more than its share of sequences; else to the one with the
  // fewest.
  Status add(SequenceSpec spec);
  int32_t max_sequence_tokens() const;
  void abort(SequenceId id, const FinishReason& reason);
  void retract_all();
  bool next(ForwardBatch& batch);
  void commit(const ForwardBatch& batch, const StepResult& result,
              const std::function<void()>& continue_searches = {});
  bool idle() const;
  bool is_loading() const;
  SchedulerStats stats() const;
  void check_invariants() const;

  int32_t num_ranks() const { return static_cast<int32_t>(schedulers_.size()); }

 private:
  int64_t load_of(size_t rank) const;
  int32_t choose(const SequenceSpec& spec);
  int32_t least_loaded();

  const RankCaches& caches_;
  std::vector<std::unique_ptr<Scheduler>> schedulers_;
  int32_t slots_each_ = 0;
  uint64_t num_steps_ = 0;
  int32_t turn_ = 0;                // where the search for the least loaded rank begins
  StepResult part_;                 // of the rank whose results are taken
  mutable DraftTotals by_drafter_;  // of all ranks, as stats() found them
};

}  // namespace espalier
