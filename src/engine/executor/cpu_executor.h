// Runs steps on the host's processors: a model's forward, then the sampler over the entries.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "cache/kv_pool.h"
#include "engine/executor/executor.h"
#include "engine/executor/step_thread.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/token_counts.h"
#include "models/model.h"
#include "tensor/work_pool.h"

namespace espalier {

// What it runs with; owned. The model was loaded with this pool.
struct CpuExecutorParts {
  std::unique_ptr<WorkPool> pool;
  std::unique_ptr<Model> model;
  KvPool kv;
};

struct CpuExecutorConfig {
  int32_t max_slots = 0;   // entries of a step, and slots
  int32_t max_tokens = 0;  // of a step
};

class CpuExecutor final : public Executor {
 public:
  // Sizes all scratch. Fails where the model's reserve does.
  static Result<std::unique_ptr<CpuExecutor>> create(CpuExecutorParts parts,
                                                     const CpuExecutorConfig& config);

  void launch(const ForwardBatch& batch) override { thread_.launch(batch); }
  void provide_masks(uint64_t step, const MaskView& masks) override {
    thread_.provide_masks(step, masks);
  }
  const StepResult& wait(uint64_t step) override { return thread_.wait(step); }
  Status copy_pages(std::span<const PageId> from, std::span<const PageId> to) override;
  int32_t draft_samples_max() const override { return kDraftSamplesMax; }

 private:
  static constexpr int32_t kDraftSamplesMax = 16;  // of a step

  // What a request leaves between its steps.
  struct Slot {
    std::shared_ptr<const SamplingSpec> sampling;
    TokenId last_token = 0;
    TokenCounts counts;  // where the sampling has penalties
    // Of a text that becomes a vector: the sum of its rows so far, added one after the other in
    // double, so that it does not depend on how the text was cut.
    std::vector<double> pooled_sum;
    int64_t num_pooled = 0;
  };

  CpuExecutor(CpuExecutorParts parts, const CpuExecutorConfig& config);
  void run(const ForwardBatch& batch, StepResult& result);
  void init_slots(const ForwardBatch& batch);
  void resolve_tokens(const ForwardBatch& batch);
  void take_input_logits(const ForwardBatch& batch, StepResult& result, int32_t entry,
                         int32_t target, std::span<const float> logits);
  void pool(const ForwardBatch& batch, std::span<const float> rows, StepResult& result);
  void pool_rows(Slot& slot, const BatchEntry& entry, std::span<const float> rows,
                 EntryResult& result);
  void list_samples(const ForwardBatch& batch, const MaskView& masks);
  void sample_entries(const ForwardBatch& batch, const ForwardOutput& output, StepResult& result);
  void sample_entry(Sampler& sampler, const BatchEntry& entry, const SampleInput& input,
                    EntryResult& result);
  static void sample_draft(Sampler& sampler, const SampleInput& input, TokenId& token);

  // One sample of an entry: its index in the batch, its mask, and behind how many draft tokens.
  struct SampleJob {
    int32_t entry = 0;
    std::span<const uint32_t> mask;
    int32_t num_draft_tokens = 0;
    int32_t draft_sample = 0;  // of the entry, where there are draft tokens
  };

  CpuExecutorParts parts_;
  std::vector<Slot> slots_;
  std::vector<Sampler> samplers_;   // one for each thread of the pool
  std::vector<TokenId> token_ids_;  // of the step, resolved
  std::vector<SampleJob> jobs_;
  StepThread thread_;  // last: it uses all of the above
};

}  // namespace espalier
