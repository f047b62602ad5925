// The weights of a Whisper model, packed for the CPU's kernels. Immutable once loaded; thread-safe
// to read.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "kernels/cpu/backend.h"
#include "kernels/linear/op.h"
#include "speech/whisper_config.h"
#include "tensor/dtype.h"

namespace espalier::speech {

// Of a back end: Format::Matrix is [outputs, inputs], Format::Vector has numbers one behind the
// other.
template <typename Format>
struct LayerNormOf {
  typename Format::Vector weight, bias;  // [width]
};

template <typename Format>
struct LinearOf {
  typename Format::Matrix matrix;
  typename Format::Vector bias;  // [outputs]
};

// Queries, keys and values of the same rows are one matrix.
template <typename Format>
struct SelfAttentionOf {
  LayerNormOf<Format> norm;
  LinearOf<Format> qkv, output;
};

// Keys and values are of the encoder's rows: all layers' keys and values, layer by layer.
template <typename Format>
struct CrossAttentionOf {
  LayerNormOf<Format> norm;
  LinearOf<Format> query, key, value, output;
};

template <typename Format>
struct MlpOf {
  LayerNormOf<Format> norm;
  LinearOf<Format> up, down;
};

template <typename Format>
struct EncoderLayerOf {
  SelfAttentionOf<Format> attention;
  MlpOf<Format> mlp;
};

template <typename Format>
struct DecoderLayerOf {
  SelfAttentionOf<Format> attention;
  CrossAttentionOf<Format> cross;
  MlpOf<Format> mlp;
};

template <typename Format>
struct WhisperWeightsOf {
  // Rows of three adjacent inputs, input by input.
  LinearOf<Format> conv1, conv2;
  typename Format::Vector source_positions;  // [max_source_positions, width]
  std::vector<EncoderLayerOf<Format>> encoder_layers;
  LayerNormOf<Format> encoder_norm;

  typename Format::Matrix tokens;            // [vocab_size, width]: the embedding, and the head
  typename Format::Vector target_positions;  // [max_target_positions, width]
  std::vector<DecoderLayerOf<Format>> decoder_layers;
  LayerNormOf<Format> decoder_norm;
};

struct CpuFormat {
  using Matrix = kernels::PackedMatrix;
  using Vector = std::vector<float>;
};
using LayerNormWeights = LayerNormOf<CpuFormat>;
using LinearWeights = LinearOf<CpuFormat>;
using SelfAttentionWeights = SelfAttentionOf<CpuFormat>;
using CrossAttentionWeights = CrossAttentionOf<CpuFormat>;
using MlpWeights = MlpOf<CpuFormat>;
using EncoderLayerWeights = EncoderLayerOf<CpuFormat>;
using DecoderLayerWeights = DecoderLayerOf<CpuFormat>;

struct WhisperWeights : WhisperWeightsOf<CpuFormat> {
  DType type = DType::kFloat32;  // of matrices
  int64_t num_parameters = 0;
  int64_t size_bytes = 0;  // in memory
};

// What matrices are held in. dtype: "auto" (float32 where the checkpoint is, else bfloat16),
// "float32" or "bfloat16".
Result<DType> whisper_matrix_type(const Checkpoint& checkpoint, std::string_view dtype);

// Fails by the tensor that is missing, has another shape, or is one too many. dtype: as above.
Result<WhisperWeights> load_whisper_weights(kernels::CpuBackend& backend,
                                            const Checkpoint& checkpoint, const WhisperSizes& sizes,
                                            std::string_view dtype);

}  // namespace espalier::speech
