#include "engine/executor/cuda/stage_link.h"

#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {

// Of both ways between two devices. Where the system has none, copies go through the host.
void allow_access(int32_t a, int32_t b) {
  if (a == b) return;
  for (const auto& [device, peer] : {std::pair(a, b), std::pair(b, a)}) {
    Status status = cuda::use_device(device);
    if (status.ok()) status = cuda::allow_peer_access(peer);
    if (!status.ok())
      log_warning("stages exchange rows through the host's memory devices={},{} error=\"{}\"",
                  device, peer, status.message());
  }
}

// A power of two that all copies take in whole vectors.
constexpr int64_t kAlignment = cuda::Arena::kAlignment;

}  // namespace

Status StageLink::allocate(int64_t rows_bytes, int32_t sender) {
  buffer_bytes_ = (rows_bytes + kAlignment - 1) / kAlignment * kAlignment;
  ESP_RETURN_IF_ERROR(cuda::use_device(sender));
  for (cuda::Event& event : arrived_) {
    ESP_ASSIGN_OR_RETURN(event, cuda::Event::create());
  }
  ESP_RETURN_IF_ERROR(cuda::use_device(device_));
  for (cuda::Event& event : taken_) {
    ESP_ASSIGN_OR_RETURN(event, cuda::Event::create());
  }
  ESP_ASSIGN_OR_RETURN(inbox_,
                       cuda::DeviceBuffer::allocate(static_cast<int64_t>(kBuffers) * buffer_bytes_,
                                                    "rows of the stage before"));
  return Status();
}

Result<std::vector<std::unique_ptr<StageLink>>> StageLink::create(const StageLinkConfig& config) {
  const std::vector<int32_t>& devices = config.devices;
  ESP_CHECK(devices.size() > 1, "{} stages have nothing to exchange", devices.size());
  const int32_t before = cuda::current_device();
  std::vector<std::unique_ptr<StageLink>> links;
  for (const int32_t device : devices) links.emplace_back(new StageLink(device, config.max_slots));
  for (size_t i = 0; i < links.size(); ++i) {
    links[i]->next_ = links[(i + 1) % links.size()].get();
    allow_access(devices[i], devices[(i + 1) % devices.size()]);
    if (i == 0) continue;
    ESP_RETURN_IF_ERROR(links[i]->allocate(config.rows_bytes, devices[i - 1]));
  }
  ESP_RETURN_IF_ERROR(cuda::use_device(devices.back()));
  for (int32_t i = 0; i < config.max_in_flight; ++i) {
    ESP_ASSIGN_OR_RETURN(links.front()->tokens_sent_.emplace_back(), cuda::Event::create());
  }
  ESP_RETURN_IF_ERROR(cuda::use_device(before));
  return links;
}

Status StageLink::receive(void* rows, int64_t size_bytes, const cuda::Stream& stream) {
  if (num_received_ == num_sent_)
    return error(StatusCode::kUnavailable, "the stage before has sent no rows");
  const uint64_t index = num_received_++;
  ESP_RETURN_IF_ERROR(stream.wait(arrived_[index % kBuffers]));
  ESP_RETURN_IF_ERROR(cuda::copy_to_peer({static_cast<std::byte*>(rows), device_}, buffer(index),
                                         size_bytes, stream));
  return taken_[index % kBuffers].record(stream);
}

Status StageLink::send(const void* rows, int64_t size_bytes, const cuda::Stream& stream) {
  StageLink& to = *next_;
  ESP_CHECK(size_bytes <= to.buffer_bytes_, "{} bytes of rows, reserved {}", size_bytes,
            to.buffer_bytes_);
  const uint64_t index = to.num_sent_++;
  if (index >= kBuffers) ESP_RETURN_IF_ERROR(stream.wait(to.taken_[index % kBuffers]));
  auto* const from = static_cast<std::byte*>(const_cast<void*>(rows));
  ESP_RETURN_IF_ERROR(cuda::copy_to_peer(to.buffer(index), {from, device_}, size_bytes, stream));
  return to.arrived_[index % kBuffers].record(stream);
}

// The first stage reads no slot whose token is on its way before it has awaited it, and the others
// are written as they are.
Status StageLink::send_tokens(uint64_t step, const int32_t* tokens, const cuda::Stream& stream) {
  StageLink& to = *next_;
  auto* const from = reinterpret_cast<std::byte*>(const_cast<int32_t*>(tokens));
  ESP_RETURN_IF_ERROR(cuda::copy_to_peer(
      {reinterpret_cast<std::byte*>(to.slot_tokens_), to.device_}, {from, device_},
      int64_t{max_slots_} * static_cast<int64_t>(sizeof(int32_t)), stream));
  return to.tokens_sent_[step % to.tokens_sent_.size()].record(stream);
}

// Where a later step has taken the event, this one has long ended.
Status StageLink::await_tokens(uint64_t step, const cuda::Stream& stream) const {
  return stream.wait(tokens_sent_[step % tokens_sent_.size()]);
}

}  // namespace espalier
