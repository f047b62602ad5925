// Waits until all requests of a workload have ended. For benchmarks that submit to an engine in
// this process.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/status.h"
#include "seams/token_event.h"

namespace espalier::bench {

// Thread-safe. Outlives the requests' sinks, which call add() for each event.
class PendingRequests {
 public:
  explicit PendingRequests(int32_t count) : pending_(count) {}

  void add(const TokenEvent& event) {
    if (!event.finish) return;
    std::lock_guard lock(mutex_);
    if (failure_.ok()) failure_ = event.finish->status;
    output_tokens_ += event.stats.completion_tokens;
    cached_tokens_ += event.stats.cached_tokens;
    if (--pending_ == 0) ended_.notify_all();
  }

  // Blocks until all have ended. The first failure that a request ended with.
  Status wait() {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return pending_ == 0; });
    return failure_;
  }

  // REQUIRES: wait() has returned.
  int64_t output_tokens() const { return output_tokens_; }
  int64_t cached_tokens() const { return cached_tokens_; }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  int32_t pending_;
  int64_t output_tokens_ = 0, cached_tokens_ = 0;
  Status failure_;
};

}  // namespace espalier::bench
