// What steps without prompts and draft tokens take, by their number of rows: medians of the latest,
// in ranges of rows, and interpolated between the ranges that were measured. Rows are batch entries
// to who learns from them what draft tokens cost, and entries and their draft tokens to who learns
// what prompts cost.
//
// Not thread-safe. Allocates nothing. Times in seconds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace espalier {

// The median of the latest values. A step that the system interrupted moves a mean by so much that
// drafting would stay off for thousands of steps; it does not move the median.
class RecentMedian {
 public:
  void add(double value);
  void clear() { num_added_ = 0; }
  int32_t size() const { return static_cast<int32_t>(std::min(num_added_, kNumKept)); }
  // 0 while there is none. Of fewer than kTrusted values it is the least: the first step of a size
  // may load kernels or record a graph.
  double value() const;
  static constexpr int32_t kTrusted = 3;

 private:
  static constexpr size_t kNumKept = 9;
  std::array<double, kNumKept> kept_{};
  size_t num_added_ = 0;
};

class PlainSteps {
 public:
  static constexpr size_t kRanges = 26;  // the last one has no end
  // Ranges of numbers, two an octave: 1, 2, 3, 4, 5-6, 7-8, 9-12, 13-16, ...
  static size_t range_of(int32_t number);

  // `step`: a number that rises with every step, those of other kinds too.
  void observe(int32_t num_rows, double seconds, uint64_t step);
  // 0 while none has been measured.
  double seconds(int32_t num_rows) const;
  // Whether steps of so many rows have been measured too seldom of late to be relied on.
  bool need_step(int32_t num_rows, uint64_t step) const;

 private:
  // What was measured so many steps ago is measured anew.
  static constexpr uint64_t kStaleSteps = 512;
  struct Range {
    RecentMedian seconds;
    double rows = 0;  // of the steps measured, a running mean
    uint64_t last_step = 0;
  };
  static size_t index_of(int32_t num_rows) { return std::min(range_of(num_rows), kRanges - 1); }

  std::array<Range, kRanges> ranges_;
};

// From `x0`, `y0` to `x1`, `y1`.
constexpr double on_line(double x, double x0, double y0, double x1, double y1) {
  return x1 > x0 ? y0 + (y1 - y0) * (x - x0) / (x1 - x0) : y1;
}

// A running mean: its first value, then so much of each new one.
inline constexpr double kMeanWeight = 0.25;
constexpr void move_mean(double& mean, double value, bool is_first) {
  mean = is_first ? value : mean + kMeanWeight * (value - mean);
}

}  // namespace espalier
