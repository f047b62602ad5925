// A model that several ranks compute together on the CPU, each on threads of its own: rank r has
// the r-th part of the heads, of the features and, where it divides evenly, of the vocabulary
// (program/partition.h). All ranks run the same batch; keys and values lie in one pool, in which
// each rank reads and writes its own heads. With data-parallel attention
// (DecoderSpec::whole_attention) each rank runs its part of the batch (ForwardBatch::ranks) and has
// an equal part of the pool's pages.
//
// The ranks may be some of those of several processes (tensor/rank_group.h): then each process has
// a pool of its own ranks' heads.
//
// As Model: one forward at a time, from one thread, which works as the first rank. The model may be
// a stage of a pipeline: its first rank hands rows on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "models/expert_balancer.h"
#include "models/program/cpu_model.h"
#include "models/rank_steps.h"
#include "models/stage_model.h"
#include "models/storage_format.h"
#include "models/weight_source.h"
#include "tensor/collective.h"
#include "tensor/rank_group.h"
#include "tensor/rank_threads.h"
#include "tensor/thread_collective.h"
#include "tensor/work_pool.h"

namespace espalier {

// Threads of all ranks together, of which each rank has at least one, and the first of the usable
// processors that they are bound to.
struct RankThreadsConfig {
  int32_t count = 1;
  int32_t first_cpu = 0;
};

// What ranks count of experts' tokens, and when experts change places by it.
struct RankExperts {
  ExpertCounts* counts = nullptr;  // borrowed, outlives the model; null: nothing is counted
  RebalanceConfig rebalance;       // REQUIRES, where experts move: counts, and the spec has slots
};

class TensorParallelModel final : public StageModel, public program::DraftTarget {
 public:
  // kInvalidArgument says what of the model is not divided by so many ranks. Sums over ranks are
  // added in another order than in the whole model: logits differ by float32's rounding.
  static Result<std::unique_ptr<TensorParallelModel>> create(
      const DecoderSpec& spec, const WeightTypes& types, int32_t num_ranks,
      const RankThreadsConfig& threads, const OpenWeights& open, const RankExperts& experts = {});
  // The ranks of `group`, which is borrowed and outlives the model.
  static Result<std::unique_ptr<StageModel>> create_part(const DecoderSpec& spec,
                                                         const WeightTypes& types, RankGroup& group,
                                                         const RankThreadsConfig& threads,
                                                         const OpenWeights& open,
                                                         const RankExperts& experts = {});
  ~TensorParallelModel() override;

  const ModelInfo& info() const override { return info_; }
  Status reserve(int32_t max_tokens, int32_t max_entries) override;
  ForwardOutput forward_stage(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                              const KvView& kv, const StageRows& rows,
                              const InputLogitsSink& input_logits) override;
  std::vector<float> finish_pooled(std::span<const float> row) override;
  Result<std::vector<DecoderWeights>> read_weights(const OpenWeights& open) override;
  void set_weights(std::vector<DecoderWeights> weights) override;
  // For a head that runs whole, on other threads than the ranks', which wait meanwhile.
  program::CpuView kept_states() const override { return ranks_[0].model->kept_states(); }
  void embed(std::span<const TokenId> ids, const program::CpuView& out) override;
  const kernels::PackedMatrix* head_matrix() const override {
    return ranks_[0].model->head_matrix();
  }
  void set_control(SlotId slot, const ControlUse& use) override {
    for (Rank& rank : ranks_) rank.model->set_control(slot, use);
  }

 private:
  struct Rank {
    std::unique_ptr<WorkPool> threads;
    std::unique_ptr<program::CpuModel> model;
    KvView kv;  // of its heads, in the step that runs
  };

  // group: null: the ranks are all there are.
  TensorParallelModel(int32_t num_ranks, const RankThreadsConfig& threads, RankGroup* group);
  Status load(const DecoderSpec& spec, const WeightTypes& types, const OpenWeights& open,
              const RankExperts& experts);
  // Calls fn(rank's index) on all ranks' threads and returns the first failure.
  Status each(const std::function<Status(int32_t)>& fn);
  ForwardOutput forward_own_rows(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                                 const KvView& kv, const InputLogitsSink& input_logits);
  // Lets experts change places where the counts ask for it.
  void move_experts();
  void move_experts(const LayerMove& move);

  std::vector<Rank> ranks_;
  std::unique_ptr<ThreadCollectives> own_group_;  // where no group is borrowed
  RankGroup* group_ = nullptr;
  std::unique_ptr<RankThreads> threads_;      // after what they use
  std::unique_ptr<ExpertBalancer> balancer_;  // null: experts stay
  std::unique_ptr<RankSteps> steps_;          // of ranks with whole attention
  int32_t num_kv_heads_ = 0;                  // of the whole model
  ModelInfo info_;
};

}  // namespace espalier
