// A step's inputs on their way to the GPU: its arrays, and what is new in the page tables that live
// there. Thread-safe; requirements of streams as kernels/cuda/stream.h.
#pragma once

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

// tables[begin + i] = pages[source + i] for i in [0, count).
struct PageTableRun {
  int64_t begin = 0;
  int32_t source = 0;
  int32_t count = 0;
};

// A range of a block of memory, in units of 16 bytes.
struct InputRange {
  int32_t begin = 0;
  int32_t count = 0;
};
inline constexpr int kMaxInputRanges = 20;

// `host`, `runs` and `pages` are pinned host memory, written before the launch and not again until
// the kernel has ended; the kernel reads them over the bus.
struct BringInputsArgs {
  const void* host = nullptr;  // these ranges of it ...
  void* device = nullptr;      // ... go to the same offsets here; both 16-byte aligned
  InputRange ranges[kMaxInputRanges] = {};
  int32_t num_ranges = 0;
  // Runs do not overlap; their sources are adjacent from 0 to num_pages.
  const PageTableRun* runs = nullptr;
  int32_t num_runs = 0;
  const int32_t* pages = nullptr;
  int32_t num_pages = 0;
  int32_t* tables = nullptr;  // on the device
};
Status bring_inputs(const BringInputsArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
