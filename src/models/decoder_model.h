// The forward pass of a DecoderSpec on the CPU kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "models/decoder_spec.h"
#include "models/decoder_weights.h"
#include "models/model.h"
#include "models/weight_source.h"
#include "tensor/buffer.h"

namespace espalier {

// The query tokens of a batch whose hidden state is still needed once the last layer's keys and
// values are written: of each lane a tail, from the first token whose logits are wanted to the
// last.
class WantedRows {
 public:
  void reserve(size_t max_lanes) { tails_.reserve(max_lanes); }
  void plan(std::span<const Lane> lanes);

  // Rows in all, and each lane's tail as a lane of its own, in lane order; lanes that want nothing
  // have none. A tail's query_begin counts wanted rows, source_row its first row in the batch.
  struct Tail {
    int32_t lane = 0;
    int32_t first_token = 0;  // of the lane's query tokens
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

// All of it but weight_bytes. REQUIRES: a valid spec.
ModelInfo describe_model(const DecoderSpec& spec);

class DecoderModel final : public Model {
 public:
  // Checks the spec and loads the weights. pool: borrowed, outlives the model. type: kFloat32 or
  // kBFloat16, what the matrices are held in.
  static Result<std::unique_ptr<DecoderModel>> create(DecoderSpec spec, DType type,
                                                      WeightSource& source, WorkPool& pool);

  const ModelInfo& info() const override { return info_; }
  Status reserve(int32_t max_tokens, int32_t max_lanes) override;
  ForwardOutput forward(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                        const KvView& kv, const InputLogitsSink& input_logits) override;

 private:
  DecoderModel(DecoderSpec spec, DecoderWeights weights,
               std::unique_ptr<kernels::CpuBackend> backend);

  // One step, from embedding to logits. x is hidden_, [rows, hidden].
  void embed(std::span<const TokenId> token_ids);
  void fill_rope_tables(std::span<const int32_t> positions);
  void project_qkv(size_t layer, int64_t rows);
  void append_kv(size_t layer, const ForwardBatch& batch, const KvView& kv);
  void attend(size_t layer, std::span<const Lane> lanes, int64_t rows, const ForwardBatch& batch,
              const KvView& kv);
  void run_mlp(size_t layer, int64_t rows);
  void activate(float* gate, int64_t rows, int64_t ffn);
  // Moves x and q of the wanted rows to the front and makes tail_lanes_ of their tails.
  void keep_wanted_rows(size_t layer, const ForwardBatch& batch);
  int64_t sample_logits(const ForwardBatch& batch);
  void input_logits(const ForwardBatch& batch, const InputLogitsSink& sink);

  // norm(x), or x itself where there is no norm.
  const float* normed(const std::optional<NormSpec>& norm, const std::vector<float>& weight,
                      int64_t rows);
  void logits_of_picked(int64_t rows, float* out);
  void pick_row(int64_t row, int64_t to);

  const DecoderSpec spec_;
  const DecoderWeights weights_;
  std::unique_ptr<kernels::CpuBackend> backend_;
  ModelInfo info_;
  std::vector<std::vector<float>> rope_frequencies_;  // of each of spec_.ropes

  // Scratch, sized by reserve(): T = max_tokens.
  int32_t max_tokens_ = 0, max_lanes_ = 0;
  WantedRows wanted_;
  Buffer hidden_;                   // [T, hidden]: x of the header of decoder_spec.h
  Buffer normed_;                   // [T, hidden]; at the end the rows picked for the head
  Buffer qkv_;                      // [T, widest q_dim + 2 kv_dim]
  Buffer attended_;                 // [T, widest q_dim]
  Buffer mlp_;                      // [T, 2 * widest ffn]; the half where gate and up are fused
  Buffer rope_rows_;                // for each rope: cos [T, rotary_dim / 2], then sin
  std::vector<int32_t> row_index_;  // [T]: 0, 1, 2 ... the rows of rope_rows_
  std::vector<Lane> tail_lanes_;    // [max_lanes]: wanted_'s tails, for attention
  Buffer logits_;                   // [max_lanes, vocab]
  Buffer block_logits_;             // [kLogitBlock, vocab]
};

}  // namespace espalier
