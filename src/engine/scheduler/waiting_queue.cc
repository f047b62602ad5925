#include "engine/scheduler/waiting_queue.h"

#include <algorithm>

namespace espalier {

namespace {
// Behind the window the queue is walked in order of arrival so much further, for when all of the
// window are held back for prefixes that others compute.
constexpr int32_t kReachInWindows = 4;
}  // namespace

void WaitingQueue::push_back(Sequence& sequence) {
  sequence.prev_waiting = back_;
  sequence.next_waiting = nullptr;
  (back_ != nullptr ? back_->next_waiting : front_) = &sequence;
  back_ = &sequence;
  ++size_;
}

void WaitingQueue::push_front(Sequence& sequence) {
  sequence.prev_waiting = nullptr;
  sequence.next_waiting = front_;
  (front_ != nullptr ? front_->prev_waiting : back_) = &sequence;
  front_ = &sequence;
  ++size_;
}

void WaitingQueue::remove(Sequence& sequence) {
  (sequence.prev_waiting != nullptr ? sequence.prev_waiting->next_waiting : front_) =
      sequence.next_waiting;
  (sequence.next_waiting != nullptr ? sequence.next_waiting->prev_waiting : back_) =
      sequence.prev_waiting;
  sequence.next_waiting = sequence.prev_waiting = nullptr;
  --size_;
}

int32_t current_match(Sequence& sequence, const PrefixCache& cache) {
  if (sequence.match_version != cache.version()) {
    sequence.matched =
        cache.match(sequence.spec.cache_namespace, sequence.first_tokens(sequence.match_limit()));
    sequence.match_version = cache.version();
  }
  return sequence.matched;
}

void WaitingQueue::order(const OrderOptions& options, const PrefixCache& cache,
                         std::vector<Sequence*>& order) const {
  order.clear();
  Sequence* sequence = front_;
  const auto take = [&](int32_t count) {
    for (; sequence != nullptr && count > 0; --count, sequence = sequence->next_waiting)
      order.push_back(sequence);
  };
  take(options.window);
  if (options.policy == SchedulePolicy::kLpm) {
    for (Sequence* waiting : order) current_match(*waiting, cache);
    const auto goes_first = [&](const Sequence* s) {
      return s->was_retracted() || options.num_admitted >= s->overdue_at;
    };
    std::stable_sort(order.begin(), order.end(), [&](const Sequence* a, const Sequence* b) {
      const bool a_first = goes_first(a), b_first = goes_first(b);
      if (a_first != b_first) return a_first;
      return !a_first && a->matched > b->matched;
    });
  }
  take(options.window * (kReachInWindows - 1));
}

}  // namespace espalier
