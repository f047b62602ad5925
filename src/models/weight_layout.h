// Which tensors of a checkpoint make which weight of a decoder: names, shapes and what is fused, in
// the order in which they are read. Every back end's loader follows it, so it is written once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/decoder_spec.h"

namespace espalier {

// One tensor: its full name, and its rows (a vector's elements).
struct WeightBlock {
  std::string name;
  int64_t rows = 0;
};

// Blocks stacked by rows: [out_features, in_features], row-major in the checkpoint. No blocks: the
// model has no such matrix.
struct MatrixLayout {
  std::vector<WeightBlock> blocks;
  int64_t in_features = 0;
  int64_t out_features() const;
  bool empty() const { return blocks.empty(); }
};

// Blocks one after the other. No blocks: the model has no such norm or bias.
struct VectorLayout {
  std::vector<WeightBlock> blocks;
  int64_t size() const;
  bool empty() const { return blocks.empty(); }
};

struct LayerLayout {
  VectorLayout input_norm;             // [hidden]
  MatrixLayout qkv;                    // hidden -> [q; k; v]
  VectorLayout qkv_bias;               // [q_dim + 2 kv_dim]
  VectorLayout q_norm, k_norm;         // [head_dim]
  MatrixLayout attention_output;       // q_dim -> hidden
  VectorLayout attention_output_bias;  // [hidden]
  VectorLayout post_attention_norm;    // [hidden]
  MatrixLayout gate_up;                // hidden -> [gate; up]
  VectorLayout gate_up_bias;           // [2 ffn]
  MatrixLayout down;                   // ffn -> hidden
  VectorLayout down_bias;              // [hidden]
};

struct WeightLayout {
  MatrixLayout embedding;  // [vocab, hidden]; empty where it is tied: rows come from the head
  MatrixLayout head;       // hidden -> vocab
  std::vector<LayerLayout> layers;
  VectorLayout final_norm;  // [hidden]
};

// REQUIRES: a valid spec.
WeightLayout weight_layout(const DecoderSpec& spec);

}  // namespace espalier
