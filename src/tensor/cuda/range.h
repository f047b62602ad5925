// Named ranges of a thread's time for profilers (NVTX; Nsight Systems). Without a profiler one
// costs some nanoseconds, and a build without NVTX's headers has none.
#pragma once

namespace espalier::cuda {

// Lasts from construction to destruction. REQUIRES: destroyed on its thread, in the reverse order
// of construction.
class Range {
 public:
  explicit Range(const char* name);
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range();
};

}  // namespace espalier::cuda
