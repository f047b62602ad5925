// The sequences that wait for admission, in the order in which they are tried:
//
//   retracted sequences, the last retracted first (with several shares: of the one with the least
//   service, when no other share with less of it has one waiting)
//   else, of the share with the least service: its oldest sequence when that is overdue,
//                                              else its first by the policy
//
// Without fair shares there is one share.
//
// Rules:
//  - No starvation under any policy: a sequence is overdue when as many of its share have left the
//    queue as stood before it when it came, plus bypass_bound. Then it goes before all that came
//    later, and is not preempted once admitted.
//  - Fair shares (tenants or priorities): service is prompt tokens computed, output that a search
//    computes anew, and twice the tokens generated, divided by the share's weight; the share with
//    the least goes first, and a new one starts with the least service of those present. Between
//    two shares that always have something waiting, service differs by no more than what one of
//    them can have running at once.
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
    return a->queue.rank < b->queue.rank;
  }
};
using RankedSequences = std::set<Sequence*, ByWaitingRank>;

// A tenant's or a priority's part of the queue; WaitQueue's own record.
struct WaitingShare {
  std::string key;
  double service_per_token = 1;           // 1 / weight: multiplying is faster
  double weight = 1;                      // as the last sequence that came states it
  double service = 0;                     // a token of weight 1 counts 1
  int32_t num_sequences = 0;              // that wait or run
  int32_t num_waiting = 0;                // without the retracted ones
  int64_t num_arrived = 0, num_gone = 0;  // into and out of the queue
  std::unique_ptr<WaitingTree> tree;      // index for policies that order by prefix
  RankedSequences ranked;                 // index for the other policies
  std::vector<Sequence*> deferred;        // taken out of `ranked` until the round ends
  Sequence* oldest = nullptr;
  Sequence* newest = nullptr;
};

// A change is O(log n). Borrows the sequences between add() and left(). Not thread-safe.
class WaitQueue {
 public:
  WaitQueue(const SchedulerConfig& config, const PrefixCache& cache);

  // Adds a new sequence and counts it in its share until left(), when it is gone for good.
  void add(Sequence& sequence);
  void left(Sequence& sequence);

  // Takes back a paused sequence that has released its pages: a retracted one in front of all that
  // wait, a preempted one at its former rank.
  void requeue(Sequence& sequence);
  void remove(Sequence& sequence);  // it is admitted, or aborted

  int32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  void add_waiting_shares(std::set<const WaitingShare*>& shares) const;

  // The cache holds these tokens now. REQUIRED after each PrefixCache::share() and finish(), for
  // the order by longest prefix to be exact.
  void on_stored(std::string_view cache_namespace, std::span<const TokenId> tokens);
  void charge(Sequence& sequence, int64_t service) {
    WaitingShare& share = *sequence.queue.share;
    share.service += static_cast<double>(service) * share.service_per_token;
  }

  // A round of admission: each sequence that next() returns is then removed, or deferred until the
  // round ends together with all that share its first `num_tokens`.
  Sequence* next();
  void defer(Sequence& sequence, int32_t num_tokens);
  void end_round();
  bool is_overdue(const Sequence& sequence) const {
    return sequence.queue.share->num_gone >= sequence.queue.overdue_at;
  }

  void check_invariants() const;
  double service_of(const std::string& share) const;  // 0: unknown

 private:
  std::string share_key(const SequenceSpec& spec) const;
  WaitingShare& share_of(const Sequence& sequence);
  void push(Sequence& sequence);
  void push_retracted(Sequence& sequence);
  void push_preempted(Sequence& sequence);
  Sequence* first_of(WaitingShare& share);
  Sequence* first_retracted() const;

  const SchedulerConfig config_;
  const PrefixCache& cache_;
  RankedSequences retracted_;
  std::map<std::string, WaitingShare> shares_;
  std::vector<WaitingShare*> exhausted_;  // shares with all sequences deferred in this round
  std::vector<WaitingShare*> with_deferred_;
  int32_t size_ = 0;
  int64_t num_pushed_ = 0;
};

}  // namespace espalier
