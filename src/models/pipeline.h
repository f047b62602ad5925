// A model whose layers are divided into stages of a pipeline on the CPU (program/stages.h), each on
// threads of its own, and each divided among ranks where tensor parallelism is requested too. A
// step is cut into micro-batches (micro_batches.h) that follow each other through the stages. Keys
// and values lie in one pool, of which a stage reads and writes its own layers.
//
// Logits are the bits of the whole model: rows do not depend on their batch.
//
// As Model: one forward at a time, from one thread, which works as the first stage.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "models/micro_batches.h"
#include "models/model.h"
#include "models/stage_model.h"
#include "models/storage_format.h"
#include "models/tensor_parallel.h"
#include "tensor/buffer.h"
#include "tensor/rank_threads.h"
#include "tensor/work_pool.h"

namespace espalier {

struct PipelineConfig {
  int32_t num_stages = 1;
  int32_t num_ranks = 1;  // of each stage
  // Tokens of a micro-batch, as far as a step has so many; 0: chosen.
  int32_t micro_batch_tokens = 0;
  RankThreadsConfig threads;  // of all stages together
};

class PipelineModel final : public Model {
 public:
  // As TensorParallelModel's. kInvalidArgument also where the model has fewer layers than stages.
  static Result<std::unique_ptr<Model>> create(const DecoderSpec& spec, const WeightTypes& types,
                                               const PipelineConfig& config,
                                               const OpenWeights& open);
  ~PipelineModel() override;

  const ModelInfo& info() const override { return info_; }
  Status reserve(int32_t max_tokens, int32_t max_entries) override;
  ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                        const KvView& kv, const InputLogitsSink& input_logits) override;
  std::vector<float> finish_pooled(std::span<const float> row) override;
  Status replace_weights(const OpenWeights& open) override;
  void set_control(SlotId slot, const ControlUse& use) override {
    for (Stage& stage : stages_) stage.model->set_control(slot, use);
  }

 private:
  struct Stage {
    std::unique_ptr<WorkPool> pool;  // of a stage of one rank
    std::unique_ptr<StageModel> model;
    DecoderSpec spec;
    KvView kv;              // of its layers, in the step that runs
    espalier::Buffer rows;  // [max_tokens, hidden]: what it hands to the next stage
    std::atomic<uint32_t> handed_on{0}, parked{0};  // micro-batches of the step; threads that wait
  };

  PipelineModel(const DecoderSpec& spec, const PipelineConfig& config);
  Status load(const WeightTypes& types, const OpenWeights& open);
  Status load_stage(int32_t index, const WeightTypes& types, const OpenWeights& open);
  OpenWeights open_for(int32_t index, const OpenWeights& open) const;
  // Calls fn(stage's index) on all stages' threads and returns the first failure.
  Status each(const std::function<Status(int32_t)>& fn);
  void take_layers(const KvView& kv);
  void run_stage(int32_t index, std::span<const TokenId> token_ids, const InputLogitsSink& sink);
  // Of the last stage.
  void keep_output(const ForwardOutput& output);

  const PipelineConfig config_;
  const DecoderSpec spec_;  // of the whole model
  std::vector<Stage> stages_;
  MicroBatches micro_batches_;
  std::unique_ptr<RankThreads> threads_;
  ModelInfo info_;
  std::vector<float> sample_logits_, pooled_rows_;  // of the step, micro-batch after micro-batch
};

}  // namespace espalier
