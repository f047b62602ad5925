// The watchdog: reports a turn of the scheduler's loop that takes longer than a limit, with what
// each thread is doing, and ends nothing. A turn may be long because the device is busy, which a
// process that was ended for it would not mend.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/watch/loop_progress.h"

namespace espalier {

// Seconds that a turn may take; 0: any time.
struct WatchdogLimits {
  Duration soft{}, hard{};

  bool any() const { return soft > Duration::zero() || hard > Duration::zero(); }
  Duration least() const;  // of those that are set; REQUIRES any()
};

// What is to be reported, from readings of the loop's progress. Not thread-safe; pure.
class SlowTurns {
 public:
  explicit SlowTurns(const WatchdogLimits& limits) : limits_(limits) {}

  struct Report {
    enum class Kind { kSoft, kHard, kEnded } kind = Kind::kSoft;
    double seconds = 0;  // that the turn has taken; kEnded: until a reading found it ended
  };
  // At most one report for each limit that a turn exceeds, and one when that turn has ended. A turn
  // is reported only where an earlier reading found it too, so that a process that was stopped and
  // goes on is not: its clock went on, its loop did not.
  std::optional<Report> observe(const LoopState& state, TimePoint now);

 private:
  const WatchdogLimits limits_;
  uint64_t turn_ = 0;  // of the last reading; 0: the loop was parked
  TimePoint start_{};
  bool soft_reported_ = false, hard_reported_ = false;
};

struct WatchdogCounts {
  int64_t soft = 0, hard = 0;  // turns that exceeded the limit
};

// A thread that reads the progress four times in the least limit and logs reports. `progress`
// outlives it.
class Watchdog {
 public:
  Watchdog(const WatchdogLimits& limits, const LoopProgress& progress);  // REQUIRES limits.any()
  ~Watchdog();

  WatchdogCounts counts() const { return {soft_, hard_}; }  // thread-safe

 private:
  void run();
  void report(const SlowTurns::Report& report, const LoopState& state);

  const WatchdogLimits limits_;
  const LoopProgress& progress_;
  std::atomic<int64_t> soft_{0}, hard_{0};
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace espalier
