// For tests: a model that several GPUs compute together as a Model, with one CudaTestModel for each
// on a thread of its own. The logits are rank 0's.
#pragma once

#include <memory>
#include <vector>

#include "kernels/collective/cuda.h"
#include "models/cuda/decoder.h"
#include "models/cuda/test_model.h"
#include "models/model.h"
#include "models/model_plan.h"
#include "tensor/rank_threads.h"

namespace espalier {

// info() has what one rank has of keys and values, and so have the pages that forward() is given.
class CudaRankModels final : public Model {
 public:
  // On the devices 0 to num_ranks - 1, which exist. message_bytes: see DeviceGroup. Loading: fails
  // as CudaDecoder does.
  static Result<std::unique_ptr<CudaRankModels>> load(const ModelPlan& plan,
                                                      const ModelLoadOptions& options,
                                                      int32_t num_ranks);

  const ModelInfo& info() const override { return models_.front()->info(); }
  kernels::cuda::DeviceGroup& group() { return *group_; }
  Status reserve(int32_t max_tokens, int32_t max_entries) override;
  ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                        const KvView& kv, const InputLogitsSink& input_logits) override;

 private:
  explicit CudaRankModels(int32_t num_ranks) : threads_(num_ranks) {}
  template <typename Fn>
  void each(const Fn& fn);

  std::unique_ptr<kernels::cuda::DeviceGroup> group_;
  std::vector<std::unique_ptr<CudaTestModel>> models_;
  RankThreads threads_;
};

}  // namespace espalier
