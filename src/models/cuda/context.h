// What the GPU's operations work on: the weights, the buffers of a plan, scratch of kernels, and
// the step that is enqueued.
//
// Not thread-safe: one thread enqueues, on one stream. Borrows the spec, the weights, the plan and
// all memory. Sized by lay_out(); a step allocates nothing and does not wait.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/attention/cuda.h"
#include "kernels/linear/cuda.h"
#include "models/cuda/buffers.h"
#include "models/cuda/plan.h"
#include "models/cuda/scratch.h"
#include "models/cuda/step.h"
#include "models/cuda/weights.h"
#include "models/decoder_spec.h"
#include "models/program/program.h"
#include "seams/kv_view.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

// How kernels are launched; the same for all plans of a decoder.
struct CudaLaunchPolicy {
  bool pdl = false;       // programmatic dependent launch is allowed
  bool step_pdl = false;  // and used throughout the step that is enqueued
  bool next_pdl = false;  // and by the next kernel, whatever the step
};

class CudaContext {
 public:
  CudaContext(const DecoderSpec& spec, const CudaWeights& weights, kernels::cuda::Linear& linear,
              CudaLaunchPolicy& policy, const CudaPlan& plan)
      : spec_(spec),
        weights_(weights),
        linear_(linear),
        policy_(policy),
        plan_(plan),
        buffers_(plan, weights.type()) {}

  // Takes the memory of buffers and of experts; from an arena without a block it measures.
  void lay_out(cuda::Arena& arena, const DecoderLimits& limits);
  void bind(const CudaScratch& scratch) { scratch_ = scratch; }

  // Starts a step. All of it outlives the step and its outputs.
  void begin(const CudaStep& step, const KvView& kv, const cuda::Stream& stream);
  // Enqueues operations [first, last); those without rows are left out.
  Status run(size_t first, size_t last);
  // The output section for rows [first, first + count) of the wanted ones; logits to out, rows
  // logits_stride apart.
  Status run_outputs(int32_t first, int32_t count, float* out, int64_t logits_stride,
                     const cuda::Stream& stream);

  const DecoderSpec& spec() const { return spec_; }
  const CudaWeights& weights() const { return weights_; }
  const CudaPlan& plan() const { return plan_; }
  DType type() const { return weights_.type(); }
  const CudaStep& step() const { return step_; }
  const KvView& kv() const { return *kv_; }
  const CudaScratch& scratch() const { return scratch_; }
  const CudaExpertScratch& experts() const { return experts_; }
  CudaLaunchPolicy& policy() { return policy_; }
  CudaBuffers& buffers() { return buffers_; }
  const CudaBuffers& buffers() const { return buffers_; }

  // See CudaBuffers.
  int32_t num_rows(const program::Operand& operand) const { return buffers_.num_rows(operand); }
  const void* read(const program::Operand& operand) const { return buffers_.read(operand); }
  void* write(const program::Operand& operand) const { return buffers_.write(operand); }
  int64_t stride(const program::Operand& operand) const { return buffers_.stride(operand); }

  kernels::cuda::LaunchOptions launch(const program::Op& op);
  Status linear(const kernels::cuda::LinearArgs& args, const program::Op& op);
  const CudaAttentionGroup& attention_group(const program::Op& op) const;
  // The entries, and the rows of new tokens, of layers that see a sliding window or all.
  const kernels::cuda::EntryArrays& entries(int32_t sliding_window) const;
  const int32_t* kv_rows(int32_t sliding_window) const;
  // Whether attention on latents leaves out the entries that have expanded rows.
  bool leaves_out_long_entries() const { return leaves_out_long_entries_; }

 private:
  Status run_op(const CudaPlan::BoundOp& bound);
  Result<bool> run_alternative(const program::Alternative& alternative);
  Status run_short_entries(const program::Alternative& alternative);
  bool has_own_pages(int32_t sliding_window) const;

  const DecoderSpec& spec_;
  const CudaWeights& weights_;
  kernels::cuda::Linear& linear_;
  CudaLaunchPolicy& policy_;
  const CudaPlan& plan_;
  CudaBuffers buffers_;
  CudaScratch scratch_;
  CudaExpertScratch experts_;

  // Of the step that is enqueued.
  CudaStep step_;
  const KvView* kv_ = nullptr;
  kernels::cuda::Stream stream_ = nullptr;
  bool leaves_out_long_entries_ = false;
};

// Whether the kernels for small batches run this block here; see find_alternatives().
Result<bool> runs_moe_block(CudaContext& context, const program::Op& op);
Status run_moe_block(CudaContext& context, const program::Op& op);
// Whether the GEMM of the experts fuses its activation here.
Result<bool> runs_gated_experts(CudaContext& context, const program::Op& op);

}  // namespace espalier
