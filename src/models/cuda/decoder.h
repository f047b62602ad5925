// A decoder on the GPU: an interpreter of its program. Everything is enqueued on one stream and
// nothing waits; what depends on the step is read from device memory when it runs, so a step can be
// captured into a graph and replayed for other steps of the same bounds.
//
// Not thread-safe: one thread enqueues, on one stream. Owns weights and scratch, on one device; the
// page memory is the caller's. After reserve() a step allocates nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "kernels/attention/cuda.h"
#include "kernels/linear/cuda.h"
#include "models/cuda/adapted_layers.h"
#include "models/cuda/context.h"
#include "models/cuda/expert_slots.h"
#include "models/cuda/expert_tally.h"
#include "models/cuda/one_token.h"
#include "models/cuda/plan.h"
#include "models/cuda/prologue.h"
#include "models/cuda/ropes.h"
#include "models/cuda/state_layers.h"
#include "models/cuda/step.h"
#include "models/cuda/weights.h"
#include "models/decoder_spec.h"
#include "models/model.h"
#include "models/model_plan.h"
#include "models/program/program.h"
#include "seams/kv_view.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

// A part of a model, where several GPUs compute it together: each has a decoder of its own.
struct CudaRank {
  kernels::cuda::DeviceCollective* collective = nullptr;  // borrowed; null: the whole model

  Ranks ranks() const { return collective == nullptr ? Ranks{} : collective->ranks(); }
};

class CudaDecoder {
 public:
  // A rewrite of the lowered program, before the GPU's own passes: tests inject faults.
  using Rewrite = std::function<program::Program(program::Program)>;

  // Loads the weights to the thread's current device, which is open and then belongs to the
  // decoder: later calls come from threads whose current device it is (cuda::use_device(device())).
  // kUnimplemented names what the GPU does not do.
  static Result<std::unique_ptr<CudaDecoder>> load(const ModelLoadOptions& options);
  // The same of a plan that was made before.
  static Result<std::unique_ptr<CudaDecoder>> load(ModelPlan plan, const ModelLoadOptions& options,
                                                   const Rewrite& rewrite = {});
  // Begins to load: until finish_loading() has returned the weights are zeros or what has come of
  // them so far, good enough to warm up with. rank: which part of the model; all ranks then make
  // the same calls of reserve(), forward() and logits(), each from a thread of its own, and the
  // group connects them behind each reserve(). kInvalidArgument says what of the model so many
  // ranks do not divide.
  static Result<std::unique_ptr<CudaDecoder>> begin_load(ModelPlan plan,
                                                         const ModelLoadOptions& options,
                                                         const Rewrite& rewrite = {},
                                                         const CudaRank& rank = {});
  Status finish_loading();
  // For what reads weights, and replaces them where they are: see CudaWeightUpdate.
  PlacedWeights placed_weights() const;

  // Of the whole model, but for what this rank has of keys, values and weights.
  const ModelInfo& info() const { return info_; }
  DType type() const { return weights_.type(); }  // of activations
  int32_t device() const { return device_; }
  // Of the pages: the weights' type, or what set_kv_type() has chosen.
  KvType kv_type() const { return limits_.kv_type; }
  // Before reserve(). kUnimplemented says which types this model's attention takes.
  Status set_kv_type(KvType type);
  // The shape of the first layers whose attention can read what entries share once; none: no
  // layer's.
  Result<std::optional<kernels::cuda::AttentionShape>> shared_attention(int32_t page_size) const;
  // Elements between rows of logits: vocab_size rounded up; what lies beyond vocab_size is
  // undefined.
  int32_t logits_stride() const;

  // Sizes all scratch, for steps of at most this, on pages of page_size tokens.
  Status reserve(int32_t max_tokens, int32_t max_entries, int32_t page_size);
  // Chooses how GEMMs are computed at the numbers of rows that steps have, by measuring what this
  // GPU's tuning cache does not have. logits: room for max_entries rows. After reserve().
  Status tune(float* logits, const cuda::Stream& stream);
  int64_t scratch_bytes() const { return scratch_.size_bytes(); }

  // Runs the layers of a step of one token in one kernel where the model's shape allows it (on by
  // default); off: kernel by kernel, as steps of more tokens.
  void set_megakernel(bool on) {
    if (one_token_) one_token_->set_on(on);
  }
  bool has_megakernel() const { return one_token_ && one_token_->reserved(); }  // after reserve()
  // Steps that took it so far.
  int64_t num_megakernel_steps() const { return one_token_ ? one_token_->num_steps() : 0; }
  // Cached tokens from which on a step of one token runs kernel by kernel all the same.
  int32_t megakernel_context_max() const { return one_token_ ? one_token_->context_max() : 0; }
  // Lets kernels of all but the smallest and largest steps start while the one before them ends
  // (programmatic dependent launch).
  void set_pdl(bool on) { policy_.pdl = on; }

  // Rows then depend on themselves alone, bit for bit, whatever else is in a step, however a prompt
  // was cut into steps and what was cached: without the kernels whose sums depend on a step's
  // shape, slower. Sequences have at most max_context tokens. Before reserve(), once.
  void set_deterministic(int32_t max_context);

  // Of a rank whose experts lie in slots: what changes their places between steps. Else null.
  CudaExpertSlots* expert_slots() { return experts_.slots.get(); }

  // What entries' adapters may add to; null: the model was loaded without enable_lora.
  const AdaptedMatrices* adapted_matrices() const {
    return others_.adapted ? &others_.adapted->matrices() : nullptr;
  }

  // Embedding to last layer; keys and values are written to the pages that the entries name.
  Status forward(const CudaStep& step, const KvView& kv, const cuda::Stream& stream);
  // Where a step with CudaStep::keeps_states leaves what it has made in front of the layers that a
  // draft head reads: [tokens, layers * hidden_size], until the next step. REQUIRES that the spec
  // keeps some (DecoderSpec::kept_states).
  const void* kept_states(const CudaStep& step) const;
  // What the final norm makes of `count` rows that CudaStep::on_states was given of the last layer,
  // [count, hidden_size] of type(), to device memory.
  Status finish_states(const void* rows, int32_t count, void* out, const cuda::Stream& stream);
  // Of a stage of a pipeline, [tokens, hidden_size] of type(): where forward() finds the rows of
  // the stage before, null where it embeds, and where it leaves those of the next one until its
  // next step, null where it samples. The same memory in every step. After reserve().
  struct StageRows {
    void* received = nullptr;
    const void* handed_on = nullptr;
  };
  StageRows stage_rows() const;
  // Logits of rows [first, first + count) of the step before, float32 to out,
  // [count, logits_stride()]. count: at most max_entries. out: null on a rank that does not need
  // them.
  Status logits(int32_t first, int32_t count, float* out, const cuda::Stream& stream);

 private:
  CudaDecoder(const ModelPlan& whole, const CudaRank& rank, PendingCudaWeights weights,
              std::unique_ptr<kernels::cuda::Linear> linear, CudaPlan plan);
  Status lay_out(cuda::Arena& arena, int64_t linear_bytes, int64_t megakernel_bytes);
  std::vector<kernels::cuda::LinearArgs> gemm_shapes() const;

  const int32_t device_;
  const CudaRank rank_;
  ModelPlan whole_;   // of all ranks; changed by CudaExpertSlots alone,
  DecoderSpec spec_;  // of the rank's part, as this
  const CudaWeights weights_;
  std::unique_ptr<CudaTensorLoader> loader_;  // null when all is there
  const std::unique_ptr<kernels::cuda::Linear> linear_;
  ModelInfo info_;
  std::chrono::steady_clock::time_point load_start_;
  // In device memory, whatever the step.
  struct Constants {
    CudaRopes ropes;
    cuda::DeviceBuffer control_vectors;  // [vectors, layers, hidden] float32; empty: there are none
  };
  Constants constants_;
  struct Experts {
    std::shared_ptr<CudaExpertTally> tally;  // shared with the reader; null: no counts
    std::unique_ptr<CudaExpertSlots> slots;  // null: experts are slots
  };
  Experts experts_;

  const CudaPlan plan_;  // of any step
  CudaLaunchPolicy policy_;
  CudaPrologue prologue_;
  AttentionLimits limits_;  // of reserve(), but for the deterministic context
  cuda::DeviceBuffer scratch_;
  CudaContext context_;
  std::unique_ptr<CudaOneToken> one_token_;  // null: the model's form has no such kernel
  // Plans of steps that the plain one does not run.
  struct OtherPlans {
    std::unique_ptr<CudaAdaptedLayers> adapted;  // null: entries have no adapters
    std::unique_ptr<CudaStateLayers> states;     // null: no hidden states are returned

    // Of the plan that runs the step; null: the plain one.
    CudaContext* context_of(const CudaStep& step, bool deterministic) const;
  };
  OtherPlans others_;
  CudaContext* last_context_ = nullptr;  // of the step before: what logits() reads
};

}  // namespace espalier
