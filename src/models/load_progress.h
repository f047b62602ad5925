// Progress of loading: reported to the caller's function, else to the log.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "base/clock.h"

namespace espalier {

// Receives the bytes of the checkpoint that are loaded, and the bytes of all of it. Called from one
// thread, at most ten times a second; last with done == total, unless loading fails.
using ReportLoaded = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Not thread-safe.
class LoadProgress {
 public:
  // report: null: the log has a line for every tenth of a loading that takes longer than a second.
  LoadProgress(ReportLoaded report, int64_t total_bytes, const Clock& clock)
      : report_(std::move(report)),
        total_bytes_(total_bytes),
        clock_(clock),
        started_(clock.now()),
        reported_at_(started_) {}

  void set(int64_t done_bytes);
  void finish() { set(total_bytes_); }

 private:
  void log(int64_t done_bytes, TimePoint now);

  const ReportLoaded report_;
  const int64_t total_bytes_;
  const Clock& clock_;
  const TimePoint started_;
  TimePoint reported_at_;
  int64_t tenths_logged_ = 0;
  bool finished_ = false;
};

}  // namespace espalier
