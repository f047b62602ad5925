// Where keys and values lie: what kernels and models see of the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace espalier {

using PageId = int32_t;
enum class KvType : uint8_t { kFloat32, kBFloat16 };

// One K plane and one V plane a layer, each [page, page_size, kv_head, head_dim]. The token at
// position p of a sequence lies in page page_table[p / page_size], row p % page_size. Strides are
// in elements. Borrowed from the KV pool; the pool outlives every step that uses the view.
struct KvView {
  struct Layer {
    void* k = nullptr;
    void* v = nullptr;  // k itself where keys are values too (latent attention)
  };
  std::vector<Layer> layers;
  KvType type = KvType::kBFloat16;
  int32_t num_pages = 0;
  int32_t page_size = 1;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int64_t page_stride = 0;   // page_size * token_stride, unless a back end pads
  int64_t token_stride = 0;  // num_kv_heads * head_dim
  int64_t head_stride = 0;   // head_dim
};

}  // namespace espalier
