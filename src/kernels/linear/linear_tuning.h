// What tuning measures: candidate algorithms, equality of bits, and times. Internal to
// kernels/linear. Every function synchronises the stream, so none runs while a graph is captured.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "kernels/linear/cublaslt.h"

namespace espalier::kernels::cuda {

// Row-invariant GEMMs: an algorithm is compared with the reference one on at least this many rows.
inline constexpr int32_t kComparedRows = 64;
inline constexpr int kTimedRuns = 7;
inline constexpr size_t kFlushedBytes = size_t{128} << 20;

// What cuBLASLt proposes for args and for some other numbers of rows, which sometimes has a better
// algorithm: without split-K its best one for 1 row is among those for 17 or 100.
Result<std::vector<CublasLt::Algorithm>> tuning_candidates(const CublasLt& library,
                                                           const LinearArgs& args);

// Those of `all` whose bits equal those of the shape's standard algorithm, the standard among them.
// Too few rows show too few bits: then the standard alone. rows: that the pointers of args have
// room for; y and the first kCublasLtBytes of the workspace are overwritten.
Result<std::vector<CublasLt::Algorithm>> same_bits(const CublasLt& library, const LinearArgs& args,
                                                   int32_t rows,
                                                   std::vector<CublasLt::Algorithm> all,
                                                   void* workspace, Stream stream);

// Milliseconds of one `work`, the least of several runs; nothing where it fails. Each run finds L2
// full of other data, as in a forward pass.
template <typename Work>
std::optional<float> time_ms(Work&& work, void* workspace, size_t workspace_bytes, Stream stream) {
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  std::optional<float> best;
  for (int i = 0; i < kTimedRuns; ++i) {
    cudaMemsetAsync(workspace, i, std::min(workspace_bytes, kFlushedBytes), stream);
    cudaEventRecord(begin, stream);
    const bool done = work().ok();
    cudaEventRecord(end, stream);
    if (cudaEventSynchronize(end) != cudaSuccess || !done) break;
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (i > 1) best = std::min(best.value_or(ms), ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best;
}

}  // namespace espalier::kernels::cuda
