#include "kernels/collective/nccl_library.h"

#include <dlfcn.h>

namespace espalier::kernels::cuda {
namespace {

template <typename Function>
void find(void* library, const char* name, Function& out, const char*& missing) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  if (out == nullptr && missing == nullptr) missing = name;
}

Result<NcclLibrary> open_library() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return fail(error(StatusCode::kUnavailable,
                      "NCCL cannot be loaded ({}): install libnccl2, or nvidia-nccl-cu13 by pip "
                      "with its folder in LD_LIBRARY_PATH",
                      dlerror()));
  NcclLibrary out{};
  const char* missing = nullptr;
  find(library, "ncclGetUniqueId", out.get_unique_id, missing);
  find(library, "ncclCommInitRank", out.comm_init_rank, missing);
  find(library, "ncclCommAbort", out.comm_abort, missing);
  find(library, "ncclCommGetAsyncError", out.comm_get_async_error, missing);
  find(library, "ncclGroupStart", out.group_start, missing);
  find(library, "ncclGroupEnd", out.group_end, missing);
  find(library, "ncclAllReduce", out.all_reduce, missing);
  find(library, "ncclReduce", out.reduce, missing);
  find(library, "ncclAllGather", out.all_gather, missing);
  find(library, "ncclBroadcast", out.broadcast, missing);
  find(library, "ncclGetErrorString", out.get_error_string, missing);
  if (missing == nullptr) return out;
  return fail(error(StatusCode::kUnavailable, "libnccl.so.2 lacks {}: it is no NCCL 2", missing));
}

}  // namespace

Status NcclLibrary::status(int code, const char* what) const {
  if (code == 0 || code == kInProgress) return {};
  return error(StatusCode::kInternal, "NCCL: {}: {}", what, get_error_string(code));
}

Result<const NcclLibrary*> nccl_library() {
  static const Result<NcclLibrary> library = open_library();
  if (!library) return fail(library.error());
  return &*library;
}

}  // namespace espalier::kernels::cuda
