// NVIDIA's collective library (libnccl.so.2), opened when it is first wanted, so that one GPU
// needs no installation of it. Its interface is stable within its major version. Internal to
// kernels/collective.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "kernels/cuda/stream.h"

struct ncclComm;

namespace espalier::kernels::cuda {

using NcclComm = ::ncclComm*;
// What all ranks of a group are joined by.
struct NcclId {
  char bytes[128];
};

// The functions under NCCL's names, and its numbers of types; 0 is success.
struct NcclLibrary {
  static constexpr int kInt32 = 2, kFloat32 = 7, kBFloat16 = 9, kBytes = 1, kSum = 0;
  static constexpr int kInProgress = 7;  // a result code

  int (*get_unique_id)(NcclId* id);
  int (*comm_init_rank)(NcclComm* comm, int num_ranks, NcclId id, int rank);
  int (*comm_abort)(NcclComm comm);
  int (*comm_get_async_error)(NcclComm comm, int* code);
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(const void* from, void* to, size_t count, int type, int op, NcclComm comm,
                    Stream stream);
  int (*reduce)(const void* from, void* to, size_t count, int type, int op, int root, NcclComm comm,
                Stream stream);
  int (*all_gather)(const void* part, void* all, size_t count, int type, NcclComm comm,
                    Stream stream);
  int (*broadcast)(const void* from, void* to, size_t count, int type, int root, NcclComm comm,
                   Stream stream);
  const char* (*get_error_string)(int code);

  // kInternal with NCCL's message, or ok.
  Status status(int code, const char* what) const;
};

// Stays loaded until the process ends. kUnavailable says how to install it.
Result<const NcclLibrary*> nccl_library();

}  // namespace espalier::kernels::cuda
