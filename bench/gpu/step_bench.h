// Steps of a model on the GPU, as the engine's loop would run them, without the engine: two in
// flight, tokens from slots, keys and values of random numbers on scattered pages.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/executor/cuda/cuda_executor.h"
#include "engine/executor/cuda/cuda_ranks.h"
#include "engine/executor/cuda/cuda_stages.h"
#include "models/adapter.h"
#include "models/model.h"

namespace espalier::bench {

struct StepTimes {
  double step_seconds = 0;    // median time from one step's results to the next one's
  double device_seconds = 0;  // median of what the device measured
  double launch_seconds = 0;  // median that launch() took
  double idle = 0;            // part of the time that the device had no step
  double gap_seconds = 0;     // mean from one step's end on the device to the next one's start
};

// Of steps that verify draft tokens, the host waiting for each before it makes the next.
struct SpeculationTimes {
  double step_seconds = 0;    // median
  double device_seconds = 0;  // median
  double head_seconds = 0;    // median of the draft head's part of it
  double tokens_per_entry = 0;
  double tokens_per_second = 0;  // of all entries
};

class StepBench {
 public:
  struct Limits {
    int32_t max_entries = 512;
    int32_t max_draft_samples = 0;
    int32_t prefill_chunk = 8192;
    int32_t context_length = 131072;
    int32_t page_size = 1;
    bool graphs = true;
    bool allow_pdl = true;
    bool megakernel = true;
    bool cascade = true;
    bool deterministic = false;
    bool kv_e4m3 = false;
    int64_t adapter_bytes = 0;    // of the device, for adapters of a model with enable_lora
    int32_t tp = 1;               // GPUs that compute the model together, from the first on
    int32_t pp = 1;               // stages of a pipeline, of tp GPUs each
    int32_t micro_batch = 0;      // tokens of a stage's micro-batch; 0: chosen
    int32_t distinct_tokens = 0;  // that prompts are made of; 0: any of the vocabulary
    // Each of the tp GPUs has an equal part of the entries, with pages of its own. Of decode().
    bool dp_attention = false;
  };
  static Result<std::unique_ptr<StepBench>> create(const ModelLoadOptions& model,
                                                   const Limits& limits);

  // One token an entry, entry i with contexts[i] tokens before it and adapters[i], where given.
  Result<StepTimes> decode(const std::vector<int32_t>& contexts, int steps,
                           const std::vector<AdapterId>& adapters = {});
  // Entry i has contexts[i] tokens before it and `num_draft_tokens` draft tokens behind it, each of
  // which is right with this probability: a bias on one token makes the answer known. A model with
  // a draft head runs it for as many tokens in each step, in whose place the next step gets those:
  // the weights are drawn, so the head's own tokens would never be right.
  Result<SpeculationTimes> speculate(const std::vector<int32_t>& contexts, int32_t num_draft_tokens,
                                     double acceptance, int steps);
  // One prompt, in chunks; seconds from its first launch to its token, median of `repeats`.
  Result<double> prefill(int32_t tokens, int repeats, AdapterId adapter = kNoAdapter);

  // Matrices that adapters have factors for, by name.
  const std::map<std::string, AdaptedModule, std::less<>>& modules() const { return modules_; }
  Result<AdapterInfo> load_adapter(AdapterId id, const std::filesystem::path& folder) {
    return executor_->load_adapter(id, folder, 0);
  }

  int64_t kv_tokens() const {
    return num_pages_ * limits_.page_size * (limits_.dp_attention ? limits_.tp : 1);
  }
  const ModelInfo& info() const { return info_; }
  MemoryPlan memory() const { return executor_->memory_plan(); }

 private:
  StepBench() = default;
  template <typename AnyExecutor>
  Status allocate_kv(AnyExecutor& executor, KvType type);
  KvType kv_type_of(const ModelPlan& plan) const;  // of ranks and stages
  Status start_one(const ModelLoadOptions& model);
  Status start_ranks(const ModelLoadOptions& model);
  TokenId prompt_token(int32_t position) const;
  Status start_stages(const ModelLoadOptions& model);
  Status allocate_kv(CudaStages& stages, KvType type);
  Status fill_kv(const KvView& kv);
  void take_pages(int64_t first, int64_t count, std::vector<PageId>& out) const;
  void divide_among_ranks(ForwardBatch& batch) const;
  bool begins_part(size_t entry, size_t count) const;  // of a rank's, of so many entries
  Status check(const StepResult& result) const;
  Result<ForwardBatch> speculative_batch(const std::vector<int32_t>& contexts,
                                         int32_t num_draft_tokens, int steps);
  Result<int64_t> accept(const StepResult& result, ForwardBatch& batch) const;
  int32_t pages_for(int32_t tokens) const {
    return (tokens + limits_.page_size - 1) / limits_.page_size;
  }

  Limits limits_;
  ModelInfo info_;  // what one GPU has
  std::map<std::string, AdaptedModule, std::less<>> modules_;
  std::unique_ptr<Executor> executor_;
  int64_t num_pages_ = 0;  // of each rank, where they have pages of their own
  std::vector<PageId> shuffled_;
  uint64_t step_ = 0, table_version_ = 0;
};

}  // namespace espalier::bench
