// How far a loading is: told to whoever asked, else to the log.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "base/clock.h"

namespace espalier {

// Bytes of the checkpoint that are loaded, and all of them. From one thread, some times a second;
// last with done == total, where the loading does not fail.
using TellLoaded = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Not thread-safe.
class LoadProgress {
 public:
  // tell: null: a line of the log every tenth of a loading that takes longer than a second.
  LoadProgress(TellLoaded tell, int64_t total_bytes, const Clock& clock)
      : tell_(std::move(tell)),
        total_bytes_(total_bytes),
        clock_(clock),
        started_(clock.now()),
        told_at_(started_) {}

  void set(int64_t done_bytes);
  void finish() { set(total_bytes_); }

 private:
  void log(int64_t done_bytes, TimePoint now);

  const TellLoaded tell_;
  const int64_t total_bytes_;
  const Clock& clock_;
  const TimePoint started_;
  TimePoint told_at_;
  int64_t tenths_logged_ = 0;
  bool finished_ = false;
};

}  // namespace espalier
