// The layout of quantised weights that the CPU's kernels read, as constants: bits, scales and bytes
// of each block format. Conversion from a GGUF's block rounds nothing. Pure compile-time values.
#pragma once

// Weights lie in units of 32 outputs (two panels of 16): chunks of 32 or 256 inputs, each
//
//  [header: d of 32 outputs f16, dmin of 32 outputs f16]     where scales have two levels
//  for each block of 32 inputs:
//    scales   as BlockScales defines, by groups of 32 or 16 inputs
//    for each panel, values as vectors of [16 outputs][4 inputs] bytes, k = 0 to 7 for the inputs
//    4 k to 4 k + 3:
//      8 bits:       vectors 0 to 7
//      4 to 6 bits:  4 vectors, j = 0 to 3, of the low four bits of vector 2 j and, in the high
//                    half, of 2 j + 1; then with 5 bits one vector whose bit k is the fifth of
//                    vector k; with 6 bits two vectors, whose pairs of bits are those of vectors 0
//                    to 3 and 4 to 7
//      2 or 3 bits:  two vectors, whose pairs of bits are the low two of vectors 0 to 3 and 4 to
//                    7; then with 3 bits one vector whose bit k is the third of vector k
//
// A value q, or its entry in the format's codebook, means scale * (q - zero) - minimum.

#include <cstdint>

#include "tensor/block_format.h"

namespace espalier::kernels {

// The storage of the scales of a block of 32 inputs by 32 outputs.
enum class BlockScales : uint8_t {
  kHalf,      // one level: f16 [32], then minima f16 [32] where there are some
  kExponent,  // one level: u8 [32], each e for 2^(e - 128)
  kUnsigned,  // two levels: u8 [32] of scales and u8 [32] of minima
  kSigned,    // two levels: i8 [32], or [2][32] in groups of 16; no minima
  kNibbles,   // two levels, groups of 16: u8 [2][32], the scale in the low half, the minimum above
};

// The values that an index of four bits selects, plus `zero`.
inline constexpr uint8_t kCodebooks[2][16] = {
    // IQ4_NL and IQ4_XS: -127 to 113.
    {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241},
    // MXFP4, doubled: 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same negated (OCP Microscaling 1.0).
    {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0},
};

struct BlockLayout {
  int64_t bits;      // of a value, which is not negative
  int64_t codebook;  // of kCodebooks, or -1: a value is itself
  int64_t zero;      // the value that stands for nothing; 128: values take all of a byte
  int64_t chunk;     // inputs under one header: 256 where scales are of two levels, else 32
  int64_t group;     // inputs that share a scale
  BlockScales scales;
  bool minima;

  // Bytes of a unit.
  int64_t header_bytes, scale_bytes, block_bytes, chunk_bytes;
};

inline constexpr int64_t kBlockInputs = 32;
inline constexpr int64_t kPanelOutputs = 16;
inline constexpr int64_t kVectorBytes = 64;  // of 16 outputs and 4 inputs

// Of scales [scale_bytes] and values of 32 inputs by 32 outputs.
consteval BlockLayout one_level(int64_t bits, int64_t codebook, int64_t zero, BlockScales scales,
                                bool minima, int64_t scale_bytes) {
  const int64_t block = scale_bytes + bits * 128;
  return {bits, codebook, zero, 32, 32, scales, minima, 0, scale_bytes, block, block};
}
consteval BlockLayout two_levels(int64_t bits, int64_t codebook, int64_t zero, int64_t group,
                                 BlockScales scales, bool minima, int64_t scale_bytes) {
  const int64_t header = minima ? 128 : 64, block = scale_bytes + bits * 128;
  return {bits,  codebook,          zero, 256, group, scales, minima, header, scale_bytes,
          block, header + 8 * block};
}

inline constexpr BlockLayout kBlockLayouts[kNumBlockFormats] = {
    one_level(8, -1, 128, BlockScales::kHalf, false, 64),        // Q8_0
    one_level(4, -1, 8, BlockScales::kHalf, false, 64),          // Q4_0
    one_level(4, -1, 0, BlockScales::kHalf, true, 128),          // Q4_1
    one_level(5, -1, 16, BlockScales::kHalf, false, 64),         // Q5_0
    one_level(5, -1, 0, BlockScales::kHalf, true, 128),          // Q5_1
    two_levels(4, -1, 0, 32, BlockScales::kUnsigned, true, 64),  // Q4_K
    two_levels(5, -1, 0, 32, BlockScales::kUnsigned, true, 64),  // Q5_K
    two_levels(6, -1, 32, 16, BlockScales::kSigned, false, 64),  // Q6_K
    two_levels(2, -1, 0, 16, BlockScales::kNibbles, true, 64),   // Q2_K
    two_levels(3, -1, 4, 16, BlockScales::kSigned, false, 64),   // Q3_K
    one_level(4, 0, 128, BlockScales::kHalf, false, 64),         // IQ4_NL
    two_levels(4, 0, 128, 32, BlockScales::kSigned, false, 32),  // IQ4_XS
    one_level(4, 1, 12, BlockScales::kExponent, false, 32),      // MXFP4
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
