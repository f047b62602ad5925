// A draft head on the GPU: the interpreter of its two programs, which differ in where a row's
// states come from. The first reads what the target has computed in the same step, from where it
// lies on the device; the second the head's own states of the pass before, which it replaces.
//
// Not thread-safe: one thread enqueues, on the target's stream. Owns weights and scratch on the
// target's device and borrows the target. After reserve() a pass allocates nothing and waits for
// nothing, and can be captured into a graph.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "kernels/linear/cuda.h"
#include "models/cuda/context.h"
#include "models/cuda/decoder.h"
#include "models/cuda/plan.h"
#include "models/cuda/prologue.h"
#include "models/cuda/ropes.h"
#include "models/cuda/weights.h"
#include "models/decoder_spec.h"
#include "models/draft_head.h"
#include "models/model.h"
#include "seams/kv_view.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

class CudaDraftHead {
 public:
  // Loads the folder options.draft_path, or draws weights where the format is kDummy, whose draft
  // tokens then are the first of the vocabulary. spec: as read_draft_spec() makes it, whose states
  // the target keeps. The weights have the target's type; an MTP layer has the target's own head.
  // kUnimplemented names what the GPU does not do.
  static Result<std::unique_ptr<CudaDraftHead>> load(const DecoderSpec& spec,
                                                     const ModelLoadOptions& options,
                                                     const CudaDecoder& target);

  const DraftHeadInfo& info() const { return info_; }
  DraftKvInfo kv_info() const;
  // The target's ids of what it predicts among, on the device: [draft_vocab_size].
  const int32_t* draft_ids() const { return reinterpret_cast<const int32_t*>(ids_.data()); }
  int32_t logits_stride() const { return (first_.spec.vocab_size + 7) / 8 * 8; }
  // Whether attention reads what entries share once, as the target's does.
  Result<bool> shares_attention(int32_t page_size) const;
  kernels::cuda::AttentionShape attention_shape(int32_t page_size) const;

  struct Limits {
    int32_t max_tokens = 0;   // of the target's step
    int32_t max_entries = 0;  // of its attention
    int32_t max_chains = 0;   // entries that tokens are drafted for
    int32_t page_size = 1;
    int32_t deterministic_context = 0;  // as AttentionLimits'
  };
  // After the target's set_kv_type().
  Status reserve(const Limits& limits);
  // As CudaDecoder::tune(). logits: room for max_chains rows.
  Status tune(float* logits, const cuda::Stream& stream);
  int64_t device_bytes() const {
    return weights_.size_bytes() + ids_.size_bytes() + scratch_.size_bytes();
  }

  // Behind the target's forward(), whose entries `step` has. step.ids: the token behind each of its
  // tokens; step.rows: those whose next token but one is drafted, at most max_chains, or none.
  // Writes the keys and values of all tokens, and logits of the rows, [num_rows, logits_stride()].
  // kv: the target's, whose last layer is the head's.
  Status draft(CudaStep step, const KvView& kv, float* logits, const cuda::Stream& stream);
  // Behind a pass of the same rows, one more: step.ids are the tokens that it drafted.
  Status draft_next(CudaStep step, const KvView& kv, float* logits, const cuda::Stream& stream);

 private:
  struct Pass {
    Pass(const DecoderSpec& of, CudaPlan bound, const CudaWeights& weights,
         kernels::cuda::Linear& linear, CudaLaunchPolicy& policy);
    const DecoderSpec spec;
    const CudaPlan plan;
    CudaPrologue prologue;
    CudaContext context;
    AttentionLimits limits;
    int32_t max_outputs = 0;
  };

  CudaDraftHead(const DecoderSpec& spec, CudaPlan first, CudaPlan next, PendingCudaWeights weights,
                std::unique_ptr<kernels::cuda::Linear> linear, const CudaDecoder& target);
  Status upload_ids(const std::vector<TokenId>& ids);
  std::vector<kernels::cuda::LinearArgs> gemms(const Pass& pass, int32_t rows, float* logits) const;
  Status lay_out(cuda::Arena& arena, int64_t linear_bytes);
  Status run(Pass& pass, const CudaStep& step, const KvView& kv, float* logits,
             const cuda::Stream& stream);

  const CudaDecoder& target_;
  const CudaWeights weights_;
  std::unique_ptr<CudaTensorLoader> loader_;
  const std::unique_ptr<kernels::cuda::Linear> linear_;
  CudaRopes ropes_;
  CudaLaunchPolicy policy_;
  Pass first_, next_;
  DraftHeadInfo info_;
  KvView kv_;  // of its layer alone
  cuda::DeviceBuffer ids_, scratch_;
  const void* own_states_ = nullptr;  // of the pass before, in the first pass's memory
};

}  // namespace espalier
