// The measured ceilings of the machine, against which kernels_bench sets its figures.
#pragma once

#include <chrono>
#include <cstddef>
#include <ctime>

#include "kernels/cpu/backend.h"

namespace espalier::kernels::bench {

// The clock of a timing: the wall clock, or on a shared machine the processor time of this process
// (meaningful with one thread).
struct Stopwatch {
  bool cpu_time = false;
  double now_seconds() const {
    if (!cpu_time) {
      return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
          .count();
    }
    timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }
};

// Bytes a second that all threads together read from memory, best of several ways to read, over a
// buffer of `bytes`.
double measure_read_rate(CpuBackend& backend, const Stopwatch& watch, size_t bytes);

// Floating-point operations a second of all threads together, from registers, with the instruction
// that the back end multiplies bfloat16 or float32 with. 0 where that is not known.
double measure_bf16_peak(CpuBackend& backend, const Stopwatch& watch);
double measure_f32_peak(CpuBackend& backend, const Stopwatch& watch);

}  // namespace espalier::kernels::bench
