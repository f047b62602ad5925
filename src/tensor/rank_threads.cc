#include "tensor/rank_threads.h"

#include <utility>

#include "base/check.h"
#include "base/thread.h"
#include "fmt/core.h"
#include "tensor/park.h"

namespace espalier {

RankThreads::RankThreads(int32_t num_ranks, std::function<void(int32_t)> at_start)
    : at_start_(std::move(at_start)) {
  ESP_CHECK(num_ranks >= 1, "{} ranks", num_ranks);
  for (int32_t rank = 1; rank < num_ranks; ++rank) {
    threads_.emplace_back([this, rank] {
      set_thread_name(fmt::format("rank-{}", rank));
      if (at_start_) at_start_(rank);
      serve(rank);
    });
  }
}

RankThreads::~RankThreads() {
  stopping_ = true;
  start();
}

void RankThreads::run(const std::function<void(int32_t)>& fn) {
  fn_ = &fn;
  running_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
  start();
  fn(0);
  for (uint32_t left = running_.load(); left > 0; left = running_.load()) {
    wait_for_change(running_, left, caller_parked_);
  }
}

void RankThreads::start() {
  epoch_.fetch_add(1);
  wake_all(epoch_, parked_);
}

void RankThreads::serve(int32_t rank) {
  for (uint32_t seen = 0;; ++seen) {
    wait_for_change(epoch_, seen, parked_);
    if (stopping_) return;
    (*fn_)(rank);
    running_.fetch_sub(1);
    wake_all(running_, caller_parked_);
  }
}

}  // namespace espalier
