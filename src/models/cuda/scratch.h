// Device memory that kernels need besides the buffers of a program. Plain values; all memory is
// borrowed from the arena of CudaDecoder::reserve().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention/latent_prefill.h"
#include "kernels/collective/cuda.h"
#include "kernels/moe/cuda.h"

namespace espalier {

class AdaptedMatrices;
class CudaExpertSlots;
class CudaExpertTally;
class CudaMegakernel;

// Of the operations of experts: C = max_tokens * the most experts of a token counts (token, expert)
// pairs, E is the most experts of a layer.
struct CudaExpertScratch {
  float* scores = nullptr;         // [max_tokens, E]
  float* shared_gate = nullptr;    // [max_tokens]
  kernels::cuda::ExpertPlan plan;  // of C pairs, E experts
  // The input of experts' GEMMs of e4m3, where there are some: its rows and their scales.
  uint8_t* rounded = nullptr;  // [max_tokens, hidden] or [C, ffn]
  float* rounded_scales = nullptr;
};

// Layers of one attention shape share a plan and a workspace.
struct CudaAttentionGroup {
  kernels::cuda::AttentionShape shape;
  std::byte* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// Of latent attention with expanded keys and values; without memory where no step expands.
struct CudaExpandedScratch {
  kernels::cuda::ExpandedPlan plan;
  int64_t max_rows = 0;
  std::byte* latents = nullptr;  // [max_rows, rank + rope_dim], bfloat16
  // Of as many heads as fit for a step's rows, [rows, heads, nope_dim + value_dim], bfloat16.
  std::byte* keys_values = nullptr;
  int64_t keys_values_bytes = 0;
};

// What the operations of every plan of a decoder read.
struct CudaScratch {
  std::span<const float* const> ropes;  // of each of the spec's ropes, [rotary_dim / 2]
  std::span<const CudaAttentionGroup> attention;
  std::span<const size_t> attention_of_layer;  // of each layer its index in `attention`
  CudaExpandedScratch expanded;
  const int32_t* positions = nullptr;       // [max_tokens], of the step
  const int32_t* kv_rows = nullptr;         // [max_tokens]: the row of each new token in its page
  const int32_t* window_kv_rows = nullptr;  // the same of layers with a window; null: none has one
  const void* embedding = nullptr;  // of a draft head: the target's, [target_vocab_size, hidden]
  const float* patches = nullptr;   // of an encoder: the step's, [pictures, num_patches, features]
  std::span<std::byte> gemm_workspace;
  const CudaMegakernel* megakernel = nullptr;             // null: the plan does not have it
  kernels::cuda::DeviceCollective* collective = nullptr;  // null: one rank has all of the model
  const CudaExpertTally* expert_tally = nullptr;          // null: experts' pairs are not counted
  const CudaExpertSlots* expert_slots = nullptr;          // null: experts are slots
  const float* control_vectors = nullptr;  // [vectors, layers, hidden]; null: there are none
  // What a plan with adapters has; else null.
  const AdaptedMatrices* adapted = nullptr;
  std::span<std::byte> lora_workspace;
};

}  // namespace espalier
