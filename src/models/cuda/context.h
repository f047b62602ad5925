// What the GPU's operations work on: the weights, the memory of a plan's buffers, workspaces of
// kernels, and the step that is enqueued.
//
// Not thread-safe: one thread enqueues, on one stream. Borrows the spec, the weights and the plan;
// owns the memory of ropes, not of scratch. Sized by lay_out(); a step allocates nothing and does
// not wait.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/attention/cuda.h"
#include "kernels/linear/cuda.h"
#include "kernels/moe/cuda.h"
#include "models/cuda/plan.h"
#include "models/cuda/step.h"
#include "models/cuda/weights.h"
#include "models/decoder_spec.h"
#include "models/program/program.h"
#include "seams/kv_view.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

class CudaMegakernel;

// Memory that the operations of experts need besides their buffers; C = max_tokens * the most
// experts of a token counts (token, expert) pairs, E is the most experts of a layer.
struct CudaExpertScratch {
  float* scores = nullptr;         // [max_tokens, E]
  float* shared_gate = nullptr;    // [max_tokens]
  kernels::cuda::ExpertPlan plan;  // of C pairs, E experts
};

// Layers of one attention shape share a plan and a workspace.
struct CudaAttentionGroup {
  kernels::cuda::AttentionShape shape;
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

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
      : spec_(spec), weights_(weights), linear_(linear), policy_(policy), plan_(plan) {}

  // Takes the memory of buffers and workspaces; from an arena without a block it measures them.
  void lay_out(cuda::Arena& arena, const DecoderLimits& limits);
  void set_workspace(std::byte* data, int64_t bytes);
  void set_ropes(std::span<const float* const> frequencies) { ropes_ = frequencies; }
  // groups: of each layer the group of its attention.
  void set_attention(std::span<const CudaAttentionGroup> groups, std::span<const size_t> of_layer);
  // positions and kv_rows: [max_tokens]; window_kv_rows may be null.
  void set_token_rows(const int32_t* positions, const int32_t* kv_rows,
                      const int32_t* window_kv_rows);

  // Of the kernel that runs all layers; null: the plan does not have it.
  void set_megakernel(const CudaMegakernel* megakernel) { megakernel_ = megakernel; }

  // What lay_out() took for activations, and what set_workspace() gave.
  std::span<std::byte> activations() const { return activations_; }
  std::span<std::byte> workspace() const {
    return {workspace_, static_cast<size_t>(workspace_bytes_)};
  }

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
  const CudaMegakernel* megakernel() const { return megakernel_; }
  const CudaExpertScratch& experts() const { return experts_; }
  CudaLaunchPolicy& policy() { return policy_; }

  int32_t num_rows(const program::Operand& operand) const;
  // Where an operand's first row begins, to be read or to be written, and the elements from one row
  // to the next. They differ for a selection of outputs alone, whose source is not written.
  const void* read(const program::Operand& operand) const;
  void* write(const program::Operand& operand) const;
  int64_t stride(const program::Operand& operand) const;
  // Lets a whole buffer be other memory: for the rest of the step, or until it is written.
  void alias(const program::Operand& operand, const void* data);
  void alias_reads(const program::Operand& operand, const void* data);
  int32_t first_output() const { return first_output_; }

  kernels::cuda::LaunchOptions launch(const program::Op& op);
  Status linear(const kernels::cuda::LinearArgs& args, const program::Op& op);
  const float* rope(int32_t index) const { return ropes_[static_cast<size_t>(index)]; }
  const CudaAttentionGroup& attention_group(const program::Op& op) const;
  // The entries, and the rows of new tokens, of layers that see a sliding window or all.
  const kernels::cuda::EntryArrays& entries(int32_t sliding_window) const;
  const int32_t* kv_rows(int32_t sliding_window) const;
  const int32_t* positions() const { return positions_; }

 private:
  struct Place {
    std::byte* data = nullptr;
    int64_t stride = 0;  // elements
    int64_t element_size = 0;
  };
  void lay_out_experts(cuda::Arena& arena, const DecoderLimits& limits);
  Status run_op(const CudaPlan::BoundOp& bound);
  Result<bool> run_alternative(const CudaPlan::BoundOp& bound);
  std::byte* at(std::byte* data, const program::Operand& operand) const;
  Place& place(const program::Operand& operand) {
    return places_[static_cast<size_t>(operand.buffer)];
  }
  const Place& place(const program::Operand& operand) const {
    return places_[static_cast<size_t>(operand.buffer)];
  }

  const DecoderSpec& spec_;
  const CudaWeights& weights_;
  kernels::cuda::Linear& linear_;
  CudaLaunchPolicy& policy_;
  const CudaPlan& plan_;
  std::span<const float* const> ropes_;  // of each of the spec's ropes, [rotary_dim / 2]
  std::span<std::byte> activations_;
  std::vector<Place> home_;    // of each buffer
  std::vector<Place> places_;  // the same in this step
  std::span<const CudaAttentionGroup> groups_;
  std::span<const size_t> group_of_layer_;
  const int32_t *positions_ = nullptr, *kv_rows_ = nullptr, *window_kv_rows_ = nullptr;
  std::byte* workspace_ = nullptr;  // of GEMMs
  int64_t workspace_bytes_ = 0;
  CudaExpertScratch experts_;
  const CudaMegakernel* megakernel_ = nullptr;

  // Of the step that is enqueued.
  CudaStep step_;
  const KvView* kv_ = nullptr;
  kernels::cuda::Stream stream_ = nullptr;
  program::BufferId read_alias_ = -1;
  const std::byte* read_alias_data_ = nullptr;
  int32_t first_output_ = 0, num_outputs_ = 0;
};

// Whether the kernels for small batches run this block here; see find_moe_blocks().
Result<bool> runs_moe_block(CudaContext& context, const program::Op& op);
Status run_moe_block(CudaContext& context, const program::Op& op);

}  // namespace espalier
