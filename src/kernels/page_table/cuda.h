// What a step brings to the GPU: its arrays, and what is new in the page tables that live there.
#pragma once

#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

// tables[begin + i] = pages[source + i] for i in [0, count).
struct PageTableRun {
  int64_t begin = 0;
  int32_t source = 0;
  int32_t count = 0;
};

// A part of a block, in units of 16 bytes.
struct InputRange {
  int32_t begin = 0;
  int32_t count = 0;
};
inline constexpr int kMaxInputRanges = 16;

// `host`, `runs` and `pages` are pinned memory, written before the launch and not until the kernel
// has ended; it reads them over the bus.
struct BringInputsArgs {
  const void* host = nullptr;  // these parts of it ...
  void* device = nullptr;      // ... go to the same places here; both at 16-byte boundaries
  InputRange ranges[kMaxInputRanges] = {};
  int32_t num_ranges = 0;
  // None touches what another does; their sources follow each other from 0 to num_pages.
  const PageTableRun* runs = nullptr;
  int32_t num_runs = 0;
  const int32_t* pages = nullptr;
  int32_t num_pages = 0;
  int32_t* tables = nullptr;  // on the device
};
Status bring_inputs(const BringInputsArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
