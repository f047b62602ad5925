// Which tensors of a checkpoint make which weight of a decoder: names, shapes, what is fused and
// which shard of it is loaded, in the order in which tensors are read. The loaders of all back ends
// follow it. Plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/convert.h"
#include "models/decoder_spec.h"
#include "models/weight_id.h"

namespace espalier {

// One tensor: its full name, and its rows (a vector's elements).
struct WeightBlock {
  std::string name;
  int64_t rows = 0;
  // Parts that its rows are divided into where these are fewer than the ranks, which then share
  // them, neighbours the same one; 0: one part for each rank.
  int32_t parts = 0;
};

// The part of a matrix that a rank has: of each block an equal part of its rows, so that each rank
// has its own heads of q, k and v; or of the columns.
struct Shard {
  enum class Axis : uint8_t { kRows, kColumns };
  Axis axis = Axis::kRows;
  int32_t rank = 0;
  int32_t num_ranks = 1;  // 1: the whole matrix

  bool whole() const { return num_ranks == 1; }
  int64_t rows(int64_t all) const { return axis == Axis::kRows ? all / num_ranks : all; }
  int64_t columns(int64_t all) const { return axis == Axis::kColumns ? all / num_ranks : all; }
  // The rank's part of a block [rows, columns].
  TensorSlice slice(int64_t all_rows, int64_t all_columns) const;
};

// How many bits a matrix needs where weights are stored in fewer.
enum class Precision : uint8_t {
  kWeights,     // what the model's matrices are
  kVocabulary,  // embedding and head: more bits than the others
  kUnrounded,   // the model's dtype: small, or added to what is exact
  kFloat32,     // whatever the others are: a rounded score would choose other experts
};

// Blocks stacked by rows: [out_features, in_features], row-major in the checkpoint. No blocks: the
// model has no such matrix.
struct MatrixLayout {
  std::vector<WeightBlock> blocks;
  int64_t in_features = 0;
  bool fused = false;       // the blocks, all of one name, are parts of one tensor
  bool transposed = false;  // a tensor lies [in, out]
  Precision precision = Precision::kWeights;
  std::vector<int64_t> stored_shape;  // of its one tensor where that is not of two dimensions
  Shard shard;  // of what is loaded; blocks and in_features are the checkpoint's
  int64_t out_features() const;
  bool empty() const { return blocks.empty(); }
  // What of a block is loaded, in rows and columns of the block.
  TensorSlice slice_of(const WeightBlock& block) const;
  // Of the shard.
  int64_t local_rows() const;
  int64_t local_columns() const { return shard.columns(in_features); }
};
// kInvalidArgument names a block whose rows or columns the ranks do not divide evenly.
Status check_shard(const MatrixLayout& layout);
// The shard's part of block `index`, in the tensor that stores the block: of a fused tensor the
// rows behind those of the blocks before it; of a transposed one columns stand for rows.
TensorSlice stored_slice(const MatrixLayout& layout, size_t index);

// Blocks one after the other. No blocks: the model has no such norm or bias. Of a layer norm the
// weight, then the bias.
struct VectorLayout {
  // Of all blocks' elements, one block after the other.
  struct Part {
    int64_t first = 0;
    int64_t count = 0;
  };
  std::vector<WeightBlock> blocks;
  std::vector<Part> parts;  // what a rank has of it; empty: all
  int64_t size() const;     // of the checkpoint's
  int64_t local_size() const;
  bool empty() const { return blocks.empty(); }
};

struct MlpLayout {
  MatrixLayout gate_up;       // hidden -> [gate; up], or up alone
  VectorLayout gate_up_bias;  // [2 ffn]
  MatrixLayout down;          // ffn -> hidden
  VectorLayout down_bias;     // [hidden]
};

// The names of its tensors.
std::vector<std::string> tensor_names(const MlpLayout& mlp);

// Of LatentSpec.
struct LatentLayout {
  MatrixLayout q_a;        // hidden -> query_rank
  VectorLayout q_a_norm;   // [query_rank]
  MatrixLayout q;          // query_rank, or hidden -> heads * (nope + rope)
  MatrixLayout kv_a;       // hidden -> rank + rope
  VectorLayout kv_a_norm;  // [rank]
  MatrixLayout kv_b;       // rank -> heads * (nope + value): of each head keys, then values
};

struct ExpertsLayout {
  MatrixLayout router;             // hidden -> experts
  VectorLayout router_bias;        // [experts]
  VectorLayout router_correction;  // [experts]
  std::vector<MlpLayout> experts;  // of the rank; empty where all of them are in one tensor:
  std::string fused_gate_up;       // see WeightNames::Experts; with "_bias" after it, and "_blocks"
  std::string fused_down;          // and "_scales" where they are MXFP4
  int64_t fused_features = 0;      // of an expert, there
  Shard fused_gate_up_shard, fused_down_shard;
  std::vector<MlpLayout> elsewhere;  // experts that other ranks have
  MatrixLayout shared_gate;          // hidden -> 1
};

struct LayerLayout {
  VectorLayout input_norm;   // [hidden]
  VectorLayout hidden_norm;  // [hidden], of a draft head
  MatrixLayout qkv;          // hidden -> [q; k; v]; empty where there are latents
  VectorLayout qkv_bias;     // [q_dim + 2 kv_dim]
  VectorLayout q_norm, k_norm;
  LatentLayout latent;
  VectorLayout sinks;                  // [heads]
  MatrixLayout attention_output;       // output_dim -> hidden
  VectorLayout attention_output_bias;  // [hidden]
  VectorLayout attention_output_norm;  // [hidden]
  VectorLayout post_attention_norm;    // [hidden]
  MlpLayout mlp;                       // of a layer with experts: the shared one
  ExpertsLayout experts;
  VectorLayout mlp_output_norm;  // [hidden]
};

// A layer of PoolingSpec::head or of a projector.
struct PoolingLayout {
  MatrixLayout matrix;
  VectorLayout bias;
};

struct WeightLayout {
  MatrixLayout embedding;        // [vocab, hidden]; empty where it is tied: rows come from the head
  MatrixLayout patch_embedding;  // of an encoder: channels * patch * patch -> hidden
  VectorLayout patch_embedding_bias;  // [hidden]
  VectorLayout class_embedding;       // [hidden]
  VectorLayout line_end;              // [outputs of the projector]
  VectorLayout embedding_norm;        // [hidden]
  MatrixLayout position_embedding;    // [learned_positions, hidden]
  MatrixLayout type_embedding;        // [token_types, hidden]
  MatrixLayout head;                  // hidden -> vocab; empty where a text becomes a vector
  std::vector<PoolingLayout> pooling_head;
  std::vector<PoolingLayout> projector;  // of an encoder, and behind it those of DeepstackSpecs
  std::vector<VectorLayout> deepstack_norms;  // [merge * hidden]
  VectorLayout projector_norm;                // of ProjectorSpec
  std::vector<MatrixLayout> cross_kv;         // of an encoder: outputs of the projector -> [k; v]
  std::vector<VectorLayout> cross_k_norms;    // [head_dim]
  MatrixLayout tile_position;                 // [num_positions(), hidden]
  VectorLayout global_norm;                   // [hidden]
  MatrixLayout draft_input;                   // of a draft head: 3 hidden -> hidden
  std::vector<LayerLayout> layers;
  VectorLayout final_norm;  // [hidden]
};

// The layout of a matrix that a program names; of experts that of the first. Null: the weight is a
// vector, or the model has none of its own (experts of one tensor, latents cut by heads).
const MatrixLayout* find_matrix(const WeightLayout& layout, WeightId id);

// REQUIRES: a valid spec.
WeightLayout weight_layout(const DecoderSpec& spec);

}  // namespace espalier
