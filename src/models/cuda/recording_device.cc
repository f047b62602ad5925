// What of tensor/cuda records nothing, for tests without a GPU (recording_kernels.h).
#include <utility>

#include "tensor/cuda/device.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/releasable_buffer.h"
#include "tensor/cuda/stream.h"

namespace espalier::cuda {

namespace internal {
void Destroy::operator()(CUstream_st*) const {}
void Destroy::operator()(CUevent_st*) const {}
void Destroy::operator()(CUgraphExec_st*) const {}
}  // namespace internal

Result<Stream> Stream::create(bool) { return Stream(); }
Status Stream::synchronize() const { return Status(); }

int32_t current_device() { return 0; }
Status use_device(int32_t) { return Status(); }

// Weights are not read back here.
Result<PinnedBuffer> PinnedBuffer::allocate(int64_t, std::string_view) { return PinnedBuffer(); }
PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  swap(other);
  return *this;
}
PinnedBuffer::~PinnedBuffer() = default;
void PinnedBuffer::swap(PinnedBuffer& other) noexcept { std::swap(data_, other.data_); }

Status copy_to_host(void*, const void*, int64_t, const Stream&) { return Status(); }
Status copy_between_devices(void*, const void*, int64_t, const Stream&) { return Status(); }
Status fill_bytes(void*, int, int64_t, const Stream&) { return Status(); }
Status ReleasableBuffer::share(std::span<const int32_t>) { return Status(); }

}  // namespace espalier::cuda
