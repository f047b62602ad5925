#include "engine/scheduler/plain_steps.h"

#include <bit>

namespace espalier {

void RecentMedian::add(double value) { kept_[num_added_++ % kNumKept] = value; }

double RecentMedian::value() const {
  if (num_added_ == 0) return 0;
  std::array<double, kNumKept> sorted = kept_;
  const int32_t rank = size() < kTrusted ? 0 : size() / 2;
  const auto at = sorted.begin() + rank;
  std::nth_element(sorted.begin(), at, sorted.begin() + size());
  return *at;
}

size_t PlainSteps::range_of(int32_t number) {
  const auto n = static_cast<uint32_t>(std::max(number, 1));
  if (n <= 2) return n - 1;
  // Above 2^k the ranges end at 1.5 * 2^k and 2^(k+1).
  const auto k = static_cast<uint32_t>(std::bit_width(n - 1)) - 1;
  const uint32_t middle = 3u << (k - 1);
  return 2 * k + (n <= middle ? 0 : 1);
}

void PlainSteps::observe(int32_t num_rows, double seconds, uint64_t step) {
  Range& range = ranges_[index_of(num_rows)];
  if (step - range.last_step > kStaleSteps) range.seconds.clear();
  move_mean(range.rows, num_rows, range.seconds.size() == 0);
  range.seconds.add(seconds);
  range.last_step = step;
}

// Between the nearest measured numbers of rows; beyond them that of the nearest.
double PlainSteps::seconds(int32_t num_rows) const {
  const Range *below = nullptr, *above = nullptr;
  for (size_t i = 0; i < kRanges && above == nullptr; ++i) {
    if (ranges_[i].seconds.size() == 0) continue;
    (ranges_[i].rows <= num_rows ? below : above) = &ranges_[i];
  }
  if (below == nullptr || above == nullptr) {
    const Range* const only = below != nullptr ? below : above;
    return only != nullptr ? only->seconds.value() : 0;
  }
  return on_line(num_rows, below->rows, below->seconds.value(), above->rows,
                 above->seconds.value());
}

bool PlainSteps::need_step(int32_t num_rows, uint64_t step) const {
  const Range& range = ranges_[index_of(num_rows)];
  return range.seconds.size() < RecentMedian::kTrusted || step - range.last_step > kStaleSteps;
}

}  // namespace espalier
