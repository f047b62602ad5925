// Runs steps of a model whose layers several GPUs have as stages of a pipeline: one executor for
// each, all of which run the same batches on streams of their own. Each stage's rows go to the next
// one by copies between the devices (stage_link.h), so a stage computes a chunk of a prompt while
// the next one has the chunk before it. The last stage's results are the step's.
//
// As Executor. What fails on one stage fails all entries of this step and of every later one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cache/kv_pool.h"
#include "engine/executor/cuda/cuda_executor.h"
#include "engine/executor/cuda/stage_link.h"
#include "engine/executor/executor.h"
#include "engine/executor/ranks_page_copier.h"
#include "models/cuda/decoder.h"
#include "models/model_plan.h"
#include "tensor/rank_threads.h"

namespace espalier {

class CudaStages final : public Executor {
 public:
  // Begins to load each stage's layers to its device. devices: of each stage, by index; they need
  // not be open. kInvalidArgument for devices that are not there or a model of fewer layers.
  static Result<std::unique_ptr<CudaStages>> begin_load(const ModelPlan& plan,
                                                        const ModelLoadOptions& options,
                                                        const std::vector<int32_t>& devices);
  ~CudaStages() override;

  int32_t num_stages() const { return static_cast<int32_t>(devices_.size()); }
  const ModelInfo& info() const { return info_; }  // of the whole model
  // Of the layers of one stage.
  const ModelInfo& stage_info(int32_t stage) const {
    return stage_infos_[static_cast<size_t>(stage)];
  }
  // Of all stages, which live as long as this. Before reserve().
  std::vector<const CudaDecoder*> decoders() const;
  // Before reserve().
  Status set_kv_type(KvType type);
  // Takes all device memory but the KV pools'. config.stage is set here.
  Status reserve(const CudaExecutorConfig& config);

  // As CudaExecutor's, of one stage. The pools of all have the same pages of their own layers.
  Result<int64_t> kv_budget_bytes(int32_t stage);
  Status allocate_kv(const std::function<KvPoolConfig(const ModelInfo&)>& config_of);
  Status warm_up();
  Status finish_loading();
  MemoryPlan memory_plan() const override { return executors_.front()->memory_plan(); }

  void launch(const ForwardBatch& batch) override;
  void provide_masks(uint64_t step, const MaskView& masks) override;
  const StepResult& wait(uint64_t step) override;
  int32_t draft_samples_max() const override { return executors_.back()->draft_samples_max(); }
  Status copy_pages(std::span<const PageId> from, std::span<const PageId> to) override;
  PageCopier* page_copier() override;

 private:
  explicit CudaStages(const std::vector<int32_t>& devices);
  // Calls fn(stage) for all stages at the same time, each with its device the current one, and
  // returns the first failure.
  Status each(std::string_view what, const std::function<Status(int32_t)>& fn);
  Status allow_access(int32_t stage) const;
  Status lose(const Status& status);
  const StepResult& failed(const ForwardBatch& batch);

  const std::vector<int32_t> devices_;
  std::vector<std::unique_ptr<CudaDecoder>> models_;  // until reserve()
  std::vector<std::unique_ptr<StageLink>> links_;
  std::vector<std::unique_ptr<CudaExecutor>> executors_;
  std::unique_ptr<RanksPageCopier> page_copier_;  // null until it is wanted
  int64_t row_bytes_ = 0;                         // of hidden states
  ModelInfo info_;
  std::vector<ModelInfo> stage_infos_;
  std::function<void(const Status&)> on_device_lost_;
  Status lost_;
  const ForwardBatch* in_flight_[Executor::kMaxInFlight] = {};  // by step
  StepResult failed_;
  RankThreads threads_;  // last, for they use all of the above
};

}  // namespace espalier
