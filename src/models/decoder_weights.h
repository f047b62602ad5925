// A decoder's weights as the kernels want them: matrices packed once, small vectors in float32.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "kernels/linear/op.h"
#include "models/decoder_spec.h"
#include "models/program/program.h"
#include "models/storage_format.h"
#include "models/weight_layout.h"
#include "models/weight_source.h"
#include "tensor/buffer.h"

namespace espalier {

// Empty where there is no norm; a bias in a layer norm alone. What kRmsOneCentred adds to the
// weight is in it already.
struct NormWeights {
  std::vector<float> weight, bias;
};

// As kernels take a vector that may be absent.
inline const float* or_null(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

struct MlpWeights {
  // hidden -> ffn, gate and up packed for linear_silu_mul where the program fuses the activation;
  // else hidden -> [gate; up], a plain matrix, or hidden -> up alone where there is no gate.
  kernels::PackedMatrix gate_up;
  std::vector<float> gate_up_bias;  // of its outputs; empty: none
  kernels::PackedMatrix down;       // ffn -> hidden
  std::vector<float> down_bias;     // [hidden]
};

// Of LatentSpec. q, where queries have no latent of their own, is LayerWeights::qkv.
struct LatentWeights {
  kernels::PackedMatrix q_a;  // hidden -> query_rank
  NormWeights q_a_norm;
  kernels::PackedMatrix q;     // query_rank (or hidden) -> heads * (nope + rope)
  kernels::PackedMatrix kv_a;  // hidden -> rank + rope
  NormWeights kv_a_norm;       // [rank]
  std::vector<kernels::PackedMatrix> query_to_latent;  // of each head: nope -> rank
  std::vector<kernels::PackedMatrix> latent_to_value;  // of each head: rank -> value_dim
};

struct ExpertsWeights {
  kernels::PackedMatrix router;  // hidden -> experts, always float32: a rounded score would choose
                                 // other experts
  std::vector<float> router_bias;        // [experts]
  std::vector<float> router_correction;  // [experts]
  std::vector<MlpWeights> experts;       // of the rank's slots
  std::vector<int32_t> replicas;         // replica_table(); empty: experts are slots
  kernels::PackedMatrix shared_gate;     // hidden -> 1
};

struct LayerWeights {
  NormWeights input_norm;     // [hidden]
  NormWeights hidden_norm;    // [hidden], of a draft head
  kernels::PackedMatrix qkv;  // hidden -> [q; k; v]
  std::vector<float> qkv_bias;
  NormWeights q_norm, k_norm;  // [head_dim], or [q_dim] and [kv_dim]
  std::vector<float> sinks;    // [heads]
  LatentWeights latent;
  kernels::PackedMatrix attention_output;    // output_dim -> hidden
  std::vector<float> attention_output_bias;  // [hidden]
  NormWeights attention_output_norm;         // [hidden]
  NormWeights post_attention_norm;           // [hidden]
  MlpWeights mlp;                            // of a layer with experts: the shared one
  ExpertsWeights experts;
  NormWeights mlp_output_norm;  // [hidden]
};

// A layer of PoolingSpec::head, always float32, for it is small and what it makes is the result; or
// of a projector or an embedding of patches, in the model's type.
struct PoolingWeights {
  kernels::PackedMatrix matrix;
  std::vector<float> bias;  // empty: none
};

// Of CrossKvSpec.
struct CrossKvWeights {
  kernels::PackedMatrix kv;  // outputs of the projector -> [k; v]
  NormWeights k_norm;        // [head_dim]
};

// Of JointTilesSpec.
struct JointTileWeights {
  Buffer tile_position;     // [num_positions(), hidden]
  NormWeights global_norm;  // [hidden]
};

struct DecoderWeights {
  DType type = DType::kBFloat16;  // of tables, and of matrices that are not quantised
  // [vocab, hidden], as numbers or quantised; both empty where it is tied: rows come from head.
  Buffer embedding;
  kernels::PackedMatrix quantized_embedding;
  PoolingWeights patch_embedding;      // of an encoder: channels * patch * patch -> hidden
  std::vector<float> class_embedding;  // [hidden]; empty: none
  std::vector<float> line_end;         // [outputs of the projector], or empty
  NormWeights embedding_norm;          // [hidden]
  Buffer position_embedding;           // [learned_positions, hidden]
  Buffer type_embedding;               // [token_types, hidden]
  kernels::PackedMatrix draft_input;   // of a draft head: 3 hidden (MTP: 2) -> hidden
  std::vector<LayerWeights> layers;
  NormWeights final_norm;      // [hidden]
  kernels::PackedMatrix head;  // hidden -> vocab
  // Of an MTP layer: its target's head, which is borrowed. Else null.
  const kernels::PackedMatrix* target_head = nullptr;
  std::vector<PoolingWeights> pooling_head;
  std::vector<PoolingWeights> projector;     // and behind it those of DeepstackSpecs
  std::vector<NormWeights> deepstack_norms;  // [merge * hidden]
  NormWeights projector_norm;                // of ProjectorSpec
  std::vector<CrossKvWeights> cross;
  JointTileWeights joint_tiles;

  int64_t size_bytes() const;

  // Weights by their ids. REQUIRES: the model has the weight, and it is of that sort; a vector may
  // be absent (null).
  const kernels::PackedMatrix& matrix(WeightId id) const;
  const NormWeights& norm(WeightId id) const;
  const float* vector(WeightId id) const;
  // Of kQueryToLatent and kLatentToValue a matrix for each head.
  std::span<const kernels::PackedMatrix> head_matrices(WeightId id) const;
  const LayerWeights& layer(WeightId id) const { return layers[static_cast<size_t>(id.index)]; }
};

// Takes each tensor that the spec asks for from the source, packs it and gives it back, so that
// never more than one matrix is held twice.
// layout: of the spec, or of the model that the spec is one rank's part of.
// program: its GEMMs with an activation take gate and up packed for linear_silu_mul.
Result<DecoderWeights> load_weights(kernels::CpuBackend& backend, const DecoderSpec& spec,
                                    const WeightLayout& layout, const program::Program& program,
                                    const WeightTypes& types, WeightSource& source);

}  // namespace espalier
