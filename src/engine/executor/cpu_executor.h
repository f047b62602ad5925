// Runs steps on the host's processors: a model's forward pass, then the sampler over the entries.
// Thread safety as Executor's; the step itself runs on a thread of this class.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "cache/kv_pool.h"
#include "engine/executor/draft_chains.h"
#include "engine/executor/executor.h"
#include "engine/executor/slot_lengths.h"
#include "engine/executor/step_thread.h"
#include "engine/sampling/sampler.h"
#include "engine/sampling/token_counts.h"
#include "models/model.h"
#include "models/releasable_memory.h"
#include "tensor/work_pool.h"

namespace espalier {

// What the executor owns and runs with. REQUIRES that the model was loaded with this pool.
struct CpuExecutorParts {
  std::unique_ptr<WorkPool> pool;
  std::unique_ptr<Model> model;
  KvPool kv;
};

struct CpuExecutorConfig {
  int32_t max_slots = 0;   // slots, and entries of a step
  int32_t max_tokens = 0;  // query tokens of a step
  // With a draft head: the first page behind the cache's, of DraftChains::num_pages().
  PageId first_chain_page = 0;
};

class CpuExecutor final : public Executor, public ReleasableMemory {
 public:
  // Sizes all scratch. kUnimplemented for a layer of `parts.kv` that no kernel takes
  // (kernels/kv_layer.h); else the error of Model::reserve.
  static Result<std::unique_ptr<CpuExecutor>> create(CpuExecutorParts parts,
                                                     const CpuExecutorConfig& config);

  void launch(const ForwardBatch& batch) override { thread_.launch(batch); }
  void provide_masks(uint64_t step, const MaskView& masks) override {
    thread_.provide_masks(step, masks);
  }
  const StepResult& wait(uint64_t step) override { return thread_.wait(step); }
  Status copy_pages(std::span<const PageId> from, std::span<const PageId> to) override;
  PageCopier* page_copier() override { return page_copier_.get(); }
  Result<AdapterInfo> load_adapter(AdapterId id, const std::filesystem::path& folder,
                                   int32_t rank_max) override {
    return parts_.model->load_adapter(id, folder, rank_max);
  }
  void unload_adapter(AdapterId id) override { parts_.model->unload_adapter(id); }
  int32_t draft_samples_max() const override { return kDraftSamplesMax; }
  bool penalises_draft_tokens() const override { return true; }
  int32_t chain_max() const override { return chains_ ? DraftChains::kChainMax : 0; }
  bool takes_lengths_from_slots() const override { return true; }
  // Of keys and values. The system backs their pages again when steps write them.
  Result<int64_t> release_memory() override;
  Status restore_memory() override { return Status(); }

 private:
  static constexpr int32_t kDraftSamplesMax = 16;  // in a step

  // What stays of a sequence between its steps.
  struct Slot {
    std::shared_ptr<const SamplingSpec> sampling;
    TokenId last_token = 0;
    TokenCounts counts;    // empty unless the sampling has penalties
    TokenHistory history;  // empty unless the sampling reads_order()
    // Of a text to embed: the sum of its hidden states so far, added one after the other in double,
    // so that the result does not depend on how the text was cut into chunks.
    std::vector<double> pooled_sum;
    int64_t num_pooled = 0;
  };

  CpuExecutor(CpuExecutorParts parts, const CpuExecutorConfig& config);
  void run(const ForwardBatch& launched, StepResult& result);
  void init_slots(const ForwardBatch& batch);
  void resolve_tokens(const ForwardBatch& batch);
  void take_input_logits(const ForwardBatch& batch, StepResult& result, int32_t entry,
                         int32_t target, std::span<const float> logits);
  void pool(const ForwardBatch& batch, std::span<const float> rows, StepResult& result);
  static void take_hidden_states(const ForwardBatch& batch, std::span<const float> states,
                                 int32_t hidden_size, StepResult& result);
  void pool_rows(Slot& slot, const BatchEntry& entry, std::span<const float> rows,
                 EntryResult& result);
  void list_samples(const ForwardBatch& batch, const MaskView& masks);
  void sample_entries(const ForwardBatch& batch, const ForwardOutput& output, StepResult& result);
  void sample_entry(Sampler& sampler, const BatchEntry& entry, const SampleInput& input,
                    EntryResult& result);
  const TokenCounts* counts_before(const ForwardBatch& batch, const BatchEntry& entry,
                                   int32_t num_before, int thread);
  void note_outputs(const ForwardBatch& batch, const BatchEntry& entry, const EntryResult& result);
  static void sample_draft(Sampler& sampler, const SampleInput& input, TokenId& token,
                           TokenLogprobs& logprobs);

  // One token to sample.
  struct SampleJob {
    int32_t entry = 0;  // its index in the batch
    std::span<const uint32_t> mask;
    int32_t num_before = 0;    // draft tokens before the sample; 0: the entry's own token
    int32_t draft_sample = 0;  // index among the entry's draft samples, where num_before > 0
  };

  CpuExecutorParts parts_;
  const std::unique_ptr<PageCopier> page_copier_;  // null for layers that cannot be copied
  std::vector<Slot> slots_;
  SlotLengths lengths_;
  std::optional<DraftChains> chains_;  // of a model with a draft head
  std::vector<Sampler> samplers_;      // one for each thread of the pool
  std::vector<TokenCounts> counts_;    // [thread]: of a slot, with draft tokens
  std::vector<TokenId> token_ids_;     // [tokens] of the step, without kTokenFromSlot
  std::vector<SampleJob> jobs_;
  StepThread thread_;  // last, for it uses all of the above
};

}  // namespace espalier
