// Divides the rows of a light operation among the threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/backend.h"

namespace espalier::kernels {

// Calls fn(begin, end) over [0, rows), on this thread alone where all of it takes less than waking
// another one (about two microseconds at a few elements a nanosecond).
template <typename Fn>
void share_rows(CpuBackend& backend, int64_t rows, int64_t elements_per_row, const Fn& fn) {
  constexpr int64_t kAloneElements = 16384;
  if (rows <= 0) return;
  if (rows * elements_per_row <= kAloneElements) {
    fn(int64_t{0}, rows);
    return;
  }
  backend.pool().parallel_for(
      rows, std::max<int64_t>(1, kAloneElements / std::max<int64_t>(1, elements_per_row)), fn);
}

}  // namespace espalier::kernels
