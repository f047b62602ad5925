// Whether a worker whose requests fail is tried again: closed (it is), open (it is not, for a
// while), half open (one request at a time finds out).
#pragma once

#include "base/clock.h"

namespace espalier::router {

struct BreakerOptions {
  int failure_threshold = 10;  // failures in a row that open it
  int success_threshold = 2;   // successes of trials that close it
  Duration open_for = std::chrono::seconds(10);
};

// Not thread-safe. Times never go back.
class CircuitBreaker {
 public:
  enum class State { kClosed, kOpen, kHalfOpen };

  explicit CircuitBreaker(const BreakerOptions& options) : options_(options) {}

  State state(TimePoint now) const;
  // Whether a request may be sent now.
  bool allows(TimePoint now) const;

  // A request was sent. REQUIRES allows(), unless the caller has no other worker.
  void begin();
  // It ended; each begin() has one of these.
  void succeed(TimePoint now);
  void fail(TimePoint now);
  void abandon();  // without an outcome: its client left

 private:
  void end();
  void open(TimePoint now);

  const BreakerOptions options_;
  bool opened_ = false;  // until enough trials have succeeded
  TimePoint open_until_{};
  int num_failures_ = 0;   // in a row, while closed
  int num_successes_ = 0;  // of trials
  int num_in_flight_ = 0;
};

}  // namespace espalier::router
