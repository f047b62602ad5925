// Device memory of a step's sampling: logits, grammar masks, and what comes back. Steps share it,
// for they run one after the other on one stream. Plain pointers into a block of the executor's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/executor/cuda/step_results.h"
#include "tensor/cuda/memory.h"

namespace espalier {

// L = max_entries, T = max_tokens.
struct SamplingArrays {
  float* logits = nullptr;          // [L, logits_stride]
  uint32_t* masks = nullptr;        // [L, mask_words]
  int32_t mask_words = 0;           // of 32 tokens
  int32_t* wanted_begin = nullptr;  // [L + T + 1]
  int32_t* wanted_ids = nullptr;    // [ResultArrays::kWantedCapacity]
  ResultArrays results;
  std::byte* workspace = nullptr;  // of the sampling kernel
  int64_t workspace_bytes = 0;

  // REQUIRES: mask_words and workspace_bytes. From an arena without a block it measures.
  void lay_out(cuda::Arena& arena, const StepLimits& limits, int64_t logits_stride) {
    logits = arena.take<float>(limits.max_entries * logits_stride);
    masks = arena.take<uint32_t>(int64_t{limits.max_entries} * mask_words);
    wanted_begin = arena.take<int32_t>(int64_t{limits.max_entries} + limits.max_tokens + 1);
    wanted_ids = arena.take<int32_t>(ResultArrays::kWantedCapacity);
    results.lay_out(arena, limits);
    workspace = arena.take<std::byte>(workspace_bytes);
  }
};

}  // namespace espalier
