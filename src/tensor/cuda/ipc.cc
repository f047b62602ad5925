#include "tensor/cuda/ipc.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>

#include "tensor/cuda/error.h"

namespace espalier::cuda {
namespace {

// Through the runtime, so that nothing links the driver.
Result<int64_t> allocation_bytes(void* data) {
  using GetRange = CUresult (*)(CUdeviceptr*, size_t*, CUdeviceptr);
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  ESP_RETURN_IF_ERROR(to_status(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function,
                                                                 12000, cudaEnableDefault, &found),
                                "find cuMemGetAddressRange"));
  size_t size = 0;
  CUdeviceptr base = 0;
  if (function == nullptr ||
      reinterpret_cast<GetRange>(function)(&base, &size, reinterpret_cast<CUdeviceptr>(data)) !=
          CUDA_SUCCESS) {
    return fail(error(StatusCode::kInternal, "the size of a shared allocation is not known"));
  }
  return static_cast<int64_t>(size);
}

}  // namespace

Result<SharedMemory> SharedMemory::open(std::string_view bytes) {
  cudaIpcMemHandle_t handle;
  if (bytes.size() != sizeof(handle)) {
    return fail(invalid_argument("a handle of CUDA IPC has {} bytes, but this one has {}",
                                 sizeof(handle), bytes.size()));
  }
  std::memcpy(&handle, bytes.data(), sizeof(handle));
  void* data = nullptr;
  const cudaError_t code = cudaIpcOpenMemHandle(&data, handle, cudaIpcMemLazyEnablePeerAccess);
  if (code != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // not to be found by the thread's next call
    return fail(invalid_argument(
        "a handle of CUDA IPC opens nothing ({}): it must be of memory that a process on the same "
        "GPU has from cudaMalloc and still keeps (PyTorch without expandable_segments)",
        cudaGetErrorString(code)));
  }
  SharedMemory out;
  out.data_ = static_cast<std::byte*>(data);
  ESP_ASSIGN_OR_RETURN(out.size_bytes_, allocation_bytes(data));
  return out;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr && cudaIpcCloseMemHandle(data_) != cudaSuccess)
    static_cast<void>(cudaGetLastError());
}

Result<std::string> share_memory(const DeviceBuffer& buffer) {
  cudaIpcMemHandle_t handle;
  const cudaError_t code = cudaIpcGetMemHandle(&handle, buffer.data());
  if (code != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return fail(error(StatusCode::kUnavailable,
                      "this system shares no device memory with other processes ({})",
                      cudaGetErrorString(code)));
  }
  return std::string(reinterpret_cast<const char*>(&handle), sizeof(handle));
}

Status copy_rows_on_devices(const PitchedRows& rows, const Stream& stream) {
  const auto width = static_cast<size_t>(rows.row_bytes);
  if (rows.num_rows == 1)
    return to_status(
        cudaMemcpyAsync(rows.to, rows.from, width, cudaMemcpyDeviceToDevice, stream.get()),
        "copy a row between devices");
  return to_status(
      cudaMemcpy2DAsync(rows.to, static_cast<size_t>(rows.to_pitch), rows.from,
                        static_cast<size_t>(rows.from_pitch), width,
                        static_cast<size_t>(rows.num_rows), cudaMemcpyDeviceToDevice, stream.get()),
      "copy rows between devices");
}

Status copy_on_device(std::byte* to, const std::byte* from, int64_t from_pitch, int64_t row_bytes,
                      int64_t num_rows, const Stream& stream) {
  const auto width = static_cast<size_t>(row_bytes), rows = static_cast<size_t>(num_rows);
  if (rows == 1 || from_pitch == row_bytes) {
    return to_status(
        cudaMemcpyAsync(to, from, width * rows, cudaMemcpyDeviceToDevice, stream.get()),
        "copy on the device");
  }
  return to_status(cudaMemcpy2DAsync(to, width, from, static_cast<size_t>(from_pitch), width, rows,
                                     cudaMemcpyDeviceToDevice, stream.get()),
                   "copy rows on the device");
}

}  // namespace espalier::cuda
