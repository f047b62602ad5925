// The persistent megakernel: all layers of a decoder for one new token of one entry, in one kernel
// that stays on the GPU from the first layer to the last. While blocks wait at a grid barrier, the
// next weights are copied into shared memory.
//
// Thread-safe; one workspace belongs to one stream. Pointers are borrowed device memory unless
// stated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention/cuda.h"
#include "kernels/cuda/stream.h"

namespace espalier::kernels::cuda {

// One layer; everything bfloat16 but the frequencies, matrices [out, in]. Null: the layer has no
// such part.
struct MegakernelLayer {
  const void* input_norm = nullptr;  // [hidden]
  const void* qkv = nullptr;         // [(num_heads + 2 num_kv_heads) head_dim, hidden]
  const void* qkv_bias = nullptr;
  const void* q_norm = nullptr;  // [head_dim]
  const void* k_norm = nullptr;
  const void* output = nullptr;  // [hidden, num_heads head_dim]
  const void* output_bias = nullptr;
  const void* mlp_norm = nullptr;  // [hidden]
  const void* gate_up = nullptr;   // [2 ffn, hidden], gate above up
  const void* gate_up_bias = nullptr;
  const void* down = nullptr;  // [hidden, ffn]
  const void* down_bias = nullptr;
  void* k = nullptr;  // planes with the geometry of MegakernelArgs::kv
  void* v = nullptr;
  const float* frequencies = nullptr;  // [rotary_dim / 2], as QkRopeAppendArgs; null: no rotation
  float attention_factor = 1;
  int32_t rotary_dim = 0;
  int32_t interleaved = 0;
  int32_t sliding_window = 0;
  float scale = 1;
  float softcap = 0;
  float norm_epsilon = 1e-6f;  // of both norms
  float qk_epsilon = 1e-6f;
};
inline constexpr int32_t kMaxMegakernelLayers = 128;

struct MegakernelShape {
  int32_t num_layers = 0;
  int32_t hidden = 0;  // multiples of 8, as ffn
  int32_t ffn = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
};

struct MegakernelArgs {
  MegakernelShape shape;
  std::span<const MegakernelLayer> layers;  // host memory; copied into the launch
  // The token id: ids[0], or where that is -1 slot_tokens[token_slots[0]].
  const int32_t* ids = nullptr;
  const int32_t* token_slots = nullptr;
  const int32_t* slot_tokens = nullptr;
  const void* embedding = nullptr;  // [vocab_size, hidden]
  int32_t vocab_size = 0;
  EntryArrays entries;  // one entry of at most one token; without a token the launch does nothing
  KvPlanes kv;          // geometry; k and v are the layers'
  void* out = nullptr;  // [hidden] bfloat16: the last layer's
  void* workspace =
      nullptr;  // zeros before the first launch; each launch leaves it ready for the next
  size_t workspace_bytes = 0;
};

// Whether megakernel() supports the shape on this device: Hopper, heads of 16 to 256 (a power of
// two), groups of up to 8, rows that fit into shared memory.
bool megakernel_supports(const MegakernelShape& shape);
// Whether it supports the page size: powers of two.
bool megakernel_supports_page_size(int32_t page_size);
Result<size_t> megakernel_workspace_bytes(const MegakernelShape& shape);

// Computes the hidden state after all layers, rounded where the kernels for one layer round. A
// cooperative launch: it needs every multiprocessor, so no other kernel may occupy one for good.
Status megakernel(const MegakernelArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
