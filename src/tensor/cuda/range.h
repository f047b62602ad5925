// Named stretches of a thread's time, as profilers show them (NVTX; Nsight Systems). Without a
// profiler one costs some nanoseconds, and a build without NVTX's headers has none.
#pragma once

namespace espalier::cuda {

// From its making to its end. REQUIRES: ends on its thread, in the reverse order of making.
class Range {
 public:
  explicit Range(const char* name);
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range();
};

}  // namespace espalier::cuda
