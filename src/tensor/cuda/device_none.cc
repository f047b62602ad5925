// A build without CUDA.
#include "tensor/cuda/device.h"

namespace espalier::cuda {
namespace {
Status no_cuda() {
  return error(StatusCode::kUnavailable,
               "this build has no CUDA back end; build it where nvcc is (cmake --preset cuda), or "
               "use --device cpu");
}
}  // namespace

Result<DeviceInfo> open_device(int32_t) { return fail(no_cuda()); }
int32_t count_devices() { return 0; }
Status use_device(int32_t) { return no_cuda(); }
int32_t current_device() { return 0; }
Result<DeviceMemory> read_device_memory() { return fail(no_cuda()); }

}  // namespace espalier::cuda
