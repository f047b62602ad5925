// What every CUDA contract of this room shares. Including it needs no CUDA header.
//
// All pointers in the structs of kernels/*/cuda.h are device memory unless said otherwise, and all
// strides are in elements. A launcher checks its arguments (kInvalidArgument, kUnimplemented), puts
// its work on `stream` and returns without waiting; kInternal names the operation when the launch
// itself was refused. None allocates, none synchronises, so all may be captured into a graph, and
// what depends on the step (lengths, page tables, ids) is read from device memory when the graph
// runs. Launchers may be called from any thread; two on one workspace must be on one stream.
//
// Where `pdl` of LaunchOptions is set the kernel is launched with programmatic dependent
// launch: it may start while the kernel before it in the stream still runs, fetches weights
// meanwhile, and touches nothing else before that kernel has ended (but for what its arguments say
// is there already: AttentionArgs::prefetch_cached_kv). The kernel before it must then not write
// weights. On GPUs before Hopper it has no effect.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "tensor/dtype.h"

struct CUstream_st;

namespace espalier::kernels::cuda {

using Stream = ::CUstream_st*;  // cudaStream_t

struct LaunchOptions {
  Stream stream = nullptr;
  bool pdl = false;
};

// What the launchers ask of the current device, once for each device of the process.
struct DeviceTraits {
  int32_t compute_capability = 0;  // 90 for 9.0
  int32_t num_multiprocessors = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_block = 0;  // with opt-in
};
// kUnavailable with the driver's message where there is no usable device.
Result<DeviceTraits> device_traits();

}  // namespace espalier::kernels::cuda
