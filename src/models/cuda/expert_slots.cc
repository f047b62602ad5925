#include "models/cuda/expert_slots.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/linear/quantize_rows.h"
#include "models/weight_id.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

// What an expert is made of: these weights, and the scales of the matrices.
constexpr WeightKind kKinds[] = {WeightKind::kExpertGateUp, WeightKind::kExpertDown,
                                 WeightKind::kExpertGateUpBias, WeightKind::kExpertDownBias};
constexpr size_t kNumParts = 2 * std::size(kKinds);
constexpr int64_t kAlignment = 256;  // of a part in the spare slot

// Of one matrix or bias of a stack.
int64_t value_bytes(const CudaWeight& weight) {
  const WeightCodes& codes = weight.format.codes;
  if (codes.mxfp4 || codes.int4.group > 0) return weight.group_stride;
  const int64_t elements = int64_t{weight.in_features} * weight.out_features;
  return weight.scales != nullptr ? elements
                                  : elements * static_cast<int64_t>(dtype_size(weight.format.type));
}
int64_t scale_bytes(const CudaWeight& weight) {
  if (weight.scales == nullptr) return 0;
  const int64_t rows = weight.out_features;
  const int64_t count =
      weight.format.codes.block_scales
          ? kc::scale_blocks(weight.out_features) * kc::block_scale_stride(weight.in_features)
          : rows;
  return count * static_cast<int64_t>(sizeof(float));
}

}  // namespace

struct CudaExpertSlots::Part {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

Result<std::unique_ptr<CudaExpertSlots>> CudaExpertSlots::create(DecoderSpec& whole,
                                                                 DecoderSpec& spec,
                                                                 const CudaWeights& weights) {
  std::unique_ptr<CudaExpertSlots> out(new CudaExpertSlots(whole, spec, weights));
  for (const LayerSpec& layer : spec.layers) {
    if (!layer.experts || layer.experts->slots.empty()) continue;
    const int64_t size =
        int64_t{layer.experts->router.num_experts} + 1 + layer.experts->num_slots();
    out->table_size_ = std::max(out->table_size_, size);
  }
  if (out->table_size_ == 0) return std::unique_ptr<CudaExpertSlots>();
  const auto num_layers = static_cast<int32_t>(spec.layers.size());
  ESP_ASSIGN_OR_RETURN(out->tables_, cuda::DeviceBuffer::allocate(
                                         num_layers * out->table_size_ * int64_t{sizeof(int32_t)},
                                         "slots of experts"));
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    if (!spec.layers[static_cast<size_t>(layer)].experts) continue;
    ESP_RETURN_IF_ERROR(out->upload(layer, stream));
  }
  return out;
}

kc::Replicas CudaExpertSlots::replicas(int32_t layer) const {
  return {.table = table(layer),
          .num_experts = experts(layer).router.num_experts,
          .num_slots = experts(layer).num_slots()};
}

Status CudaExpertSlots::set(int32_t layer, const ExpertSlots& slots, const cuda::Stream& stream) {
  const auto at = static_cast<size_t>(layer);
  whole_.layers[at].experts->slots = slots;
  spec_.layers[at].experts->slots = slots;
  return upload(layer, stream);
}

Status CudaExpertSlots::upload(int32_t layer, const cuda::Stream& stream) {
  const ExpertsSpec& spec = experts(layer);
  const std::vector<int32_t> values = replica_table(spec.router.num_experts, spec.slots);
  const int64_t bytes = std::ssize(values) * int64_t{sizeof(int32_t)};
  ESP_RETURN_IF_ERROR(cuda::copy_to_device(table(layer), values.data(), bytes, stream));
  return stream.synchronize();
}

// Parts lie in the spare slot one behind the other.
CudaExpertSlots::Part CudaExpertSlots::part(int32_t layer, int32_t slot, size_t index) const {
  const auto weight_of = [&](size_t i) -> const CudaWeight& {
    return weights_.at({kKinds[i / 2], layer});
  };
  const auto bytes_of = [&](size_t i) {
    const CudaWeight& weight = weight_of(i);
    if (weight.data == nullptr) return int64_t{0};
    return i % 2 == 0 ? value_bytes(weight) : scale_bytes(weight);
  };
  Part out{.bytes = bytes_of(index)};
  if (out.bytes == 0) return out;
  const ExpertsSpec& spec = experts(layer);
  if (slot >= spec.num_slots()) {
    out.data = spare_.data();
    for (size_t i = 0; i < index; ++i)
      out.data += (bytes_of(i) + kAlignment - 1) / kAlignment * kAlignment;
    return out;
  }
  const CudaWeight& weight = weight_of(index);
  const void* first = index % 2 == 0 ? weight.data : weight.scales;
  const auto* const whole = weights_.block();
  out.data = weights_.block() + (static_cast<const std::byte*>(first) - whole) +
             (slot - spec.first_local) * out.bytes;
  return out;
}

Status CudaExpertSlots::reserve_moves(std::span<const int32_t> ranks) {
  int64_t largest = 0;
  for (size_t layer = 0; layer < spec_.layers.size(); ++layer) {
    if (!spec_.layers[layer].experts) continue;
    int64_t bytes = 0;
    for (size_t index = 0; index < kNumParts; ++index) {
      const auto at = static_cast<int32_t>(layer);
      const int64_t of_part = part(at, experts(at).first_local, index).bytes;
      bytes += (of_part + kAlignment - 1) / kAlignment * kAlignment;
    }
    largest = std::max(largest, bytes);
  }
  ESP_ASSIGN_OR_RETURN(spare_, cuda::DeviceBuffer::allocate(largest, "an expert that moves"));
  return weights_.memory().share(ranks);
}

Status CudaExpertSlots::copy(int32_t layer, const SlotCopy& copy, const CudaExpertSlots& source,
                             const cuda::Stream& stream) {
  for (size_t index = 0; index < kNumParts; ++index) {
    const Part from = source.part(layer, copy.from, index), to = part(layer, copy.to, index);
    ESP_CHECK(from.bytes == to.bytes, "layer {}: an expert of {} bytes beside one of {}", layer,
              from.bytes, to.bytes);
    ESP_RETURN_IF_ERROR(cuda::copy_between_devices(to.data, from.data, to.bytes, stream));
  }
  return Status();
}

}  // namespace espalier
