// The forward pass of a DecoderSpec on the CPU kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "kernels/linear/op.h"
#include "models/decoder_spec.h"
#include "models/decoder_weights.h"
#include "models/model.h"
#include "models/weight_source.h"
#include "tensor/buffer.h"

namespace espalier {

// The query tokens of a batch whose hidden state is still needed once the last layer's keys and
// values are written: of each entry a tail, from the first token whose logits (or whose state, for
// pooling) are wanted to the last.
class WantedRows {
 public:
  void reserve(size_t max_entries) { tails_.reserve(max_entries); }
  void plan(std::span<const BatchEntry> entries);

  // Rows in all, and each entry's tail as an entry of its own, in entry order; entries that want
  // nothing have none. A tail's query_begin counts wanted rows, source_row its first row in the
  // batch.
  struct Tail {
    int32_t entry = 0;
    int32_t first_token = 0;  // of the entry's query tokens
    int32_t source_row = 0;   // that token's row in the batch
    int32_t row = 0;          // and among the wanted rows
    int32_t count = 0;
  };
  int32_t num_rows() const { return num_rows_; }
  std::span<const Tail> tails() const { return tails_; }

 private:
  std::vector<Tail> tails_;
  int32_t num_rows_ = 0;
};

// Floats from one row of [q; k; v] to the next; latents have no v.
inline int64_t qkv_stride(const AttentionSpec& a) {
  return a.q_dim() + (a.latent ? 1ll : 2ll) * a.kv_dim();
}

// All of it but weight_bytes. REQUIRES: a valid spec.
ModelInfo describe_model(const DecoderSpec& spec);

class DecoderModel final : public Model {
 public:
  // Checks the spec and loads the weights. pool: borrowed, outlives the model.
  static Result<std::unique_ptr<DecoderModel>> create(DecoderSpec spec, const WeightTypes& types,
                                                      WeightSource& source, WorkPool& pool);

  const ModelInfo& info() const override { return info_; }
  Status reserve(int32_t max_tokens, int32_t max_entries) override;
  ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                        const KvView& kv, const InputLogitsSink& input_logits) override;
  std::vector<float> finish_pooled(std::span<const float> row) override;

 private:
  DecoderModel(DecoderSpec spec, DecoderWeights weights,
               std::unique_ptr<kernels::CpuBackend> backend);

  // One step, from embedding to logits. x is hidden_, [rows, hidden].
  void embed(std::span<const TokenId> token_ids);
  void add_positions(std::span<const int32_t> positions);
  void fill_rope_tables(std::span<const int32_t> positions);
  // decoder_attention.cc
  void project_qkv(size_t layer, int64_t rows);
  void norm_heads(const AttentionSpec& a, float* x, int64_t heads, const NormWeights& weights,
                  int64_t rows);
  void project_latent(size_t layer, int64_t rows);
  void rotate(const AttentionSpec& a, float* x, int64_t stride, int64_t heads, int64_t head_dim,
              int64_t rows);
  void append_kv(size_t layer, const ForwardBatch& batch, const KvView& kv);
  void attend(size_t layer, std::span<const BatchEntry> entries, int64_t rows,
              const ForwardBatch& batch, const KvView& kv);
  const float* latent_values(size_t layer, int64_t rows);

  // decoder_mlp.cc
  void run_mlp(size_t layer, int64_t rows);
  // y (+)= mlp(x); x and y: [rows, hidden].
  void apply_mlp(const MlpSpec& spec, const MlpWeights& weights, const float* x, int64_t rows,
                 float* y, bool accumulate);
  void activate(const MlpSpec& spec, int64_t rows);
  // branch_ = the experts' and the shared MLP's results of normed rows x.
  void run_experts(const ExpertsSpec& spec, const LayerWeights& weights, const float* x,
                   int64_t rows);
  size_t end_of_pass(size_t first, size_t count) const;
  void run_pass(const ExpertsSpec& spec, const ExpertsWeights& weights, const float* x,
                int64_t rows, size_t first, size_t last);
  void apply_experts(const MlpSpec& spec, const ExpertsWeights& weights, size_t first, size_t last,
                     int64_t rows);
  void choose_experts(const ExpertsSpec& spec, const ExpertsWeights& weights, const float* x,
                      int64_t rows);
  void add_shared(const ExpertsSpec& spec, const LayerWeights& weights, const float* x,
                  int64_t rows);

  // hidden_ += residual_scale * norm(branch_), or without what was there before where `drop` says
  // so.
  void add_branch(const std::optional<NormSpec>& norm, const NormWeights& weights, int64_t rows,
                  bool drop);
  // Whether a block's last product may add to hidden_ by itself.
  bool adds_directly(const std::optional<NormSpec>& output_norm) const {
    return !output_norm && spec_.residual_scale == 1.0f;
  }
  // Moves x and q of the wanted rows to the front and makes tail_entries_ of their tails.
  void keep_wanted_rows(size_t layer, const ForwardBatch& batch);
  int64_t sample_logits(const ForwardBatch& batch);
  std::span<const float> pooled_rows(const ForwardBatch& batch);
  void input_logits(const ForwardBatch& batch, const InputLogitsSink& sink);

  // y = norm(x), [rows, hidden] both.
  void apply_norm(const NormSpec& norm, const NormWeights& weights, const float* x, float* y,
                  int64_t rows);
  // norm(hidden_), or hidden_ itself where there is no norm.
  const float* normed(const std::optional<NormSpec>& norm, const NormWeights& weights,
                      int64_t rows);
  void logits_of_picked(int64_t rows, float* out);
  void pick_row(int64_t row, int64_t to);

  const DecoderSpec spec_;
  const DecoderWeights weights_;
  std::unique_ptr<kernels::CpuBackend> backend_;
  ModelInfo info_;
  std::vector<std::vector<float>> rope_frequencies_;  // of each of spec_.ropes

  // Scratch, sized by reserve(): T = max_tokens.
  int32_t max_tokens_ = 0, max_entries_ = 0;
  WantedRows wanted_;
  Buffer hidden_;                    // [T, hidden]: x of the header of decoder_spec.h
  Buffer normed_;                    // [T, hidden]; at the end the rows picked for the head
  Buffer branch_;                    // [T, hidden]: a block's result before it is added
  Buffer qkv_;                       // [T, widest q_dim + 2 kv_dim]
  Buffer attended_;                  // [T, widest q_dim]
  Buffer mlp_;                       // [T, 2 * widest ffn]; the half where gate and up are fused
  Buffer latent_q_;                  // [T, query_rank + heads * (nope + rope)], or values later
  Buffer expert_logits_;             // [T, experts]
  Buffer expert_weights_;            // [T, top_k]: of each choice, in expert_ids_' order
  int64_t pass_rows_ = 0;            // of experts computed together, each rounded up to a tile
  Buffer expert_x_, expert_y_;       // [pass_rows_, hidden]: their rows, and what they make of them
  Buffer shared_weights_;            // [T]
  std::vector<int32_t> expert_ids_;  // [T, top_k]
  std::vector<int32_t> expert_rows_;   // [T, top_k]: rows by expert
  std::vector<int32_t> expert_slots_;  // [T, top_k]: of each choice, its place in expert_rows_
  std::vector<int32_t> expert_begin_;  // [experts + 1]: of each expert's rows in expert_rows_
  std::vector<kernels::LinearGroup> expert_groups_;  // of a pass
  Buffer rope_rows_;                      // for each rope: cos [T, rotary_dim / 2], then sin
  std::vector<int32_t> row_index_;        // [T]: 0, 1, 2 ... the rows of rope_rows_
  std::vector<BatchEntry> tail_entries_;  // [max_entries]: wanted_'s tails, for attention
  Buffer logits_;                         // [max_entries, vocab]
  Buffer block_logits_;                   // [kLogitBlock, vocab]
};

}  // namespace espalier
