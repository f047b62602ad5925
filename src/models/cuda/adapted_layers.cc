#include "models/cuda/adapted_layers.h"

#include <algorithm>
#include <utility>

#include "models/program/gpu_passes.h"
#include "models/weight_layout.h"

namespace espalier {
namespace {

namespace kc = kernels::cuda;

constexpr size_t kNumKinds = kNumWeightKinds;

size_t index_of(WeightId id) {
  return static_cast<size_t>(id.index) * kNumKinds + static_cast<size_t>(id.kind);
}

}  // namespace

Status AdaptedMatrices::add(const AdaptedModule& module) {
  const size_t index = index_of(module.weight);
  if (index >= by_weight_.size()) by_weight_.resize(index + 1);
  kc::LoraMatrix& matrix = by_weight_[index];
  if (matrix.part_count == 0) matrix.index = count_++;
  matrix.in_features = static_cast<int32_t>(module.in_features);
  if (matrix.part_count == kc::kLoraPartsMax || module.column % 8 != 0 ||
      module.out_features % 8 != 0) {
    return error(
        StatusCode::kUnimplemented,
        "adapters of {} have no kernel on the GPU: it adds to at most {} parts of a matrix, "
        "of multiples of 8 outputs; use --device cpu",
        weight_name(module.weight.kind), kc::kLoraPartsMax);
  }
  matrix.parts[matrix.part_count++] = {static_cast<int32_t>(module.column),
                                       static_cast<int32_t>(module.out_features)};
  return Status();
}

Result<AdaptedMatrices> AdaptedMatrices::create(const DecoderSpec& spec,
                                                const program::Program& program, int32_t rank_max) {
  AdaptedMatrices out(AdaptedModules(weight_layout(spec), program));
  out.rank_max_ = kc::padded_lora_rank(rank_max > 0 ? rank_max : kDefaultRankMax);
  for (const auto& [name, module] : out.modules_.by_name()) ESP_RETURN_IF_ERROR(out.add(module));
  return out;
}

const kc::LoraMatrix* AdaptedMatrices::find(WeightId id) const {
  const size_t index = index_of(id);
  const bool adapted = index < by_weight_.size() && by_weight_[index].part_count > 0;
  return adapted ? &by_weight_[index] : nullptr;
}

int32_t AdaptedMatrices::part_index(const AdaptedModule& module) const {
  const kc::LoraMatrix& matrix = by_weight_[index_of(module.weight)];
  int32_t part = 0;
  while (matrix.parts[part].column != module.column) ++part;
  return matrix.index * kc::kLoraPartsMax + part;
}

int64_t AdaptedMatrices::workspace_bytes(int32_t max_rows) const {
  int64_t bytes = 0;
  for (const kc::LoraMatrix& matrix : by_weight_) {
    if (matrix.part_count > 0)
      bytes = std::max(bytes, kc::lora_workspace_bytes(matrix, max_rows, rank_max_));
  }
  return bytes;
}

CudaAdaptedLayers::CudaAdaptedLayers(CudaPlan plan, AdaptedMatrices matrices,
                                     const DecoderSpec& spec, const CudaWeights& weights,
                                     kc::Linear& linear, CudaLaunchPolicy& policy)
    : plan_(std::move(plan)),
      matrices_(std::move(matrices)),
      context_(spec, weights, linear, policy, plan_) {}

Result<std::unique_ptr<CudaAdaptedLayers>> CudaAdaptedLayers::create(
    const program::Program& lowered, const DecoderSpec& spec, int32_t rank_max,
    const CudaWeights& weights, kc::Linear& linear, CudaLaunchPolicy& policy) {
  ESP_ASSIGN_OR_RETURN(CudaPlan plan, CudaPlan::create(program::gpu_passes(lowered, true)));
  ESP_ASSIGN_OR_RETURN(AdaptedMatrices matrices,
                       AdaptedMatrices::create(spec, plan.program(), rank_max));
  return std::unique_ptr<CudaAdaptedLayers>(
      new CudaAdaptedLayers(std::move(plan), std::move(matrices), spec, weights, linear, policy));
}

CudaScratch CudaAdaptedLayers::bind(cuda::Arena& arena, const DecoderLimits& limits,
                                    const CudaScratch& scratch) {
  const int64_t bytes = matrices_.workspace_bytes(limits.max_tokens);
  CudaScratch own = scratch;
  own.adapted = &matrices_;
  own.lora_workspace = {arena.take<std::byte>(bytes), static_cast<size_t>(bytes)};
  context_.bind(own);
  return own;
}

}  // namespace espalier
