// Sequences that wait, by the policy's rank, retracted ones before all others; and the order in
// which they are tried.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "engine/scheduler/sequence.h"

namespace espalier {

// A change is O(log n): ranks never move while a sequence waits. Only lpm looks at the cache, and
// only for the first `window` sequences. Borrows the sequences. Not thread-safe.
class WaitingQueue {
 public:
  WaitingQueue(SchedulePolicy policy, int32_t window) : policy_(policy), window_(window) {}

  void push(Sequence& sequence);
  void push_front(Sequence& sequence);  // a retracted one: before all that wait now
  void remove(Sequence& sequence) { sequences_.erase(&sequence); }

  int32_t size() const { return static_cast<int32_t>(sequences_.size()); }
  bool empty() const { return sequences_.empty(); }

  // Fills `order` with at most 4 * window sequences to be tried in turn; `num_admitted` so far
  // tells who is overdue. Cost with lpm: one cache match for each of the first `window` whose last
  // match is out of date, and a sort of them.
  void order(const PrefixCache& cache, int64_t num_admitted, std::vector<Sequence*>& order) const;

  auto begin() const { return sequences_.begin(); }
  auto end() const { return sequences_.end(); }

 private:
  struct ByRank {
    bool operator()(const Sequence* a, const Sequence* b) const {
      return a->waiting_rank < b->waiting_rank;
    }
  };
  static void sort_by_match(int64_t num_admitted, std::vector<Sequence*>& order);

  const SchedulePolicy policy_;
  const int32_t window_;
  std::set<Sequence*, ByRank> sequences_;
  int64_t num_pushed_ = 0;
};

// The match of a waiting sequence, looked up again only when the cache has changed.
int32_t current_match(Sequence& sequence, const PrefixCache& cache);

}  // namespace espalier
