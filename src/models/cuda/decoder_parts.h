// What the files of CudaDecoder share.
#pragma once

#include "kernels/attention/cuda.h"
#include "models/decoder_spec.h"
#include "seams/kv_view.h"

namespace espalier {

// Of a row of queries, keys and values; latents leave the values' place empty.
inline int32_t qkv_width(const AttentionSpec& a) { return a.q_dim() + 2 * a.kv_dim(); }

// Whether gate, up and SiLU are one product.
inline bool joins_silu(const MlpSpec& mlp) {
  return mlp.gated && mlp.activation == kernels::Activation::kSilu;
}

inline kernels::cuda::KvPlanes planes_of(const KvView& kv, size_t layer) {
  return {.type = kv.type == KvType::kFloat32 ? DType::kFloat32 : DType::kBFloat16,
          .k = kv.layers[layer].k,
          .v = kv.layers[layer].v,
          .page_size = kv.page_size,
          .num_kv_heads = kv.num_kv_heads,
          .head_dim = kv.head_dim,
          .page_stride = kv.page_stride,
          .token_stride = kv.token_stride,
          .head_stride = kv.head_stride};
}

}  // namespace espalier
