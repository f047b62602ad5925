// Steps of a model on the GPU, as the engine's loop would run them, without the engine: two in
// flight, tokens from slots, keys and values of random numbers on scattered pages.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/executor/cuda/cuda_executor.h"
#include "engine/executor/cuda/cuda_ranks.h"
#include "models/model.h"

namespace espalier::bench {

struct StepTimes {
  double step_seconds = 0;    // median time from one step's results to the next one's
  double device_seconds = 0;  // median of what the device measured
  double launch_seconds = 0;  // median that launch() took
  double idle = 0;            // part of the time that the device had no step
  double gap_seconds = 0;     // mean from one step's end on the device to the next one's start
};

class StepBench {
 public:
  struct Limits {
    int32_t max_entries = 512;
    int32_t prefill_chunk = 8192;
    int32_t context_length = 131072;
    int32_t page_size = 1;
    bool graphs = true;
    bool allow_pdl = true;
    bool megakernel = true;
    bool deterministic = false;
    bool kv_e4m3 = false;
    int32_t tp = 1;  // GPUs that compute the model together, from the first on
  };
  static Result<std::unique_ptr<StepBench>> create(const ModelLoadOptions& model,
                                                   const Limits& limits);

  // One token an entry, entry i with contexts[i] tokens before it.
  Result<StepTimes> decode(const std::vector<int32_t>& contexts, int steps);
  // One prompt, in chunks; seconds from its first launch to its token, median of `repeats`.
  Result<double> prefill(int32_t tokens, int repeats);

  int64_t kv_tokens() const { return num_pages_ * limits_.page_size; }
  const ModelInfo& info() const { return info_; }
  MemoryPlan memory() const { return executor_->memory_plan(); }

 private:
  StepBench() = default;
  template <typename AnyExecutor>
  Status allocate_kv(AnyExecutor& executor, KvType type);
  Status start_one(const ModelLoadOptions& model);
  Status start_ranks(const ModelLoadOptions& model);
  Status fill_kv(const KvView& kv);
  void take_pages(int64_t first, int64_t count, std::vector<PageId>& out) const;
  Status check(const StepResult& result) const;

  Limits limits_;
  ModelInfo info_;  // what one GPU has
  std::unique_ptr<Executor> executor_;
  int64_t num_pages_ = 0;
  std::vector<PageId> shuffled_;
  uint64_t step_ = 0, table_version_ = 0;
};

}  // namespace espalier::bench
