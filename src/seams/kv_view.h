// Where keys and values lie: the only part of the cache that kernels and models see. Plain data
// without thread safety. All pointers are borrowed from the KV pool, which outlives every step that
// uses the view.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace espalier {

using PageId = int32_t;

enum class KvType : uint8_t { kFloat32, kBFloat16, kFloat8E4M3 };
constexpr int64_t kv_element_bytes(KvType type) {
  return type == KvType::kFloat32 ? 4 : type == KvType::kBFloat16 ? 2 : 1;
}
constexpr std::string_view kv_type_name(KvType type) {
  return type == KvType::kFloat32    ? "float32"
         : type == KvType::kBFloat16 ? "bfloat16"
                                     : "float8_e4m3";
}

// What a layer keeps of the tokens before a step.
enum class KvLayerKind : uint8_t {
  kPages,        // a K plane and a V plane, in pages that ForwardBatch::page_tables name
  kLatent,       // one plane that is K and V (latent attention), in the same pages
  kWindowPages,  // as kPages, in the pages of ForwardBatch::window_page_tables where these exist
  kRecurrentState,  // no pages of tokens: page i of K is the i-th state, page_stride elements
};

// Each layer describes its own memory, for layers of one model may differ in kind, type, shape and
// pool. Which of them this build's kernels take is decided by kernels/kv_layer.h.
struct KvView {
  // A plane is [num_pages, page_size, num_kv_heads, head_dim]. The token at position p of a
  // sequence lies in page page_table[p / page_size], row p % page_size. Strides are in elements.
  struct Layer {
    KvLayerKind kind = KvLayerKind::kPages;
    KvType type = KvType::kBFloat16;
    void* k = nullptr;
    void* v = nullptr;      // k itself where keys are values too
    int32_t num_pages = 0;  // of the pool that the layer lies in
    int32_t num_kv_heads = 0;
    int32_t head_dim = 0;
    int64_t page_stride = 0;   // page_size * token_stride, unless a back end pads
    int64_t token_stride = 0;  // num_kv_heads * head_dim
    int64_t head_stride = 0;   // head_dim
    // float32 scales, [num_pages, page_size, num_kv_heads] by the strides below (0: one scale for
    // all of that dimension); an element's value is the element times its scale. Null: no scales.
    float* k_scales = nullptr;
    float* v_scales = nullptr;
    int64_t scale_page_stride = 0;
    int64_t scale_token_stride = 0;
    int64_t scale_head_stride = 0;

    // Strides of planes without gaps.
    void set_dense_strides(int32_t page_size) {
      head_stride = head_dim;
      token_stride = num_kv_heads * head_stride;
      page_stride = page_size * token_stride;
    }
    int64_t page_bytes() const { return page_stride * kv_element_bytes(type); }  // of a plane
    int64_t plane_bytes() const { return num_pages * page_bytes(); }
  };

  std::vector<Layer> layers;
  int32_t page_size = 1;  // tokens, the same in all layers

  const Layer& layer(int32_t index) const { return layers[static_cast<size_t>(index)]; }
};

}  // namespace espalier
