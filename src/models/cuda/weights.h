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

// Of LatentSpec.
struct CudaLatentWeights {
  CudaMatrix q_a;  // hidden -> query_rank
  const void* q_a_norm = nullptr;
  CudaMatrix q;     // query_rank, or hidden -> heads * (nope + rope)
  CudaMatrix kv_a;  // hidden -> rank + rope
  const void* kv_a_norm = nullptr;
  const void* kv_b = nullptr;             // [heads, nope + value, rank]
  const void* query_to_latent = nullptr;  // [heads, rank, nope]: of each head kv_b's first, turned
};

// All experts' matrices lie in one block, one under the other.
struct CudaExpertsWeights {
  const float* router = nullptr;             // [experts, hidden]
  const float* router_bias = nullptr;        // [experts]
  const float* router_correction = nullptr;  // [experts]
  const void* gate_up = nullptr;             // [experts, 2 ffn, hidden]
  const void* gate_up_bias = nullptr;        // [experts, 2 ffn]
  const void* down = nullptr;                // [experts, hidden, ffn]
  const void* down_bias = nullptr;           // [experts, hidden]
  const float* shared_gate = nullptr;        // [hidden]
};

// Vectors are of the weights' type too, but for those of float; null where the layer has none. Of a
// layer norm the weight, then the bias.
struct CudaLayerWeights {
  const void* input_norm = nullptr;
  CudaMatrix qkv;
  const void* qkv_bias = nullptr;
  const void* q_norm = nullptr;
  const void* k_norm = nullptr;
  CudaLatentWeights latent;
  const float* sinks = nullptr;  // [heads]
  CudaMatrix attention_output;
  const void* attention_output_bias = nullptr;
  const void* attention_output_norm = nullptr;
  const void* post_attention_norm = nullptr;
  CudaMatrix gate_up;  // or up alone; of a layer with experts: the shared one's
  const void* gate_up_bias = nullptr;
  CudaMatrix down;
  const void* down_bias = nullptr;
  CudaExpertsWeights experts;
  const void* mlp_output_norm = nullptr;
};

struct CudaWeights {
  DType type = DType::kBFloat16;
  cuda::DeviceBuffer block;
  CudaMatrix embedding;  // the head's data where they are tied
  CudaMatrix position_embedding;
  CudaMatrix head;  // out_features rounded up to a multiple of 8, the added rows zero
  std::vector<CudaLayerWeights> layers;
  const void* final_norm = nullptr;
};

// Weights on their way: their places hold zeros until the loader has finished. Where the checkpoint
// has some in another order than the products want, all are there at once.
struct PendingCudaWeights {
  CudaWeights weights;
  std::unique_ptr<CudaTensorLoader> loader;  // started
};

// Begins to load what `options` say: a checkpoint, read by several threads into pinned buffers that
// the device copies from meanwhile, or weights drawn on the device.
Result<PendingCudaWeights> load_cuda_weights(const DecoderSpec& spec, DType type,
                                             const ModelLoadOptions& options);

}  // namespace espalier
