// digest: a 64-bit hash of a buffer, one grid-stride loop over words and one atomic sum a thread.
// Reads the buffer once, so memory is the roof; tuning calls it, nothing in a step does.
#include "base/rng.h"
#include "kernels/cuda/launch.h"
#include "kernels/linear/digest.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kDigestThreads = 256;

__global__ void __launch_bounds__(kDigestThreads)
    digest_kernel(const uint32_t* words, size_t count, unsigned long long* out) {
  unsigned long long sum = 0;
  for (size_t i = static_cast<size_t>(blockIdx.x) * kDigestThreads + threadIdx.x; i < count;
       i += static_cast<size_t>(gridDim.x) * kDigestThreads)
    sum += mix64(mix64(i) ^ words[i]);
  atomicAdd(out, sum);
}

}  // namespace

Status digest(const void* data, size_t bytes, uint64_t* out, Stream stream) {
  return launch_kernel("digest", digest_kernel, dim3(512), kDigestThreads, 0, {.stream = stream},
                       static_cast<const uint32_t*>(data), bytes / 4,
                       reinterpret_cast<unsigned long long*>(out));
}

}  // namespace espalier::kernels::cuda
