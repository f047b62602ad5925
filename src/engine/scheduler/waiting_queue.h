// Sequences that wait, and in which order they are tried.
//
//   retracted ones, in order
//   else the share with the least service: its oldest, when that is overdue
//                                          else its first by the policy
//
// Without fair shares there is one share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/scheduler/sequence.h"
#include "engine/scheduler/waiting_tree.h"

namespace espalier {

struct ByWaitingRank {
  bool operator()(const Sequence* a, const Sequence* b) const {
    return a->waiting_rank < b->waiting_rank;
  }
};
using RankedSequences = std::set<Sequence*, ByWaitingRank>;

// A tenant's or a priority's part of the queue. Service is what its sequences have had: prompt
// tokens computed, and twice the tokens generated.
struct WaitingShare {
  std::string key;
  int64_t service = 0;
  int32_t num_sequences = 0;              // that wait or run
  int32_t num_waiting = 0;                // not counting retracted ones
  int64_t num_arrived = 0, num_gone = 0;  // into and out of the queue
  std::unique_ptr<WaitingTree> tree;      // where the policy looks at prefixes
  RankedSequences ranked;                 // where it does not
  std::vector<Sequence*> aside;           // of `ranked`, in this round
  Sequence* oldest = nullptr;
  Sequence* newest = nullptr;
};

// A change is O(log n). Borrows the sequences. Not thread-safe.
class WaitingQueue {
 public:
  WaitingQueue(const SchedulerConfig& config, const PrefixCache& cache);

  // Takes a share for it; left() gives that back when the sequence is gone for good.
  void add(Sequence& sequence);
  void left(Sequence& sequence);

  void push_retracted(Sequence& sequence);  // before all that wait now
  void push_preempted(Sequence& sequence);  // to the place that it had
  void remove(Sequence& sequence);

  int32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // The cache holds these tokens now; every one of its share() and finish() must be told.
  void on_stored(std::string_view cache_namespace, std::span<const TokenId> tokens);
  void charge(Sequence& sequence, int64_t service) { sequence.share->service += service; }

  // A round: each sequence that next() names is then removed, or set aside until the round's end,
  // with all that share its first `num_tokens`.
  Sequence* next();
  void set_aside(Sequence& sequence, int32_t num_tokens);
  void end_round();
  bool is_overdue(const Sequence& sequence) const {
    return sequence.share->num_gone >= sequence.overdue_at;
  }

  void check_invariants() const;
  int64_t service_of(const std::string& share) const;  // 0: unknown

 private:
  std::string share_key(const SequenceSpec& spec) const;
  WaitingShare& share_of(const Sequence& sequence);
  void push(Sequence& sequence);
  Sequence* first_of(WaitingShare& share);

  const SchedulerConfig config_;
  const PrefixCache& cache_;
  RankedSequences retracted_;
  std::map<std::string, WaitingShare> shares_;
  std::vector<WaitingShare*> exhausted_;  // in this round
  std::vector<WaitingShare*> with_aside_;
  int32_t size_ = 0;
  int64_t num_pushed_ = 0;
};

}  // namespace espalier
