#include "models/cuda/weight_copies.h"

#include "base/check.h"
#include "tensor/cuda/device.h"

namespace espalier {

Status WeightCopies::each(const std::function<Status(size_t)>& fn) const {
  for (size_t i = 0; i < decoders_.size(); ++i) {
    ESP_RETURN_IF_ERROR(cuda::use_device(decoders_[i]->device()));
    ESP_RETURN_IF_ERROR(fn(i));
  }
  return Status();
}

Status WeightCopies::copy_each(
    const std::function<Status(size_t, const cuda::Stream&)>& copy) const {
  std::vector<cuda::Stream> streams(decoders_.size());
  const Status status = each([&](size_t i) -> Status {
    ESP_ASSIGN_OR_RETURN(streams[i], cuda::Stream::create());
    return copy(i, streams[i]);
  });
  // Also those that began before one failed.
  const Status done = each(
      [&](size_t i) { return streams[i].get() == nullptr ? Status() : streams[i].synchronize(); });
  return status.ok() ? done : status;
}

Status WeightCopies::allocate() {
  if (!buffers_.empty()) return Status();
  std::vector<cuda::PinnedBuffer> buffers;
  ESP_RETURN_IF_ERROR(each([&](size_t i) -> Status {
    ESP_ASSIGN_OR_RETURN(
        buffers.emplace_back(),
        cuda::PinnedBuffer::allocate(memory(i).size_bytes(), "weights that are released"));
    return Status();
  }));
  buffers_ = std::move(buffers);
  return Status();
}

int64_t WeightCopies::size_bytes() const {
  int64_t bytes = 0;
  for (const cuda::PinnedBuffer& buffer : buffers_) bytes += buffer.size_bytes();
  return bytes;
}

Status WeightCopies::save() {
  if (are_current_) return Status();
  ESP_RETURN_IF_ERROR(allocate());
  ESP_RETURN_IF_ERROR(copy_each([&](size_t i, const cuda::Stream& stream) {
    return cuda::copy_to_host(buffers_[i].data(), memory(i).data(), memory(i).size_bytes(), stream);
  }));
  are_current_ = true;
  return Status();
}

Status WeightCopies::write() const {
  ESP_CHECK(are_current_);
  return copy_each([&](size_t i, const cuda::Stream& stream) {
    return cuda::copy_to_device(memory(i).data(), buffers_[i].data(), memory(i).size_bytes(),
                                stream);
  });
}

void WeightCopies::drop() {
  are_current_ = false;
  buffers_.clear();
}

}  // namespace espalier
