#include "models/cuda/expert_tally.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tensor/cuda/device.h"

namespace espalier {
namespace {

using Count = unsigned long long;

}  // namespace

CudaExpertTally::CudaExpertTally(const DecoderSpec& spec, const ExpertsSpec& experts,
                                 cuda::DeviceBuffer counts, cuda::Stream stream)
    : device_(cuda::current_device()),
      num_layers_(static_cast<int32_t>(spec.layers.size())),
      first_local_(experts.first_local),
      num_local_(experts.num_local()),
      counts_(std::move(counts)),
      stream_(std::move(stream)) {}

// All layers with experts have as many.
Result<std::shared_ptr<CudaExpertTally>> CudaExpertTally::create(const DecoderSpec& spec) {
  const auto layer =
      std::ranges::find_if(spec.layers, [](const LayerSpec& l) { return l.experts.has_value(); });
  if (layer == spec.layers.end()) return std::shared_ptr<CudaExpertTally>();
  const auto bytes =
      static_cast<int64_t>(sizeof(Count)) * std::ssize(spec.layers) * layer->experts->num_local();
  ESP_ASSIGN_OR_RETURN(cuda::Stream stream, cuda::Stream::create());
  ESP_ASSIGN_OR_RETURN(cuda::DeviceBuffer counts,
                       cuda::DeviceBuffer::allocate(bytes, "counts of experts' tokens"));
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(counts.data(), 0, bytes, stream));
  ESP_RETURN_IF_ERROR(stream.synchronize());
  return std::shared_ptr<CudaExpertTally>(
      new CudaExpertTally(spec, *layer->experts, std::move(counts), std::move(stream)));
}

unsigned long long* CudaExpertTally::of_layer(int32_t layer) const {
  return reinterpret_cast<Count*>(counts_.data()) + int64_t{layer} * num_local_;
}

Status CudaExpertTally::add_to(ExpertTable& table) const {
  std::vector<Count> counts(static_cast<size_t>(num_layers_) * static_cast<size_t>(num_local_));
  {
    const std::lock_guard lock(mutex_);
    ESP_RETURN_IF_ERROR(cuda::use_device(device_));
    ESP_RETURN_IF_ERROR(
        cuda::copy_to_host(counts.data(), counts_.data(), counts_.size_bytes(), stream_));
    ESP_RETURN_IF_ERROR(stream_.synchronize());
  }
  for (int32_t layer = 0; layer < num_layers_; ++layer) {
    for (int32_t i = 0; i < num_local_; ++i) {
      table[static_cast<size_t>(layer)][static_cast<size_t>(first_local_ + i)] +=
          static_cast<int64_t>(counts[static_cast<size_t>(layer * num_local_ + i)]);
    }
  }
  return Status();
}

}  // namespace espalier
