// The forward pass of a DecoderSpec on the GPU. Everything is enqueued on one stream and nothing
// waits; what depends on the step is read from device memory when it runs, so a pass can be
// captured into a graph and replayed for other steps of the same bounds.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "kernels/attention/cuda.h"
#include "kernels/linear/cuda.h"
#include "kernels/megakernel/cuda.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/cuda_small_batch.h"
#include "models/cuda/weights.h"
#include "models/decoder_spec.h"
#include "models/model.h"
#include "models/model_plan.h"
#include "seams/kv_view.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"

namespace espalier {

// One step, in device memory.
struct CudaStep {
  const int32_t* ids = nullptr;          // [entries.num_tokens], or -1: slot_tokens of token_slots
  const int32_t* token_slots = nullptr;  // [entries.num_tokens]
  const int32_t* slot_tokens = nullptr;  // [slots]: what each slot sampled last
  kernels::cuda::EntryArrays entries;
  // The same entries with the page tables of layers that see a sliding window, where these have
  // pages of their own (see ForwardBatch); else without page_tables.
  kernels::cuda::EntryArrays window_entries;
  // The tokens whose final hidden state is wanted, [num_rows], in the order in which logits()
  // counts them. Null: all of them (num_rows == entries.num_tokens).
  const int32_t* rows = nullptr;
  int32_t num_rows = 0;
  int32_t max_prefix_len = 0;  // of one entry: tokens that attention finds cached
};

// Not thread-safe: one thread enqueues, on one stream.
class CudaDecoder {
 public:
  // Loads the weights. The device is open. kUnimplemented names what the GPU does not do.
  static Result<std::unique_ptr<CudaDecoder>> load(const ModelLoadOptions& options);
  // The same of a plan that was made before.
  static Result<std::unique_ptr<CudaDecoder>> load(ModelPlan plan, const ModelLoadOptions& options);
  // Begins to load: until finish_loading() has returned the weights are zeros or what has come of
  // them so far, good enough to warm up with.
  static Result<std::unique_ptr<CudaDecoder>> begin_load(ModelPlan plan,
                                                         const ModelLoadOptions& options);
  Status finish_loading();

  const ModelInfo& info() const { return info_; }
  KvType kv_type() const;
  // The shape of the first layers whose attention can read what entries share once; none: no
  // layer's.
  Result<std::optional<kernels::cuda::AttentionShape>> shared_attention(int32_t page_size) const;
  // Between rows of logits: vocab_size rounded up; what lies beyond vocab_size means nothing.
  int32_t logits_stride() const { return weights_.head.out_features; }

  // Sizes all scratch, for steps of at most this, on pages of page_size tokens.
  Status reserve(int32_t max_tokens, int32_t max_entries, int32_t page_size);
  // Chooses how products are computed at the numbers of rows that steps have, by measuring what
  // this GPU's cache of choices does not know. logits: room for max_entries rows. After reserve().
  Status tune(float* logits, const cuda::Stream& stream);
  int64_t scratch_bytes() const { return scratch_.size_bytes(); }

  // Runs the layers of a step of one token in one kernel where the model's shape allows it (on by
  // default); off: kernel by kernel, as steps of more tokens.
  void set_megakernel(bool on) { stack_on_ = on; }
  bool has_megakernel() const { return stack_workspace_ != nullptr; }  // after reserve()
  int64_t num_stack_steps() const { return num_stack_steps_; }         // enqueued so far
  // Tokens cached from which on one request's layers run kernel by kernel all the same: the one
  // kernel reads long caches slower.
  int32_t stack_context_max() const { return stack_context_max_; }
  // Lets kernels of all but the smallest and largest steps start while the one before them ends
  // (programmatic dependent launch).
  void set_early_launch(bool on) { early_launch_ = on; }

  // Rows then depend on themselves alone, bit for bit, whatever else is in a step, however a prompt
  // was cut into steps and what was cached: without the kernels whose sums depend on a step's
  // shape, slower. Sequences have at most max_context tokens. Before reserve(), once.
  void set_deterministic(int32_t max_context);

  // Embedding to last layer; keys and values are written to the pages that the entries name.
  Status forward(const CudaStep& step, const KvView& kv, const cuda::Stream& stream);
  // Logits of rows [first, first + count) of the step before, float32 to out,
  // [count, logits_stride()]. count: at most max_entries.
  Status logits(int32_t first, int32_t count, float* out, const cuda::Stream& stream);

 private:
  CudaDecoder(DecoderSpec spec, PendingCudaWeights weights,
              std::unique_ptr<kernels::cuda::Linear> linear);
  kernels::cuda::LaunchOptions on(const cuda::Stream& stream);
  Status upload_ropes();
  void lay_out(cuda::Arena& arena);
  void lay_out_experts(cuda::Arena& arena);
  Status lay_out_attention(cuda::Arena& arena, int32_t page_size);
  std::vector<kernels::cuda::LinearArgs> products() const;
  std::vector<kernels::cuda::LinearArgs> products_to_tune(float* logits) const;
  kernels::cuda::AttentionShape shape_of(size_t layer, int32_t page_size) const;

  // The entries with the page tables that layers of a shape read.
  static const kernels::cuda::EntryArrays& entries_of(const kernels::cuda::AttentionShape& shape,
                                                      const CudaStep& step);
  Status plan(const CudaStep& step, const KvView& kv, const cuda::Stream& stream);
  kernels::cuda::MegakernelShape stack_shape() const;
  bool stack_takes(const CudaStep& step) const;
  bool all_layers_have_windows() const;
  Status run_stack(const CudaStep& step, const KvView& kv, const cuda::Stream& stream);
  Status embed(const CudaStep& step, const cuda::Stream& stream);
  Status run_layer(size_t layer, const CudaStep& step, const KvView& kv,
                   const cuda::Stream& stream);
  Status project(size_t layer, int32_t tokens, const cuda::Stream& stream);
  Status project_latent(size_t layer, int32_t tokens, const cuda::Stream& stream);
  Status norm_all_heads(size_t layer, int32_t tokens, const cuda::Stream& stream);
  Status append(size_t layer, const CudaStep& step, const KvView& kv, const cuda::Stream& stream);
  Status attend(size_t layer, const CudaStep& step, const KvView& kv, const cuda::Stream& stream);
  std::byte* new_keys(size_t layer, const CudaStep& step) const;
  Status keep_wanted_rows(size_t layer, const CudaStep& step, const cuda::Stream& stream);
  // Each head's value from what attention made of the latents: to latent_q_.
  Status latent_values(size_t layer, const std::byte* attended, int32_t rows,
                       const cuda::Stream& stream);
  Status run_mlp(size_t layer, int32_t rows, const cuda::Stream& stream);
  // down(activation(gate(x)) * up(x)) but for the last product, whose arguments come back.
  Result<kernels::cuda::LinearArgs> run_gate_up(const MlpSpec& spec,
                                                const CudaLayerWeights& weights,
                                                const std::optional<NormSpec>& norm,
                                                const std::byte* x, int32_t rows,
                                                const cuda::Stream& stream);
  Status run_experts(size_t layer, int32_t rows, const cuda::Stream& stream);
  kernels::cuda::SmallBatchMoeArgs small_batch_moe_args(size_t layer, int32_t rows, std::byte* to,
                                                        bool keeps) const;
  Result<bool> takes_small_batch_moe(size_t layer,
                                     const kernels::cuda::SmallBatchMoeArgs& args) const;
  Status finish_experts(size_t layer, std::byte* branch, int32_t rows, const cuda::Stream& stream);
  Status run_chosen(const ExpertsSpec& spec, const CudaExpertsWeights& weights, const std::byte* x,
                    int32_t rows, const cuda::Stream& stream);
  // y = norm(x), rows of `dim`.
  Status normalise(const NormSpec& norm, const void* weight, const void* x, int64_t x_stride,
                   void* y, int64_t y_stride, int32_t rows, int32_t dim,
                   const cuda::Stream& stream);
  // x_ += residual_scale * branch, both [rows, hidden].
  Status add_to_stream(const std::byte* branch, int32_t rows, const cuda::Stream& stream);
  // x W^T of normed hidden states, the norm fused where rows are few.
  Status normed_product(const std::optional<NormSpec>& norm, const void* norm_weight,
                        kernels::cuda::LinearArgs args, const cuda::Stream& stream);
  // x_ += residual_scale * norm(args' product).
  Status add_branch(kernels::cuda::LinearArgs args, const std::optional<NormSpec>& norm,
                    const void* norm_weight, bool drop_residual, const cuda::Stream& stream);
  Status product(const kernels::cuda::LinearArgs& args, const cuda::Stream& stream);
  kernels::cuda::LinearArgs product_args(const CudaMatrix& matrix, int32_t rows) const;

  const DecoderSpec spec_;
  const CudaWeights weights_;
  std::unique_ptr<CudaTensorLoader> loader_;  // null when all is there
  const std::unique_ptr<kernels::cuda::Linear> linear_;
  ModelInfo info_;
  std::chrono::steady_clock::time_point load_start_;
  cuda::DeviceBuffer rope_block_;
  std::vector<const float*> rope_frequencies_;  // of each of spec_.ropes, [rotary_dim / 2]

  // Scratch, one block, of the weights' type unless said; T = max_tokens.
  cuda::DeviceBuffer scratch_;
  int32_t max_tokens_ = 0, max_entries_ = 0;
  bool early_launch_ = false, launches_early_ = false;  // allowed; of the step that is enqueued
  bool next_early_ = false;  // the next kernel of any step: the one in front of it allows for it
  bool stack_on_ = true;
  int64_t num_stack_steps_ = 0;
  int32_t stack_context_max_ = 0;      // set by reserve()
  int32_t deterministic_context_ = 0;  // 0: not deterministic
  std::byte* hidden_ = nullptr;        // [T, hidden]
  std::byte* kept_ = nullptr;          // [T, hidden]: hidden_'s wanted rows
  std::byte* normed_ = nullptr;        // [T, hidden]
  std::byte* qkv_ = nullptr;           // [T, widest q_dim + 2 kv_dim]
  std::byte* attended_ = nullptr;      // [T, widest q_dim]
  // [T, widest of gate and up (one of them where the product joins them)], and attended_'s wanted
  // rows.
  std::byte* mlp_ = nullptr;
  int32_t* kv_rows_ = nullptr;            // [T]
  int32_t* window_kv_rows_ = nullptr;     // [T]; null: no layer has a window
  int32_t* positions_ = nullptr;          // [T]
  std::byte* stack_workspace_ = nullptr;  // null: the layers do not run as one kernel
  int64_t stack_workspace_bytes_ = 0;
  // Of layers with experts; C = T * the most experts of a token. Null where there are none.
  struct ExpertScratch {
    float* scores = nullptr;         // [T, most experts]
    int32_t* experts = nullptr;      // [C]
    float* weights = nullptr;        // [C]
    kernels::cuda::ExpertPlan plan;  // of C choices
    float* shared_gate = nullptr;    // [T]
    std::byte* gate_up = nullptr;    // [C, 2 widest ffn]
    std::byte* down = nullptr;       // [C, hidden]
    std::byte* shared = nullptr;     // [T, hidden]
  };
  ExpertScratch experts_;
  std::byte* latent_q_ = nullptr;  // [T, the query's rank + heads * (nope + rope)], and values
  std::byte* linear_scratch_ = nullptr;
  int64_t linear_scratch_bytes_ = 0;
  // Layers of one attention shape share a plan.
  struct AttentionGroup {
    kernels::cuda::AttentionShape shape;
    std::byte* workspace = nullptr;
    int64_t workspace_bytes = 0;
  };
  std::vector<AttentionGroup> groups_;
  std::vector<size_t> group_of_;  // of each layer
  const std::byte* x_ = nullptr;  // the residual stream: hidden_, or kept_ in the last layer
};

}  // namespace espalier
