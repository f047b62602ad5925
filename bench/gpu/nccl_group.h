// NVIDIA's collective library, loaded when it is first wanted (libnccl.so.2), as what
// all-reduces of kernels/collective are compared with. Its interface is stable within its major
// version.
//
// Thread-safe; a rank is used from one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/stream.h"

namespace espalier::bench {

class NcclGroup {
 public:
  // Joins the devices as ranks of one group. kUnavailable where the library is not installed or
  // refuses.
  static Result<std::unique_ptr<NcclGroup>> create(const std::vector<int32_t>& devices);
  virtual ~NcclGroup() = default;

  // x becomes the sum of all ranks' x, rounded at each addition. May be captured into a graph.
  virtual Status all_reduce(int32_t rank, DType type, void* x, int64_t elements,
                            kernels::cuda::Stream stream) = 0;
};

}  // namespace espalier::bench
