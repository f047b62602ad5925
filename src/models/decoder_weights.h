// A decoder's weights as the kernels want them: matrices packed once, small vectors in float32.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "kernels/linear/op.h"
#include "models/decoder_spec.h"
#include "models/weight_source.h"
#include "tensor/buffer.h"

namespace espalier {

// An empty vector means that the layer has no such norm or bias.
struct LayerWeights {
  std::vector<float> input_norm;             // [hidden]
  kernels::PackedMatrix qkv;                 // hidden -> [q; k; v]
  std::vector<float> qkv_bias;               // [q_dim + 2 kv_dim]
  std::vector<float> q_norm, k_norm;         // [head_dim]
  kernels::PackedMatrix attention_output;    // q_dim -> hidden
  std::vector<float> attention_output_bias;  // [hidden]
  std::vector<float> post_attention_norm;    // [hidden]
  // hidden -> ffn, gate and up packed for linear_silu_mul; where there is a bias between (or a
  // fault asks for it) hidden -> [gate; up], a plain matrix.
  kernels::PackedMatrix gate_up;
  std::vector<float> gate_up_bias;  // [2 ffn]
  kernels::PackedMatrix down;       // ffn -> hidden
  std::vector<float> down_bias;     // [hidden]
};

struct DecoderWeights {
  DType type = DType::kBFloat16;  // of matrices and embedding: kFloat32 or kBFloat16
  Buffer embedding;               // [vocab, hidden]; empty where it is tied: rows come from head
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;  // [hidden]
  kernels::PackedMatrix head;     // hidden -> vocab

  int64_t size_bytes() const;
};

// Takes each tensor that the spec asks for from the source, packs it and gives it back, so that
// never more than one matrix is held twice. type: kFloat32 or kBFloat16.
Result<DecoderWeights> load_weights(kernels::CpuBackend& backend, const DecoderSpec& spec,
                                    DType type, WeightSource& source);

}  // namespace espalier
