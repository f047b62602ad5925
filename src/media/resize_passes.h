// The two passes of a resize, by instruction set: weighted sums of pixels along rows and of rows
// along columns. All give the same bits, for sums are of whole numbers.
//
// Pure and thread-safe. Contract of resize.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace espalier {

// Weights are whole numbers with so many bits behind the point: 8 bits of a pixel and 2 of sums of
// weights that overshoot leave 22 of 32.
inline constexpr int kWeightBits = 32 - 8 - 2;

// Along one axis: output i is the sum over k < counts[i] of input firsts[i] + k times its weight k.
struct ResizeFilter {
  std::vector<int32_t> firsts, counts;
  std::vector<int32_t> weights;  // [outputs, stride], zeros behind an output's counts
  // The same in halves, weight = high * 2^kLowBits + low, by groups of four inputs: four high
  // halves, then four low ones. [outputs, stride / 4, 8]
  std::vector<int16_t> halves;
  int32_t stride = 0;  // a multiple of 4

  static constexpr int kLowBits = 11;

  std::span<const int32_t> weights_of(int32_t i) const {
    const auto at = static_cast<size_t>(i);
    return {weights.data() + at * static_cast<size_t>(stride), static_cast<size_t>(counts[at])};
  }
  const int16_t* halves_of(int32_t i) const { return halves.data() + int64_t{2} * stride * i; }
};

struct ResizePasses {
  // What `rows` may read behind a row's end: these bytes count for nothing.
  static constexpr int64_t kReadBehind = 16;

  const char* name;
  // num_rows rows of pixels, from_bytes apart, to as many of `width` pixels without gaps.
  void (*rows)(const uint8_t* from, int64_t from_bytes, int32_t num_rows,
               const ResizeFilter& filter, int32_t width, uint8_t* to);
  // Output row y of row_bytes bytes from the rows of `from`, without gaps.
  void (*column)(const uint8_t* from, int64_t row_bytes, const ResizeFilter& filter, int32_t y,
                 uint8_t* to);
};

// Those that this processor has, the fastest first; the last is plain C++.
std::span<const ResizePasses> usable_resize_passes();

}  // namespace espalier
