#include "bench/commands/measure.h"

#include <algorithm>

namespace espalier::bench {

double clock_us(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

double thread_cpu_us() { return clock_us(CLOCK_THREAD_CPUTIME_ID); }

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

}  // namespace espalier::bench
