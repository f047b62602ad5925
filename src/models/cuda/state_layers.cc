#include "models/cuda/state_layers.h"

#include <utility>

#include "base/check.h"
#include "models/program/gpu_passes.h"

namespace espalier {

CudaStateLayers::CudaStateLayers(CudaPlan plan, const DecoderSpec& spec, const CudaWeights& weights,
                                 kernels::cuda::Linear& linear, CudaLaunchPolicy& policy)
    : plan_(std::move(plan)),
      context_(spec, weights, linear, policy, plan_),
      hidden_(program::find_buffer(plan_.program(), "hidden")) {
  for (size_t i = 0; i < plan_.output_begin(); ++i) {
    const int32_t layer = plan_.ops()[i].op.layer;
    if (layer == static_cast<int32_t>(first_ops_.size())) first_ops_.push_back(i);
    if (layer >= 0) layers_end_ = i + 1;
  }
  ESP_CHECK(first_ops_.size() == spec.layers.size() && hidden_.columns == spec.hidden_size);
}

Result<std::unique_ptr<CudaStateLayers>> CudaStateLayers::create(
    const program::Program& lowered, bool adapters, const DecoderSpec& spec,
    const CudaWeights& weights, kernels::cuda::Linear& linear, CudaLaunchPolicy& policy) {
  ESP_ASSIGN_OR_RETURN(CudaPlan plan,
                       CudaPlan::create(program::gpu_passes(lowered, adapters, true)));
  return std::unique_ptr<CudaStateLayers>(
      new CudaStateLayers(std::move(plan), spec, weights, linear, policy));
}

Status CudaStateLayers::run(const CudaStep& step) {
  ESP_CHECK(step.returns_states && step.on_states != nullptr);
  ESP_CHECK(context_.stride(hidden_) == hidden_.columns);
  size_t done = 0;
  for (size_t layer = 0; layer <= first_ops_.size(); ++layer) {
    const size_t next = layer == first_ops_.size() ? layers_end_ : first_ops_[layer];
    ESP_RETURN_IF_ERROR(context_.run(done, next));
    done = next;
    ESP_RETURN_IF_ERROR((*step.on_states)(static_cast<int32_t>(layer), context_.read(hidden_)));
  }
  return context_.run(done, plan_.output_begin());
}

}  // namespace espalier
