// What becomes of one request while its attempts at workers succeed and fail: its states,
// without sockets or clocks. The rule: a client never sees bytes of two attempts, and a request of
// which it has seen nothing is tried again as long as the budget lasts.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.h"

namespace espalier::router {

// How many retries all requests together may cause: each request earns a part of one, so that
// workers that fail are not sent a multiple of the load. Thread-safe.
class RetryBudget {
 public:
  // ratio: retries that a request earns. reserve: what is there at first, and the most that is
  // saved up.
  RetryBudget(double ratio, int reserve)
      : earned_milli_(static_cast<int64_t>(ratio * 1000)),
        max_milli_(int64_t{1000} * reserve),
        milli_(max_milli_) {}

  void count_request();
  bool take();  // false: nothing is left

 private:
  const int64_t earned_milli_, max_milli_;
  std::atomic<int64_t> milli_;
};

// Not thread-safe.
class ForwardPlan {
 public:
  enum class State {
    kWaiting,  // the client has seen nothing
    kStarted,  // it has seen a part of an answer
    kDone,
  };
  enum class Action {
    kPass,     // what came goes to the client
    kRetry,    // begin another attempt
    kRefuse,   // answer the client with an error
    kCut,      // end the stream that has begun with an error
    kNothing,  // it is over already
  };

  // `budget` outlives it.
  ForwardPlan(int max_retries, RetryBudget& budget) : budget_(budget), left_(max_retries) {
    budget.count_request();
  }

  State state() const { return state_; }
  int num_retries() const { return num_retries_; }

  // An answer's head has come. A worker that is too busy, or a gateway's error, is no answer.
  Action on_status(int status);
  // A part of the body goes to the client.
  Action on_bytes();
  Action on_end();
  // No worker, no connection, a broken one, a timeout, no HTTP.
  Action on_failure();
  void on_client_gone() { state_ = State::kDone; }

  static bool is_retryable(int status);

 private:
  bool may_retry();

  RetryBudget& budget_;
  State state_ = State::kWaiting;
  int left_;
  int num_retries_ = 0;
};

}  // namespace espalier::router
