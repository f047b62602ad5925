#include "engine/executor/cuda/stage_link.h"

#include <algorithm>
#include <cstddef>

#include "tensor/cuda/ipc.h"

namespace espalier {

Result<StageChannel> StageChannel::create(int64_t size_bytes) {
  StageChannel out;
  for (Slot& slot : out.slots_) {
    ESP_ASSIGN_OR_RETURN(slot.memory,
                         cuda::DeviceBuffer::allocate(size_bytes, "rows between stages"));
    ESP_ASSIGN_OR_RETURN(slot.sent, cuda::Event::create());
  }
  return out;
}

Status StageChannel::send(uint64_t step, const void* from, int64_t size_bytes,
                          const cuda::Stream& stream) {
  Slot& slot = slots_[step % slots_.size()];
  ESP_RETURN_IF_ERROR(cuda::copy_on_device(slot.memory.data(), static_cast<const std::byte*>(from),
                                           size_bytes, size_bytes, 1, stream));
  return slot.sent.record(stream);
}

Status StageChannel::receive(uint64_t step, void* to, int64_t size_bytes,
                             const cuda::Stream& stream) const {
  const Slot& slot = slots_[step % slots_.size()];
  ESP_RETURN_IF_ERROR(stream.wait(slot.sent));
  return cuda::copy_on_device(static_cast<std::byte*>(to), slot.memory.data(), size_bytes,
                              size_bytes, 1, stream);
}

Result<std::unique_ptr<StageLink>> StageLink::create(const StageLinkConfig& config) {
  std::unique_ptr<StageLink> link(new StageLink(config));
  if (!config.last) {
    ESP_ASSIGN_OR_RETURN(link->rows_, StageChannel::create(config.row_bytes * config.max_tokens));
    return link;
  }
  ESP_ASSIGN_OR_RETURN(link->tokens_,
                       StageChannel::create(int64_t{config.max_slots} * sizeof(int32_t)));
  return link;
}

Status StageLink::receive(const ForwardBatch& batch, void* rows, int32_t count,
                          int32_t* slot_tokens, const cuda::Stream& stream) const {
  if (before_ != nullptr)
    return before_->rows_.receive(batch.step, rows, config_.row_bytes * count, stream);
  // A step of prompts alone does not wait for the samples of the step before it.
  if (std::ranges::find(batch.token_ids, kTokenFromSlot) == batch.token_ids.end()) return Status();
  return last_->tokens_.receive(batch.step - 1, slot_tokens,
                                int64_t{config_.max_slots} * sizeof(int32_t), stream);
}

Status StageLink::send(uint64_t step, const void* rows, int32_t count, const cuda::Stream& stream) {
  if (config_.last) return Status();
  return rows_.send(step, rows, config_.row_bytes * count, stream);
}

Status StageLink::send_tokens(uint64_t step, const int32_t* slot_tokens,
                              const cuda::Stream& stream) {
  if (!config_.last) return Status();
  return tokens_.send(step, slot_tokens, int64_t{config_.max_slots} * sizeof(int32_t), stream);
}

}  // namespace espalier
