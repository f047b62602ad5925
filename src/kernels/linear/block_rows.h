// Conversions of one row of quantised weights between a GGUF's blocks, the layout of the kernels
// (block_layout.h) and plain numbers. Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tensor/block_format.h"

namespace espalier::kernels {

// `padded` inputs, whole chunks. Input i stands for
// scale(i) * (v(values[i]) - zero) - minimum(i), where v looks up the format's codebook if it has
// one, scale(i) is d[i / chunk] alone, or times scales[i / group], or 2^(scales[i / group] - 128)
// alone; and minimum(i) is the same of dmin and minima.
struct BlockRow {
  int64_t padded = 0;
  std::vector<uint8_t> values;          // [padded]
  std::vector<uint16_t> d, dmin;        // [padded / chunk] float16
  std::vector<uint8_t> scales, minima;  // [padded / group]; signed where BlockScales is signed
};

// Inputs of a row of `in_features`, rounded up to whole chunks.
int64_t padded_inputs(BlockFormat format, int64_t in_features);

// Sizes the row for these inputs; padding stands for zero.
void clear_row(BlockFormat format, int64_t in_features, BlockRow& row);

// Unpacks a GGUF's blocks into a row. blocks: in_features / elements of them. REQUIRES: in_features
// is a multiple of a block's elements.
void take_apart(BlockFormat format, const std::byte* blocks, int64_t in_features, BlockRow& row);

// Rounds the row's numbers to kQ8_0, kQ4K or kQ6K.
void quantize_row(BlockFormat format, const float* numbers, int64_t in_features, BlockRow& row);

// Writes the row as output `output` of a unit that was zero there.
void place_row(BlockFormat format, const BlockRow& row, int64_t output, std::byte* unit);

// Widens output `output` of a unit to numbers, with the same bits as checkpoint's reading of the
// blocks.
void widen_row(BlockFormat format, const std::byte* unit, int64_t output, int64_t in_features,
               float* out);

}  // namespace espalier::kernels
