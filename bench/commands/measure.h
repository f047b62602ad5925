// What the commands share to measure: processor time and the median of samples. Pure functions of
// their arguments and of the clock; safe in any thread.
#pragma once

#include <ctime>
#include <vector>

namespace espalier::bench {

// The time of `clock` (CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID, ...) in microseconds.
double clock_us(clockid_t clock);

// The processor time of the calling thread in microseconds.
double thread_cpu_us();

// The middle value, the upper of two; 0 where there is none.
double median(std::vector<double> values);

}  // namespace espalier::bench
