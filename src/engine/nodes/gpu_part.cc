#include "engine/nodes/gpu_part.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/executor/cuda/cuda_ranks.h"
#include "engine/nodes/node_part.h"
#include "engine/startup/cuda_settings.h"
#include "models/model_plan.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {

constexpr size_t kIdBytesMax = 1024;

// The leader's, which it sends to all.
Result<std::string> share_id(nodes::NodeGroup& group) {
  if (!group.is_leader()) {
    ESP_ASSIGN_OR_RETURN(
        const std::string_view id,
        group.link(0).receive_one(nodes::MessageType::kPlan, kIdBytesMax, kNodeLoadingWait));
    return std::string(id);
  }
  ESP_ASSIGN_OR_RETURN(std::string id, kernels::cuda::new_nccl_id());
  for (int32_t i = 0; i < group.num_links(); ++i)
    ESP_RETURN_IF_ERROR(group.link(i).send(nodes::MessageType::kPlan, id, kNodeLoadingWait));
  return id;
}

class CudaNodePart final : public GpuNodePart {
 public:
  CudaNodePart(std::unique_ptr<CudaRanks> ranks, const SystemInfo& system)
      : ranks_(std::move(ranks)), system_(system) {}

  const ModelInfo& info() const override { return ranks_->info(); }
  const ModelInfo& rank_info() const override { return ranks_->rank_info(); }
  void stop() override { ranks_->stop(); }
  Executor& executor() override { return *ranks_; }

  Result<SystemInfo> reserve(const EngineConfig& config) override {
    ESP_ASSIGN_OR_RETURN(type_, resolve_kv_type(config, info()));
    ESP_RETURN_IF_ERROR(ranks_->set_kv_type(type_));
    ESP_ASSIGN_OR_RETURN(const EngineConfig sizes, resolve(config, rank_info(), system_));
    ESP_RETURN_IF_ERROR(ranks_->reserve(cuda_executor_config(sizes, system_)));
    ESP_ASSIGN_OR_RETURN(const int64_t budget, ranks_->kv_budget_bytes());
    SystemInfo left = system_;
    left.available_bytes = budget + rank_info().weight_bytes;
    return left;
  }
  Status fill(const EngineConfig& effective) override {
    ESP_RETURN_IF_ERROR(ranks_->allocate_kv(kv_pool_config(effective, rank_info(), type_)));
    ESP_RETURN_IF_ERROR(ranks_->warm_up());
    return ranks_->finish_loading();
  }

 private:
  const std::unique_ptr<CudaRanks> ranks_;
  const SystemInfo system_;
  KvType type_ = KvType::kBFloat16;
};

}  // namespace

Result<std::unique_ptr<GpuNodePart>> GpuNodePart::start(const EngineConfig& config,
                                                        const SystemInfo& system,
                                                        nodes::NodeGroup& group) {
  const ModelLoadOptions options = model_load_options(config);
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(options));
  kernels::cuda::NcclRanks all{.num_ranks = config.compute.tp_size};
  const int32_t ranks_here = config.compute.tp_size / group.num_nodes();
  all.first_rank = group.node() * ranks_here;
  ESP_ASSIGN_OR_RETURN(all.id, share_id(group));
  std::vector<int32_t> devices(static_cast<size_t>(ranks_here));
  std::iota(devices.begin(), devices.end(), cuda::current_device());
  ESP_ASSIGN_OR_RETURN(auto ranks, CudaRanks::begin_load(plan, options, devices, &all));
  return std::make_unique<CudaNodePart>(std::move(ranks), system);
}

}  // namespace espalier
