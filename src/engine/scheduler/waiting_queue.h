// Sequences that wait, in order of arrival, retracted ones before all others; and the order in
// which they are admitted.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/scheduler/sequence.h"

namespace espalier {

// An intrusive list: every change is O(1). Borrows the sequences. Not thread-safe.
class WaitingQueue {
 public:
  void push_back(Sequence& sequence);
  void push_front(Sequence& sequence);
  void remove(Sequence& sequence);

  int32_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Sequence* front() const { return front_; }

  // Fills `order` with at most 4 * window sequences to be tried in turn. Cost: one cache match for
  // each of the first `window` whose last match is out of date (lpm only), and a sort of them.
  struct OrderOptions {
    SchedulePolicy policy = SchedulePolicy::kLpm;
    int32_t window = 128;
    int64_t num_admitted = 0;  // so far, which tells who is overdue
  };
  void order(const OrderOptions& options, const PrefixCache& cache,
             std::vector<Sequence*>& order) const;

 private:
  Sequence* front_ = nullptr;
  Sequence* back_ = nullptr;
  int32_t size_ = 0;
};

// The match of a waiting sequence, looked up again only when the cache has changed.
int32_t current_match(Sequence& sequence, const PrefixCache& cache);

}  // namespace espalier
