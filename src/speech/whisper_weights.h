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

struct LayerNormWeights {
  std::vector<float> weight, bias;  // [width]
};

struct LinearWeights {
  kernels::PackedMatrix matrix;
  std::vector<float> bias;  // [outputs]; empty: none
};

// Queries, keys and values of the same rows are one matrix.
struct SelfAttentionWeights {
  LayerNormWeights norm;
  LinearWeights qkv, output;
};

// Keys and values are of the encoder's rows: all layers' keys and values, layer by layer.
struct CrossAttentionWeights {
  LayerNormWeights norm;
  LinearWeights query, key, value, output;
};

struct MlpWeights {
  LayerNormWeights norm;
  LinearWeights up, down;
};

struct EncoderLayerWeights {
  SelfAttentionWeights attention;
  MlpWeights mlp;
};

struct DecoderLayerWeights {
  SelfAttentionWeights attention;
  CrossAttentionWeights cross;
  MlpWeights mlp;
};

struct WhisperWeights {
  DType type = DType::kFloat32;  // of matrices
  // Rows of three adjacent inputs, input by input.
  LinearWeights conv1, conv2;
  std::vector<float> source_positions;  // [max_source_positions, width]
  std::vector<EncoderLayerWeights> encoder_layers;
  LayerNormWeights encoder_norm;

  kernels::PackedMatrix tokens;         // [vocab_size, width]: the embedding, and the head
  std::vector<float> target_positions;  // [max_target_positions, width]
  std::vector<DecoderLayerWeights> decoder_layers;
  LayerNormWeights decoder_norm;

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
