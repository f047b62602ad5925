// Runs steps of a model whose layers are divided among GPUs (pipeline parallelism): each stage has
// some of the layers, with their keys and values, on GPUs of its own, which divide these among
// themselves where there are several (CudaRanks).
//
// A step is cut into micro-batches (StagedStep), and the host enqueues each of them on all stages
// and waits for nothing: while a stage computes one, the stage before it computes the next, also
// across the two steps in flight. Rows and sampled tokens go from device to device (StageLink).
// What fails on one stage fails all entries of this step and of every later one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "cache/kv_pool.h"
#include "engine/executor/cuda/cuda_executor.h"
#include "engine/executor/cuda/cuda_ranks.h"
#include "engine/executor/cuda/stage_link.h"
#include "engine/executor/executor.h"
#include "engine/executor/ranks_page_copier.h"
#include "engine/executor/staged_step.h"
#include "models/cuda/decoder.h"
#include "models/model_plan.h"

namespace espalier {

struct CudaStagesConfig {
  std::vector<std::vector<int32_t>> devices;  // of each stage its ranks', by index
  // Tokens of a micro-batch, as far as a step has so many; 0: chosen.
  int32_t micro_batch_tokens = 0;
};

class CudaStages final : public Executor, public ReleasableMemory {
 public:
  // Begins to load each stage's layers to its devices. As CudaRanks's; kInvalidArgument also where
  // the model has fewer layers than stages.
  static Result<std::unique_ptr<CudaStages>> begin_load(const ModelPlan& plan,
                                                        const ModelLoadOptions& options,
                                                        const CudaStagesConfig& config);

  // Of the whole model; its weight_bytes are those of all devices.
  const ModelInfo& info() const { return info_; }
  int32_t num_stages() const { return static_cast<int32_t>(stages_.size()); }
  // Of a stage's layers, and of what one of its ranks has of keys, values and weights.
  const ModelInfo& stage_info(int32_t stage) const { return at(stage).rank_info(); }
  CudaRanks& stage(int32_t stage) { return *stages_[static_cast<size_t>(stage)]; }
  // Of all ranks of all stages. Before reserve().
  std::vector<const CudaDecoder*> decoders() const;
  // Before reserve().
  Status set_kv_type(KvType type);
  // Takes all device memory but the KV pools'.
  Status reserve(const CudaExecutorConfig& config);

  // REQUIRED once, before the first launch. pools: by stage, with the same pages in all.
  Status allocate_kv(std::span<const KvPoolConfig> pools);
  // As CudaExecutor's.
  Status warm_up();
  Status finish_loading();
  MemoryPlan memory_plan() const override;  // of the stage whose device has least left for pages

  void launch(const ForwardBatch& batch) override;
  void provide_masks(uint64_t step, const MaskView& masks) override;
  const StepResult& wait(uint64_t step) override;
  int32_t draft_samples_max() const override { return stages_.back()->draft_samples_max(); }
  Status copy_pages(std::span<const PageId> from, std::span<const PageId> to) override;
  PageCopier* page_copier() override;
  // Of all stages, or of none.
  Result<int64_t> release_memory() override;
  Status restore_memory() override;

 private:
  CudaStages(const ModelPlan& plan, const CudaStagesConfig& config);
  Status connect(int64_t row_bytes);
  const CudaRanks& at(int32_t stage) const { return *stages_[static_cast<size_t>(stage)]; }
  StagedStep& step_of(uint64_t step) { return steps_[step % steps_.size()]; }
  void lose(const Status& status);

  const CudaStagesConfig config_;
  // [ranks of a stage][stages]; in front of the executors, which use them.
  std::vector<std::vector<std::unique_ptr<StageLink>>> links_;
  std::vector<std::unique_ptr<CudaRanks>> stages_;
  CudaExecutorConfig limits_;  // of reserve()
  std::vector<KvPoolConfig> pools_;
  std::unique_ptr<RanksPageCopier> page_copier_;  // null until it is wanted
  ModelInfo info_;
  std::function<void(const Status&)> on_device_lost_;
  Status lost_;
  uint64_t num_micro_batches_ = 0;  // so far: they are numbered from 1
  // Results stay valid until the next wait while two further steps run.
  std::vector<StagedStep> steps_;
};

}  // namespace espalier
