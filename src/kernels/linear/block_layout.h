// How quantised weights lie in a unit of 32 outputs (two panels of 16): chunks of 32 or 256 inputs,
// one after the other, each
//
//   [header: d of 32 outputs f16, dmin of 32 outputs f16]     where scales are of two levels
//   for each block of 32 inputs:
//     scales   one level:  f16 [32], then minima f16 [32] where there are some
//              two levels: u8 [32] of scales and u8 [32] of minima; or, in groups of 16 inputs,
//              i8 [2][32]
//     for each panel, values as vectors of [16 outputs][4 inputs] bytes, k = 0 to 7 for the inputs
//     4 k to 4 k + 3:
//       8 bits:    vectors 0 to 7
//       otherwise: 4 vectors, j = 0 to 3, of the low four bits of vector 2 j and, in the high half,
//                  of 2 j + 1; then with 5 bits one vector whose bit k is the fifth of vector k;
//                  with 6 bits two vectors, whose pairs of bits are those of vectors 0 to 3 and
//                  4 to 7
//
// A value q stands for scale * (q - zero) - minimum. Nothing is rounded on the way from a GGUF's
// block to here. Only constants stand here: see table.h.
#pragma once

#include <cstdint>

#include "tensor/block_format.h"

namespace espalier::kernels {

struct BlockLayout {
  int64_t bits;   // of a value, which is not negative
  int64_t zero;   // the value that stands for nothing
  int64_t chunk;  // inputs under one header: 256 where scales are of two levels, else 32
  int64_t group;  // inputs that share a scale
  bool minima;

  // Bytes of a unit.
  int64_t header_bytes, scale_bytes, block_bytes, chunk_bytes;
};

inline constexpr int64_t kBlockInputs = 32;
inline constexpr int64_t kPanelOutputs = 16;
inline constexpr int64_t kVectorBytes = 64;  // of 16 outputs and 4 inputs

inline constexpr BlockLayout kBlockLayouts[kNumBlockFormats] = {
    {8, 128, 32, 32, false, 0, 64, 64 + 1024, 64 + 1024},
    {4, 8, 32, 32, false, 0, 64, 64 + 512, 64 + 512},
    {4, 0, 32, 32, true, 0, 128, 128 + 512, 128 + 512},
    {5, 16, 32, 32, false, 0, 64, 64 + 640, 64 + 640},
    {5, 0, 32, 32, true, 0, 128, 128 + 640, 128 + 640},
    {4, 0, 256, 32, true, 128, 64, 64 + 512, 128 + 8 * (64 + 512)},
    {5, 0, 256, 32, true, 128, 64, 64 + 640, 128 + 8 * (64 + 640)},
    {6, 32, 256, 16, false, 64, 64, 64 + 768, 64 + 8 * (64 + 768)},
};

// Activations for quantised weights, a row after the other: [padded_in] int8, then for each block
// of 32 inputs one of these. padded_in: a multiple of 256.
struct ActivationBlock {
  float scale;       // a value times this is the activation
  float scaled_sum;  // the sum of the values times scale
  int32_t sums[2];   // of the values of each half
};
static_assert(sizeof(ActivationBlock) == 16);

}  // namespace espalier::kernels
