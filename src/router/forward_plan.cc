#include "router/forward_plan.h"

#include <algorithm>

namespace espalier::router {

void RetryBudget::count_request() {
  int64_t before = milli_.load(std::memory_order_relaxed);
  while (!milli_.compare_exchange_weak(before, std::min(before + earned_milli_, max_milli_))) {
  }
}

bool RetryBudget::take() {
  int64_t before = milli_.load(std::memory_order_relaxed);
  while (before >= 1000)
    if (milli_.compare_exchange_weak(before, before - 1000)) return true;
  return false;
}

// 500 is not among them: a request that crashes a worker would visit them all.
bool ForwardPlan::is_retryable(int status) {
  return status == 429 || status == 502 || status == 503 || status == 504;
}

bool ForwardPlan::may_retry() {
  if (left_ == 0 || !budget_.take()) return false;
  --left_;
  ++num_retries_;
  return true;
}

ForwardPlan::Action ForwardPlan::on_status(int status) {
  if (state_ != State::kWaiting) return Action::kNothing;
  return is_retryable(status) && may_retry() ? Action::kRetry : Action::kPass;
}

ForwardPlan::Action ForwardPlan::on_bytes() {
  if (state_ == State::kDone) return Action::kNothing;
  state_ = State::kStarted;
  return Action::kPass;
}

ForwardPlan::Action ForwardPlan::on_end() {
  if (state_ == State::kDone) return Action::kNothing;
  state_ = State::kDone;
  return Action::kPass;
}

ForwardPlan::Action ForwardPlan::on_failure() {
  if (state_ == State::kDone) return Action::kNothing;
  if (state_ == State::kWaiting && may_retry()) return Action::kRetry;
  const bool started = state_ == State::kStarted;
  state_ = State::kDone;
  return started ? Action::kCut : Action::kRefuse;
}

}  // namespace espalier::router
