#include "tensor/cuda/memory.h"

#include <cuda_runtime_api.h>

#include "tensor/cuda/device.h"
#include "tensor/cuda/error.h"

namespace espalier::cuda {
namespace {

double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }

Status no_memory(std::string_view what, int64_t size_bytes) {
  static_cast<void>(cudaGetLastError());
  const auto memory = read_device_memory();
  return error(StatusCode::kResourceExhausted,
               "no device memory for {}: it takes {:.2f} GiB and {:.2f} GiB are free", what,
               gib(size_bytes), memory ? gib(memory->free_bytes) : 0.0);
}

}  // namespace

Result<DeviceBuffer> DeviceBuffer::allocate(int64_t size_bytes, std::string_view what) {
  DeviceBuffer buffer;
  if (size_bytes <= 0) return buffer;
  void* data = nullptr;
  const cudaError_t code = cudaMalloc(&data, static_cast<size_t>(size_bytes));
  if (code == cudaErrorMemoryAllocation) return fail(no_memory(what, size_bytes));
  ESP_RETURN_IF_ERROR(to_status(code, fmt::format("allocate {}", what)));
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_bytes_ = size_bytes;
  return buffer;
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  swap(other);
  return *this;
}
DeviceBuffer::~DeviceBuffer() { static_cast<void>(cudaFree(data_)); }
void DeviceBuffer::swap(DeviceBuffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
}

Result<PinnedBuffer> PinnedBuffer::allocate(int64_t size_bytes, std::string_view what) {
  PinnedBuffer buffer;
  if (size_bytes <= 0) return buffer;
  void* data = nullptr;
  ESP_RETURN_IF_ERROR(
      to_status(cudaMallocHost(&data, static_cast<size_t>(size_bytes)),
                fmt::format("pin {} bytes of host memory for {}", size_bytes, what)));
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.size_bytes_ = size_bytes;
  return buffer;
}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  swap(other);
  return *this;
}
PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) static_cast<void>(cudaFreeHost(data_));
}
void PinnedBuffer::swap(PinnedBuffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
}

namespace {
Status copy(void* to, const void* from, int64_t size_bytes, cudaMemcpyKind kind,
            const Stream& stream, std::string_view what) {
  if (size_bytes == 0) return Status();
  return to_status(cudaMemcpyAsync(to, from, static_cast<size_t>(size_bytes), kind, stream.get()),
                   what);
}
}  // namespace

Status copy_to_device(void* device, const void* host, int64_t size_bytes, const Stream& stream) {
  return copy(device, host, size_bytes, cudaMemcpyHostToDevice, stream, "copy to the device");
}
Status copy_to_host(void* host, const void* device, int64_t size_bytes, const Stream& stream) {
  return copy(host, device, size_bytes, cudaMemcpyDeviceToHost, stream, "copy to the host");
}
Status copy_between_devices(void* to, const void* from, int64_t size_bytes, const Stream& stream) {
  return copy(to, from, size_bytes, cudaMemcpyDeviceToDevice, stream, "copy between devices");
}
Status copy_to_peer(const DeviceBytes& to, const DeviceBytes& from, int64_t size_bytes,
                    const Stream& stream) {
  if (size_bytes == 0) return Status();
  return to_status(cudaMemcpyPeerAsync(to.data, to.device, from.data, from.device,
                                       static_cast<size_t>(size_bytes), stream.get()),
                   "copy to another device");
}
Status fill_bytes(void* device, int value, int64_t size_bytes, const Stream& stream) {
  if (size_bytes == 0) return Status();
  return to_status(cudaMemsetAsync(device, value, static_cast<size_t>(size_bytes), stream.get()),
                   "fill device memory");
}

namespace {
Status copy_rows(const DeviceRows& rows, std::byte* host, cudaMemcpyKind kind,
                 const Stream& stream) {
  const bool to_host = kind == cudaMemcpyDeviceToHost;
  std::byte* const to = to_host ? host : rows.first;
  const std::byte* const from = to_host ? rows.first : host;
  if (rows.num_rows == 1) return copy(to, from, rows.row_bytes, kind, stream, "copy a row");
  const auto pitch = static_cast<size_t>(rows.pitch), width = static_cast<size_t>(rows.row_bytes);
  return to_status(cudaMemcpy2DAsync(to, to_host ? width : pitch, from, to_host ? pitch : width,
                                     width, static_cast<size_t>(rows.num_rows), kind, stream.get()),
                   "copy rows");
}
}  // namespace

Status copy_rows_to_device(const DeviceRows& rows, const std::byte* host, const Stream& stream) {
  return copy_rows(rows, const_cast<std::byte*>(host), cudaMemcpyHostToDevice, stream);
}
Status copy_rows_to_host(std::byte* host, const DeviceRows& rows, const Stream& stream) {
  return copy_rows(rows, host, cudaMemcpyDeviceToHost, stream);
}

Result<int64_t> pitch_max() {
  int pitch = 0;
  ESP_RETURN_IF_ERROR(
      to_status(cudaDeviceGetAttribute(&pitch, cudaDevAttrMaxPitch, current_device()),
                "read the largest pitch"));
  return pitch;
}

// A refusal is not to be found by the thread's next call.
Status pin_memory(std::byte* begin, int64_t size_bytes) {
  Status status =
      to_status(cudaHostRegister(begin, static_cast<size_t>(size_bytes), cudaHostRegisterPortable),
                fmt::format("pin {} bytes of host memory", size_bytes));
  if (!status.ok()) static_cast<void>(cudaGetLastError());
  return status;
}

void unpin_memory(std::byte* begin) {
  if (cudaHostUnregister(begin) != cudaSuccess) static_cast<void>(cudaGetLastError());
}

}  // namespace espalier::cuda
