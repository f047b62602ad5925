#include "engine/executor/cuda/slot_controls.h"

#include <algorithm>

namespace espalier {

Result<std::unique_ptr<SlotControls>> SlotControls::create(const ModelInfo& info,
                                                            int32_t max_slots) {
  if (info.control_vectors.empty()) return std::unique_ptr<SlotControls>();
  std::unique_ptr<SlotControls> out(new SlotControls(max_slots));
  const auto bytes = static_cast<int64_t>(sizeof(ControlUse)) * max_slots;
  ESP_ASSIGN_OR_RETURN(out->device_, cuda::DeviceBuffer::allocate(bytes, "slots' control vectors"));
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  ESP_RETURN_IF_ERROR(cuda::copy_to_device(out->device_.data(), out->known_.data(), bytes, stream));
  ESP_RETURN_IF_ERROR(stream.synchronize());
  return out;
}

// The host's memory is not pinned, so the copy has read it when the call returns.
Status SlotControls::init(const std::vector<SlotInit>& inits, const cuda::Stream& stream) {
  for (const SlotInit& init : inits) {
    ControlUse& known = known_[static_cast<size_t>(init.slot)];
    if (known == init.sampling->control) continue;
    known = init.sampling->control;
    std::byte* const to = device_.data() + init.slot * static_cast<int64_t>(sizeof(ControlUse));
    ESP_RETURN_IF_ERROR(cuda::copy_to_device(to, &known, sizeof(ControlUse), stream));
  }
  return Status();
}

bool SlotControls::any(const ForwardBatch& batch) const {
  return std::ranges::any_of(batch.entries, [this](const BatchEntry& entry) {
    return known_[static_cast<size_t>(entry.slot)].any();
  });
}

}  // namespace espalier
