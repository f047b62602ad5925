// Clock: the time as an interface, so that tests and simulations can replace it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace espalier {

// Nanoseconds since an arbitrary start; never goes back.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
using Duration = std::chrono::nanoseconds;

inline double to_seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
};

// The operating system's monotonic clock. Thread-safe, stateless.
class SteadyClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

// A clock that a test moves by hand. Thread-safe.
class ManualClock final : public Clock {
 public:
  TimePoint now() const override { return TimePoint(Duration(now_ns_.load())); }
  void advance(Duration d) { now_ns_ += d.count(); }

 private:
  std::atomic<int64_t> now_ns_{0};
};

}  // namespace espalier
