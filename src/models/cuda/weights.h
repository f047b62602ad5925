// A decoder's weights in device memory: one block, matrices as the checkpoint has them (rows of
// in_features), q, k, v and gate, up stacked.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "models/cuda/tensor_loader.h"
#include "models/decoder_spec.h"
#include "models/model.h"
#include "tensor/cuda/memory.h"
#include "tensor/dtype.h"

namespace espalier {

// [out_features, in_features] of the weights' type. Null data: the model has no such matrix.
struct CudaMatrix {
  const void* data = nullptr;
  int32_t in_features = 0;
  int32_t out_features = 0;
};

// Vectors are of the weights' type too; null where the layer has none.
struct CudaLayerWeights {
  const void* input_norm = nullptr;
  CudaMatrix qkv;
  const void* qkv_bias = nullptr;
  const void* q_norm = nullptr;
  const void* k_norm = nullptr;
  CudaMatrix attention_output;
  const void* attention_output_bias = nullptr;
  const void* attention_output_norm = nullptr;
  const void* post_attention_norm = nullptr;
  CudaMatrix gate_up;
  const void* gate_up_bias = nullptr;
  CudaMatrix down;
  const void* down_bias = nullptr;
  const void* mlp_output_norm = nullptr;
};

struct CudaWeights {
  DType type = DType::kBFloat16;
  cuda::DeviceBuffer block;
  CudaMatrix embedding;  // the head's data where they are tied
  CudaMatrix head;       // out_features rounded up to a multiple of 8, the added rows zero
  std::vector<CudaLayerWeights> layers;
  const void* final_norm = nullptr;
};

// Weights on their way: their places hold zeros until the loader has finished.
struct PendingCudaWeights {
  CudaWeights weights;
  std::unique_ptr<CudaTensorLoader> loader;  // started
};

// Begins to load what `options` say: a checkpoint, read by several threads into pinned buffers that
// the device copies from meanwhile, or weights drawn on the device.
Result<PendingCudaWeights> load_cuda_weights(const DecoderSpec& spec, DType type,
                                             const ModelLoadOptions& options);

}  // namespace espalier
