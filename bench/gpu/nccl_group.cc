#include "nccl_group.h"

#include <dlfcn.h>

#include <type_traits>
#include <utility>

namespace espalier::bench {
namespace {

// As in nccl.h of NCCL 2.
struct ncclComm;
using NcclComm = ncclComm*;
constexpr int kNcclFloat32 = 7, kNcclBFloat16 = 9, kNcclSum = 0;

struct NcclLibrary {
  int (*init_all)(NcclComm* comms, int count, const int* devices) = nullptr;
  int (*all_reduce)(const void* from, void* to, size_t count, int type, int op, NcclComm comm,
                    kernels::cuda::Stream stream) = nullptr;
  int (*destroy)(NcclComm comm) = nullptr;
  const char* (*error_string)(int code) = nullptr;
};

// Stays loaded until the process ends.
Result<NcclLibrary> load_nccl() {
  void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return fail(error(StatusCode::kUnavailable,
                      "NCCL cannot be loaded ({}); install it (pip: nvidia-nccl-cu13) and let "
                      "LD_LIBRARY_PATH name its folder",
                      dlerror()));
  NcclLibrary out;
  bool whole = true;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    whole &= function != nullptr;
  };
  find(out.init_all, "ncclCommInitAll");
  find(out.all_reduce, "ncclAllReduce");
  find(out.destroy, "ncclCommDestroy");
  find(out.error_string, "ncclGetErrorString");
  if (!whole) return fail(error(StatusCode::kUnavailable, "libnccl.so.2 is no NCCL 2"));
  return out;
}

class LoadedNccl final : public NcclGroup {
 public:
  LoadedNccl(const NcclLibrary& library, std::vector<NcclComm> comms)
      : library_(library), comms_(std::move(comms)) {}
  ~LoadedNccl() override {
    for (NcclComm comm : comms_) library_.destroy(comm);
  }
  Status all_reduce(int32_t rank, DType type, void* x, int64_t elements,
                    kernels::cuda::Stream stream) override {
    const int code = library_.all_reduce(x, x, static_cast<size_t>(elements),
                                         type == DType::kBFloat16 ? kNcclBFloat16 : kNcclFloat32,
                                         kNcclSum, comms_[static_cast<size_t>(rank)], stream);
    if (code == 0) return {};
    return error(StatusCode::kInternal, "NCCL: {}", library_.error_string(code));
  }

 private:
  const NcclLibrary library_;
  const std::vector<NcclComm> comms_;
};

}  // namespace

Result<std::unique_ptr<NcclGroup>> NcclGroup::create(const std::vector<int32_t>& devices) {
  ESP_ASSIGN_OR_RETURN(const NcclLibrary library, load_nccl());
  std::vector<NcclComm> comms(devices.size());
  const int code = library.init_all(comms.data(), static_cast<int>(devices.size()), devices.data());
  if (code != 0)
    return fail(error(StatusCode::kUnavailable, "NCCL does not join {} GPUs: {}", devices.size(),
                      library.error_string(code)));
  return std::make_unique<LoadedNccl>(library, std::move(comms));
}

}  // namespace espalier::bench
