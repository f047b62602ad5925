#include "router/circuit_breaker.h"

#include "base/check.h"

namespace espalier::router {

CircuitBreaker::State CircuitBreaker::state(TimePoint now) const {
  if (!opened_) return State::kClosed;
  return now < open_until_ ? State::kOpen : State::kHalfOpen;
}

bool CircuitBreaker::allows(TimePoint now) const {
  const State at = state(now);
  return at == State::kClosed || (at == State::kHalfOpen && num_in_flight_ == 0);
}

void CircuitBreaker::begin() { ++num_in_flight_; }

void CircuitBreaker::end() {
  ESP_CHECK(num_in_flight_ > 0, "a request ended that had not begun");
  --num_in_flight_;
}

void CircuitBreaker::succeed(TimePoint now) {
  end();
  num_failures_ = 0;
  if (state(now) != State::kHalfOpen) return;  // sent before it opened: no trial
  if (++num_successes_ >= options_.success_threshold) opened_ = false;
}

void CircuitBreaker::fail(TimePoint now) {
  end();
  if (state(now) == State::kHalfOpen) return open(now);
  if (!opened_ && ++num_failures_ >= options_.failure_threshold) open(now);
}

void CircuitBreaker::abandon() { end(); }

void CircuitBreaker::open(TimePoint now) {
  opened_ = true;
  open_until_ = now + options_.open_for;
  num_failures_ = num_successes_ = 0;
}

}  // namespace espalier::router
