// Runs steps of a model that several GPUs compute together (tensor parallelism): one executor and
// one thread for each, all of which run the same batches. Rank 0's results are the step's. With
// data-parallel attention (DecoderSpec::whole_attention) each runs its part of a batch
// (ForwardBatch::ranks) on pages of its own, and the step's results are those of all.
//
// Rank 0 works on the caller's thread. A call returns when every rank has enqueued its part. What
// fails on one rank stops the kernels of the others that wait for it, and fails all entries of this
// step and of every later one.
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
#include "engine/executor/executor.h"
#include "engine/executor/ranks_page_copier.h"
#include "kernels/collective/cuda.h"
#include "models/cuda/decoder.h"
#include "models/expert_balancer.h"
#include "models/model_plan.h"
#include "tensor/cuda/stream.h"
#include "tensor/rank_threads.h"

namespace espalier {

class CudaRanks final : public Executor, public ReleasableMemory {
 public:
  // Begins to load each rank's part of the model to its device. devices: of each rank, by index;
  // they need not be open. kInvalidArgument for devices that are not there or a model that so many
  // ranks do not divide, kUnavailable for devices that cannot read each other's memory where NCCL
  // is not there. all: where other processes have ranks too; each launches the same batches, and
  // rank 0's process alone has results.
  static Result<std::unique_ptr<CudaRanks>> begin_load(
      const ModelPlan& plan, const ModelLoadOptions& options, const std::vector<int32_t>& devices,
      const kernels::cuda::NcclRanks* all = nullptr);
  ~CudaRanks() override;

  // Of the whole model; and of what the rank with the largest part has of keys, values and weights.
  const ModelInfo& info() const { return info_; }
  const ModelInfo& rank_info() const { return rank_info_; }
  DType type() const { return models_.front()->type(); }  // of activations; before reserve()
  // Of all ranks, which live as long as this. Before reserve().
  std::vector<const CudaDecoder*> decoders() const;
  // Before reserve().
  Status set_kv_type(KvType type);
  // Takes all device memory but the KV pools'. config.collective and stage_link are set here.
  // links: of each rank, where the ranks are a stage of a pipeline; borrowed.
  Status reserve(const CudaExecutorConfig& config, std::span<StageLink* const> links = {});

  // As CudaExecutor's; the smallest of the ranks' budgets, and pools of the same pages on all.
  Result<int64_t> kv_budget_bytes();
  // config: the pages of each rank, or with data-parallel attention of all ranks together.
  Status allocate_kv(const KvPoolConfig& config);
  Status warm_up();
  Status finish_loading();
  MemoryPlan memory_plan() const override { return executors_.front()->memory_plan(); }
  // Ends what waits for ranks that will not come: all steps fail from then on. Thread-safe.
  void stop() { group_->stop(); }
  CudaExecutor& executor(int32_t rank) { return *executors_[static_cast<size_t>(rank)]; }
  // Calls fn(rank) for all ranks at the same time, each with its device the current one, and
  // returns the first failure.
  Status each(std::string_view what, const std::function<Status(int32_t)>& fn);

  void launch(const ForwardBatch& batch) override;
  void provide_masks(uint64_t step, const MaskView& masks) override;
  const StepResult& wait(uint64_t step) override;
  int32_t draft_samples_max() const override { return executors_.front()->draft_samples_max(); }
  Status copy_pages(std::span<const PageId> from, std::span<const PageId> to) override;
  PageCopier* page_copier() override;
  // Of all ranks, or of none.
  Result<int64_t> release_memory() override;
  Status restore_memory() override;

 private:
  explicit CudaRanks(const std::vector<int32_t>& devices);
  // Prepares for experts that change places; nothing where they stay.
  Status reserve_moves(const ModelLoadOptions& options);
  // Lets experts change places in front of a step where the counts ask for it: waits for the steps
  // before.
  Status move_experts();
  void wait_for_all(uint64_t step);
  Status status_of(uint64_t step);
  Status lose(const Status& status);

  const std::vector<int32_t> devices_;
  std::unique_ptr<kernels::cuda::DeviceGroup> group_;
  std::vector<std::unique_ptr<CudaDecoder>> models_;  // until reserve()
  // Of experts that change places; null: they stay.
  struct Moves {
    Moves(const RebalanceConfig& config, ExpertCounts& counts) : balancer(config, counts) {}
    ExpertBalancer balancer;
    std::vector<CudaExpertSlots*> slots;  // of each rank
    std::vector<cuda::Stream> streams;
  };
  std::unique_ptr<Moves> moves_;
  std::vector<std::unique_ptr<CudaExecutor>> executors_;
  std::unique_ptr<RanksPageCopier> page_copier_;  // null until it is wanted
  ModelInfo info_, rank_info_;
  std::function<void(const Status&)> on_device_lost_;
  Status lost_;
  std::vector<const ForwardBatch*> in_flight_;  // by step
  StepResult failed_;
  bool own_rows_ = false;  // data-parallel attention
  RankStep rank_step_;     // of the step that is launched
  StepResult joined_;
  RankThreads threads_;  // last, for they use all of the above
};

}  // namespace espalier
