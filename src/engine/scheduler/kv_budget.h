// The account of KV memory: what sequences hold and will need, what is about to come back, and so
// which sequences are admitted, retracted or preempted. Every change of a sequence's page table
// goes through here; tiers of memory are accounted for here, too.
//
// Rules:
//  - Admission reserves pages for the whole prompt and for `new_token_ratio` of the output still to
//    come, over all running sequences and the new one, against free and evictable pages.
//  - The ratio starts cautious, falls with each step of decode, and is raised by a retraction.
//  - A sequence alone is always admitted: Scheduler::add() has checked that it fits the pool.
//  - Pages that a step in flight may read are reclaimed when that step is committed, never before.
//  - Pages of a sequence that has finished are retained for retention_steps for its continuation.
//
// Not thread-safe. Borrows the cache, the running set and the step counter; owns duplicates of
// pages that steps in flight may still read.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "cache/prefix_cache.h"
#include "engine/scheduler/new_token_ratio.h"
#include "engine/scheduler/running_set.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/step_counter.h"

namespace espalier {

class KvBudget {
 public:
  KvBudget(const SchedulerConfig& config, PrefixCache& cache, const RunningSet& running,
           const StepCounter& steps);

  // The largest number of prompt and output tokens of one sequence that fits the pool: one more
  // than the pool has, for the last output token's keys and values are never needed.
  int64_t max_sequence_tokens() const;

  // --- Running sequences.
  // Makes the page table cover `num_tokens`, evicting what is needed; all or nothing.
  [[nodiscard]] bool grow(Sequence& sequence, int32_t num_tokens);
  // Tokens beyond num_launched that the sequence's pages and the available ones can take.
  int64_t room_for(const Sequence& sequence) const;
  // Tokens for which pages are left over after one page for each running sequence.
  int64_t spare_tokens() const;
  // Whether all due decode entries find pages: free, evictable, or coming back when the steps in
  // flight are committed.
  bool decode_fits() const;
  // The running sequence with the fewest output tokens, the last admitted of these: so the one
  // furthest ahead always advances, and every sequence finishes. With fair shares, one of a share
  // above its part where there is one.
  Sequence& retraction_victim() const;

  // --- The new-token ratio.
  double new_token_ratio() const { return ratio_.value(); }
  void on_decode_step() { ratio_.decay(); }
  void on_idle() { ratio_.reset(); }
  void on_retraction();

  // --- Admission.
  void begin_admission(uint64_t step);
  // Locks the sequence's cached prefix as the front of its page table and reserves what it needs;
  // false, with nothing changed, when memory is short. With `overdue` pages retained for others
  // count as available.
  [[nodiscard]] bool try_reserve(Sequence& sequence, bool overdue);
  // Counts the reservation of a sequence that was admitted in this round.
  void add_reservation(const Sequence& sequence) { num_reserved_ += pages_still_needed(sequence); }
  bool retains_pages() const { return num_retained_ > 0; }
  // The running sequences whose preemption makes room for `sequence` once their last steps are
  // committed: as few as it takes, the lowest priority and last admitted first, or those of shares
  // above their fair part. None: no set of preemptible sequences is enough.
  std::optional<std::vector<Sequence*>> plan_preemption(Sequence& sequence) const;

  // --- What is computed, and the end.
  // The first `num_computed` tokens become reusable by others. Duplicates of pages that the cache
  // had already are kept until `last_step` of the sequence is committed.
  void share(Sequence& sequence);
  // Releases the window pages that the committed tokens have passed.
  void advance(Sequence& sequence);
  // A sequence has finished normally: its pages are retained for retention_steps.
  void retain(const Sequence& sequence);
  // Gives back all pages; what is computed stays in the cache unless an entry has failed.
  void release(Sequence& sequence);
  // Gives back duplicates that no step in flight reads any more. Call after each commit.
  void reclaim();

  // Appends the duplicates still kept, for PrefixCache::check_invariants.
  void append_detached(std::vector<PageId>& pages) const;
  void check_invariants() const;

 private:
  struct Retained {
    uint64_t until_step = 0;
    int32_t num_pages = 0;
  };

  int32_t pages_still_needed(const Sequence& sequence) const;
  int32_t window_pages_still_needed(const Sequence& sequence) const;
  int32_t pages_coming_back() const;
  int32_t window_pages_coming_back() const;
  bool window_has_room(const Sequence& sequence) const;
  void consume_retained(int32_t count);
  std::vector<Sequence*> preemptible_by(const Sequence& sequence) const;

  const SchedulerConfig config_;
  PrefixCache& cache_;
  const RunningSet& running_;
  const StepCounter& steps_;
  NewTokenRatio ratio_;
  std::vector<std::pair<uint64_t, DetachedPages>> detached_;  // by the last step that may read them
  std::deque<Retained> retained_;
  int32_t num_retained_ = 0;  // pages of retained_
  int32_t num_reserved_ = 0;  // pages, in this round of admission
  uint64_t last_table_version_ = 0;
};

}  // namespace espalier
