// A progress bar on standard error: redrawn in place on a terminal; elsewhere a line for each
// tenth, so that a log stays short.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace espalier::apps {

// Thread-safe.
class ProgressBar {
 public:
  // unit: "" counts things; "B" shows bytes as MB or GB.
  ProgressBar(std::string what, int64_t total, std::string_view unit = "");
  ~ProgressBar();  // ends the line

  void advance(int64_t by = 1);
  void set(int64_t done);

 private:
  void show(TimePoint now);
  void draw();
  std::string shown(int64_t count) const;

  const std::string what_;
  const int64_t total_;
  const std::string unit_;
  const bool terminal_;
  const TimePoint started_;
  std::mutex mutex_;
  int64_t done_ = 0;
  int64_t tenths_shown_ = 0;
  TimePoint drawn_{};
};

}  // namespace espalier::apps
