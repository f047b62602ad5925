// The scheduler's state, and its work in three files: scheduler.cc (coming and going, invariants),
// scheduler_next.cc (what runs next), scheduler_commit.cc (what came of it).
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/scheduler/new_token_ratio.h"
#include "engine/scheduler/page_table_layout.h"
#include "engine/scheduler/promised_prefixes.h"
#include "engine/scheduler/scheduler.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/shared_prefixes.h"
#include "engine/scheduler/step_time.h"
#include "engine/scheduler/waiting_queue.h"

namespace espalier {

// This thread's processor time in the tree's work, where it is measured; less what reading the
// clock adds to each timing, which is a call of the system and often more than the work.
class TreeClock {
 public:
  double seconds() const { return std::max(0.0, seconds_ - static_cast<double>(timings_) * own_); }

 private:
  friend class WorkTimer;
  static double now() {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }
  void start() {
    if (own_ < 0) own_ = least_reading();
    running_ = true;
    seconds_ -= now();
  }
  void stop() {
    seconds_ += now();
    ++timings_;
    running_ = false;
  }
  static double least_reading() {
    double least = 1;
    for (int i = 0; i < 1000; ++i) {
      const double begin = now();
      least = std::min(least, now() - begin);
    }
    return least;
  }

  double seconds_ = 0, own_ = -1;
  int64_t timings_ = 0;
  bool running_ = false;
};

// Adds its life to `clock`; null, or inside another one's life: to nothing.
class WorkTimer {
 public:
  explicit WorkTimer(TreeClock* clock)
      : clock_(clock == nullptr || clock->running_ ? nullptr : clock) {
    if (clock_ != nullptr) clock_->start();
  }
  ~WorkTimer() {
    if (clock_ != nullptr) clock_->stop();
  }
  WorkTimer(const WorkTimer&) = delete;
  WorkTimer& operator=(const WorkTimer&) = delete;

 private:
  TreeClock* const clock_;
};

// With hundreds running a step's state is more than the nearest caches hold, and each sequence's
// lies elsewhere: so many entries ahead it is asked for, and what it points to when it has come.
// Measured at 1,024 running; half and twice as many are no better.
inline constexpr size_t kStepsAhead = 12, kEndsAhead = 6;

struct Scheduler::Impl {
  Impl(const SchedulerConfig& config, PrefixCache& cache, const Clock& clock,
       SequenceObserver& observer);

  // scheduler.cc
  Status add(SequenceSpec spec);
  Status check_size(const SequenceSpec& spec) const;
  int32_t max_sequence_tokens() const;
  void abort(SequenceId id, FinishReason reason);
  void check_invariants() const;
  void check_sequence(const Sequence& sequence) const;

  // scheduler_next.cc
  bool next(ForwardBatch& batch);
  void fill(ForwardBatch& batch);
  void make_room_for_decode();
  void add_decode_entries(ForwardBatch& batch);
  void find_shared_prefixes(ForwardBatch& batch);
  void add_chunks(ForwardBatch& batch);
  void add_chunk(ForwardBatch& batch, Sequence& sequence);
  void add_entry(ForwardBatch& batch, Sequence& sequence, int32_t num_query_tokens);
  void draft(Sequence& sequence, int32_t num_query_tokens);  // into `drafts`
  void add_drafts(ForwardBatch& batch, BatchEntry& entry) const;
  bool waits_to_draft(Sequence& sequence);
  void add_input_logprob_targets(BatchEntry& entry, Sequence& sequence) const;
  void admit(ForwardBatch& batch);
  bool try_admit(Sequence& sequence, int32_t num_reserved_pages);
  int32_t prefix_to_wait_for(Sequence& sequence);
  void linger(const Sequence& sequence);
  void let_go(uint64_t step);          // of what has lingered long enough
  void take_lingering(int32_t count);  // they are in use again
  bool may_preempt() const {
    return config.policy == SchedulePolicy::kPriority && config.priority_preemption_threshold > 0;
  }
  bool orders_by_prefix() const {
    return config.policy == SchedulePolicy::kLpm || config.policy == SchedulePolicy::kDfsWeight;
  }
  bool make_way(Sequence& sequence);
  std::vector<Sequence*> preemptible_by(const Sequence& sequence) const;
  void preempt(Sequence& victim);
  void leave_running(Sequence& victim);
  int32_t pages_still_needed(const Sequence& sequence) const;
  int32_t pages_coming_back() const;
  int32_t window_pages_coming_back() const;
  int32_t window_pages_still_needed(const Sequence& s) const;
  bool window_has_room(const Sequence& sequence) const;
  void retract(Sequence& victim);
  Sequence& least_loss() const;

  // scheduler_commit.cc
  void commit(const ForwardBatch& batch, const StepResult& result);
  void commit_entry(const ForwardBatch& batch, const BatchEntry& entry, const EntryResult& result);
  void take_samples(Sequence& sequence, const ForwardBatch& batch, const BatchEntry& entry,
                    const EntryResult& result);
  void take_input_logprobs(Sequence& sequence, const BatchEntry& entry, const EntryResult& result);
  void share_prefix(Sequence& sequence);
  void share_computed(Sequence& sequence);
  void observe_time(const ForwardBatch& batch, double seconds);
  bool take_token(Sequence& sequence, TokenId token, TokenLogprobs&& logprobs);  // goes on
  void take_forced(Sequence& sequence);
  void ask_for_forced(const Sequence& sequence);  // into `forced`
  void want_forced_logprobs(Sequence& sequence, int32_t num_in_flight);
  bool take_first_forced(Sequence& sequence);  // false: it has ended
  bool append_token(Sequence& sequence, TokenId token, TokenLogprobs&& logprobs);
  void tell_finish(Sequence& sequence, FinishReason reason);
  void leave(Sequence& sequence);      // its last step is committed
  void give_back(Sequence& sequence);  // pages and slot
  void requeue(Sequence& sequence);    // after a retraction
  TreeClock* tree_clock() { return config.time_tree_work ? &tree_time : nullptr; }
  int64_t room_for(const Sequence& sequence) const;
  bool grow(Sequence& sequence, int32_t num_tokens);
  bool in_flight(const Sequence& sequence) const { return sequence.last_step > committed_step; }

  const SchedulerConfig config;
  PrefixCache& cache;
  const Clock& clock;
  SequenceObserver& observer;

  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences;  // all that have not left
  WaitingQueue waiting;
  std::vector<Sequence*> running;  // kRunning, in order of admission
  std::vector<Sequence*> slots;    // [max_running]; null: free
  std::vector<SlotId> free_slots;  // a stack
  bool running_changed = false;    // some of `running` run no more
  PromisedPrefixes promised;
  NewTokenRatio ratio;
  StepTime step_time;
  PageTableLayout page_tables;
  SharedPrefixes shared_prefixes;
  uint64_t last_table_version = 0;

  // Duplicates that steps up to .first may still read.
  std::vector<std::pair<uint64_t, DetachedPages>> detached;

  // Pages of those that have ended lately, by the step from which anybody may have them.
  struct Lingering {
    uint64_t until_step = 0;
    int32_t num_pages = 0;
  };
  std::deque<Lingering> lingering;
  int32_t num_lingering = 0;  // their pages

  uint64_t launched_step = 0;
  uint64_t committed_step = 0;
  int32_t chunk_left = 0;             // prompt tokens that the step being made may still take
  uint64_t admission_retry_step = 0;  // memory was short: not before this step, or a release
  int32_t num_leaving = 0;            // kEnding and kRetracting
  TimePoint now{};                    // of the commit or abort being done
  SchedulerStats stats;
  TreeClock tree_time;
  int32_t draft_samples_left = 0;    // that the step being made may still take
  std::vector<TokenId> forced;       // scratch
  Drafts drafts;                     // of the entry being made
  std::vector<Sequence*> departing;  // whose last step is the one being committed
};

}  // namespace espalier
