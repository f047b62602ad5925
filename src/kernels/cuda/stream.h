// The contract that all CUDA launchers of this room share. Including it needs no CUDA header.
//
// Pointers: all pointers in the structs of kernels/*/cuda.h are borrowed device memory unless
// stated otherwise, and all strides are in elements.
//
// Behaviour: a launcher checks its arguments (kInvalidArgument, kUnimplemented), enqueues its work
// on `stream` and returns without waiting; kInternal names the operation when the launch itself
// failed. None allocates, none synchronises, so all may be captured into a graph; what depends on
// the step (lengths, page tables, ids) is read from device memory when the graph runs.
//
// Thread safety: launchers may be called from any thread; two that share a workspace must use one
// stream.
#pragma once

// Programmatic dependent launch (PDL): with LaunchOptions::pdl a kernel may start while the kernel
// before it in the stream still runs. It prefetches weights meanwhile, and touches nothing else
// before that kernel has ended, except what its arguments state is complete
// (AttentionArgs::prefetch_cached_kv). The kernel before it must then not write weights. On GPUs
// before Hopper pdl has no effect.

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

// What the launchers need to know of the current device; queried once for each device of the
// process.
struct DeviceTraits {
  int32_t compute_capability = 0;  // 90 for 9.0
  int32_t num_multiprocessors = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_block = 0;  // with opt-in
};
// Returns kUnavailable with the driver's message where there is no usable device.
Result<DeviceTraits> device_traits();

}  // namespace espalier::kernels::cuda
