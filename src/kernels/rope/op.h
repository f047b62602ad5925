// Rotary position embedding (Su et al. 2021), on the CPU. Each call runs in parallel on the back
// end's pool; arguments are borrowed for the call.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cpu/backend.h"

namespace espalier::kernels {

struct RopeArgs {
  // [tokens, heads, head_dim], heads adjacent, tokens x_stride elements apart; rotated in place.
  // The q and the k part of a qkv row are two calls, or one over heads of both where k follows q.
  float* x = nullptr;
  int64_t x_stride = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;  // from one head to the next

  std::span<const int32_t> positions;  // [tokens]: the row of the tables for each token

  // [positions, rotary_dim / 2]: cosine and sine of position * frequency, with whatever scaling the
  // model has (frequencies and attention factor) already in them.
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t rotary_dim = 0;  // even, at most head_dim; the elements from there on stay

  // false: element i turns with i + rotary_dim / 2 (NeoX, HF Llama); true: 2i with 2i + 1 (GPT-J).
  bool interleaved = false;
};

// (a, b) -> (a cos - b sin, b cos + a sin) for each pair.
void rope(CpuBackend& backend, const RopeArgs& args);

namespace reference {
void rope(const RopeArgs& args);
}  // namespace reference

}  // namespace espalier::kernels
