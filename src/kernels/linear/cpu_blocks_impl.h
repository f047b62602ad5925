// GEMM of quantised weights, one generic source for every instruction set: activations are rounded
// to 8 bits by blocks of 32 inputs, integer terms are summed exactly within a group that shares
// a scale, and groups are added in float32 from the first input to the last. See block_layout.h for
// the layout. Included after one of the bytes headers.
#pragma once

#include <cstdint>

#include "kernels/cpu/table.h"
#include "kernels/linear/block_layout.h"
#include "kernels/linear/cpu_impl.h"

namespace espalier::kernels {
namespace {

template <BlockFormat kFormat>
constexpr const BlockLayout& kLayoutOf = kBlockLayouts[static_cast<int>(kFormat)];

// v[k] gets bit k of each byte as its bit kAt.
template <int kAt>
inline void add_bit_of_each(simd::Bytes (&v)[8], simd::Bytes bits) {
  using namespace simd;
  v[0] = with_high_bits<0, 1, kAt>(v[0], bits);
  v[1] = with_high_bits<1, 1, kAt>(v[1], bits);
  v[2] = with_high_bits<2, 1, kAt>(v[2], bits);
  v[3] = with_high_bits<3, 1, kAt>(v[3], bits);
  v[4] = with_high_bits<4, 1, kAt>(v[4], bits);
  v[5] = with_high_bits<5, 1, kAt>(v[5], bits);
  v[6] = with_high_bits<6, 1, kAt>(v[6], bits);
  v[7] = with_high_bits<7, 1, kAt>(v[7], bits);
}

// The eight vectors of values of a panel's block, or of `offset` bytes on in each: v[k] holds
// inputs 4 k to 4 k + 3 of kWidth outputs.
template <BlockFormat kFormat>
inline void load_values(const std::byte* panel, simd::Bytes (&v)[8]) {
  using namespace simd;
  constexpr int64_t kBits = kLayoutOf<kFormat>.bits;
  if constexpr (kBits == 8) {
    for (int k = 0; k < 8; ++k) v[k] = load_bytes(panel + k * kVectorBytes);
    return;
  }
  if constexpr (kBits < 4) {
    for (int half = 0; half < 2; ++half) {
      const Bytes pairs = load_bytes(panel + half * kVectorBytes);
      v[4 * half] = pair_of_bits<0>(pairs);
      v[4 * half + 1] = pair_of_bits<2>(pairs);
      v[4 * half + 2] = pair_of_bits<4>(pairs);
      v[4 * half + 3] = pair_of_bits<6>(pairs);
    }
    if constexpr (kBits == 3) add_bit_of_each<2>(v, load_bytes(panel + 2 * kVectorBytes));
    return;
  }
  for (int j = 0; j < 4; ++j) {
    const Bytes both = load_bytes(panel + j * kVectorBytes);
    v[2 * j] = low_four(both);
    v[2 * j + 1] = high_four(both);
  }
  const std::byte* high = panel + 4 * kVectorBytes;
  if constexpr (kBits == 5) add_bit_of_each<4>(v, load_bytes(high));
  if constexpr (kBits == 6) {
    for (int half = 0; half < 2; ++half) {
      const Bytes bits = load_bytes(high + half * kVectorBytes);
      v[4 * half] = with_high_bits<0, 2, 4>(v[4 * half], bits);
      v[4 * half + 1] = with_high_bits<2, 2, 4>(v[4 * half + 1], bits);
      v[4 * half + 2] = with_high_bits<4, 2, 4>(v[4 * half + 2], bits);
      v[4 * half + 3] = with_high_bits<6, 2, 4>(v[4 * half + 3], bits);
    }
  }
  if constexpr (kLayoutOf<kFormat>.codebook >= 0) {
    const Bytes codebook = repeat_sixteen(kCodebooks[kLayoutOf<kFormat>.codebook]);
    for (int k = 0; k < 8; ++k) v[k] = look_up(codebook, v[k]);
  }
}

// Scales of kWidth outputs in one block of 32 inputs: of its half `half` where groups are of 16.
// block: its scales, at the first of the outputs' u8 or f16; d, dmin: the chunk's.
template <BlockFormat kFormat>
inline simd::F load_scale(const std::byte* block, int64_t output, int half, simd::F d) {
  using namespace simd;
  constexpr BlockScales kScales = kLayoutOf<kFormat>.scales;
  const std::byte* of_half = block + half * kUnitOutputs + output;
  if constexpr (kScales == BlockScales::kHalf) return load_f16(block + 2 * output);
  if constexpr (kScales == BlockScales::kExponent) return load_exponents(of_half);
  if constexpr (kScales == BlockScales::kUnsigned) return mul(d, load_u8(of_half));
  if constexpr (kScales == BlockScales::kSigned) return mul(d, load_s8(of_half));
  if constexpr (kScales == BlockScales::kNibbles) return mul(d, load_low_nibbles(of_half));
}
template <BlockFormat kFormat>
inline simd::F load_minimum(const std::byte* block, int64_t output, int half, simd::F dmin) {
  using namespace simd;
  constexpr BlockScales kScales = kLayoutOf<kFormat>.scales;
  if constexpr (kScales == BlockScales::kHalf) {
    return load_f16(block + 2 * kUnitOutputs + 2 * output);
  } else if constexpr (kScales == BlockScales::kNibbles) {
    return mul(dmin, load_high_nibbles(block + half * kUnitOutputs + output));
  } else {
    return mul(dmin, load_u8(block + kUnitOutputs + output));
  }
}

// Where the values of outputs [output, output + kWidth) begin in a block of a unit.
template <BlockFormat kFormat>
inline const std::byte* values_of(const std::byte* block, int64_t output) {
  constexpr BlockLayout kLayout = kLayoutOf<kFormat>;
  constexpr int64_t kPanelBytes = (kLayout.block_bytes - kLayout.scale_bytes) / 2;
  return block + kLayout.scale_bytes + output / kPanelOutputs * kPanelBytes +
         output % kPanelOutputs * 4;
}

// One group of inputs of some rows: vectors [k_begin, k_begin + kCount) of v.
template <BlockFormat kFormat, int64_t kRows, int kCount>
inline void add_group(const simd::Bytes* v, const std::byte* x, int64_t x_stride,
                      const ActivationBlock* const* about, int half, simd::F scale,
                      simd::F (&sums)[kRows]) {
  using namespace simd;
  constexpr bool kWide = kLayoutOf<kFormat>.zero == 128;
  constexpr int32_t kZero = static_cast<int32_t>(kLayoutOf<kFormat>.zero) - (kWide ? kWideZero : 0);
  I dots[kRows];
  for (int64_t r = 0; r < kRows; ++r) {
    const int32_t sum = kCount == 8 ? about[r]->sums[0] + about[r]->sums[1] : about[r]->sums[half];
    dots[r] = set1_int(-kZero * sum);
  }
  for (int k = 0; k < kCount; ++k) {
    for (int64_t r = 0; r < kRows; ++r) {
      const Bytes four = repeat_four(reinterpret_cast<const int8_t*>(x + r * x_stride + 4 * k));
      dots[r] = kWide ? dot_wide(dots[r], v[k], four) : dot_small(dots[r], v[k], four);
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    sums[r] = fma(to_floats(dots[r]), mul(scale, set1(about[r]->scale)), sums[r]);
  }
}

template <BlockFormat kFormat, int64_t kRows>
inline void rows_by_unit_blocks(const LinearTask& task, int64_t unit, int64_t row) {
  using namespace simd;
  constexpr BlockLayout kLayout = kLayoutOf<kFormat>;
  const std::byte* w = task.weights + static_cast<size_t>(unit) * task.unit_bytes;
  const std::byte* x = static_cast<const std::byte*>(task.prepared) + row * task.prepared_stride;
  F sums[kUnitVectors][kRows];
  for (auto& of_vector : sums) {
    for (F& sum : of_vector) sum = zero();
  }
  F d[kUnitVectors], dmin[kUnitVectors];
  for (int64_t vector = 0; vector < kUnitVectors; ++vector) d[vector] = dmin[vector] = zero();
  const int64_t blocks = task.padded_in / kBlockInputs;
  for (int64_t block = 0; block < blocks; ++block, x += kBlockInputs) {
    if constexpr (kLayout.header_bytes > 0) {
      if (block % (kLayout.chunk / kBlockInputs) == 0) {
        for (int64_t vector = 0; vector < kUnitVectors; ++vector) {
          d[vector] = load_f16(w + 2 * vector * kWidth);
          if (kLayout.minima) dmin[vector] = load_f16(w + 2 * (kUnitOutputs + vector * kWidth));
        }
        w += kLayout.header_bytes;
      }
    }
    for (int64_t line = 0; line < kLayout.block_bytes; line += 64) {
      prefetch(w + kPrefetchBytes + line);
    }
    const ActivationBlock* about[kRows];
    for (int64_t r = 0; r < kRows; ++r) {
      about[r] =
          reinterpret_cast<const ActivationBlock*>(
              x - block * kBlockInputs + r * task.prepared_stride + task.prepared_stride / 3 * 2) +
          block;
    }
    for (int64_t vector = 0; vector < kUnitVectors; ++vector) {
      const int64_t output = vector * kWidth;
      Bytes v[8];
      load_values<kFormat>(values_of<kFormat>(w, output), v);
      if constexpr (kLayout.group == 16) {
        for (int half = 0; half < 2; ++half) {
          add_group<kFormat, kRows, 4>(v + 4 * half, x + 16 * half, task.prepared_stride, about,
                                       half, load_scale<kFormat>(w, output, half, d[vector]),
                                       sums[vector]);
          if constexpr (kLayout.minima) {
            const F minimum = load_minimum<kFormat>(w, output, half, dmin[vector]);
            for (int64_t r = 0; r < kRows; ++r) {
              const float sum = about[r]->scale * static_cast<float>(about[r]->sums[half]);
              sums[vector][r] = fnma(minimum, set1(sum), sums[vector][r]);
            }
          }
        }
      } else {
        add_group<kFormat, kRows, 8>(v, x, task.prepared_stride, about, 0,
                                     load_scale<kFormat>(w, output, 0, d[vector]), sums[vector]);
        if constexpr (kLayout.minima) {
          const F minimum = load_minimum<kFormat>(w, output, 0, dmin[vector]);
          for (int64_t r = 0; r < kRows; ++r) {
            sums[vector][r] = fnma(minimum, set1(about[r]->scaled_sum), sums[vector][r]);
          }
        }
      }
    }
    w += kLayout.block_bytes;
  }
  for (int64_t r = 0; r < kRows; ++r) {
    F of_row[kUnitVectors];
    for (int64_t vector = 0; vector < kUnitVectors; ++vector) of_row[vector] = sums[vector][r];
    finish_row(task, unit, row + r, of_row);
  }
}

template <BlockFormat kFormat, int64_t kRows>
inline void last_rows_blocks(const LinearTask& task, int64_t unit, int64_t row) {
  if constexpr (kRows > 0) {
    if (task.rows - row < kRows) return last_rows_blocks<kFormat, kRows - 1>(task, unit, row);
    rows_by_unit_blocks<kFormat, kRows>(task, unit, row);
  }
}

template <BlockFormat kFormat>
void linear_blocks(const LinearTask& task, int64_t unit_begin, int64_t unit_end, void*) {
  for (int64_t unit = unit_begin; unit < unit_end; ++unit) {
    for (int64_t row = 0; row < task.rows; row += simd::kQuantRows) {
      last_rows_blocks<kFormat, simd::kQuantRows>(task, unit, row);
    }
  }
}

// One block of activations. What is no number, or infinite, makes the row's sums no numbers.
inline void round_block(const float* x, int8_t* values, ActivationBlock* about) {
  using namespace simd;
  F most = zero(), wrong = zero();
  for (int64_t i = 0; i < kBlockInputs; i += kWidth) {
    const F v = load(x + i);
    most = max(most, abs(v));
    wrong = add(wrong, sub(v, v));
  }
  const float largest = reduce_max(most), spoilt = reduce_add(wrong);
  // Below this 127 / largest is no float32; such a block is nothing beside any other.
  const bool some = largest > 0x1p-119f && spoilt == 0;
  const F inverse = set1(some ? 127.0f / largest : 0.0f);
  F sums[2] = {zero(), zero()};
  for (int64_t i = 0; i < kBlockInputs; i += kWidth) {
    const F whole = some ? round(mul(load(x + i), inverse)) : zero();
    sums[i / 16] = add(sums[i / 16], whole);
    store_s8(values + i, whole);
  }
  const float first = reduce_add(sums[0]), second = reduce_add(sums[1]);
  about->scale = (some ? largest / 127.0f : 0.0f) + spoilt;
  about->scaled_sum = about->scale * (first + second);
  about->sums[0] = static_cast<int32_t>(first);
  about->sums[1] = static_cast<int32_t>(second);
}

// See ActivationBlock for the layout of `prepared`.
inline void prepare_blocks_rows(const float* x, int64_t x_stride, int64_t row_begin,
                                int64_t row_end, int64_t in_features, int64_t padded_in,
                                void* prepared) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* from = x + row * x_stride;
    auto* values = static_cast<int8_t*>(prepared) + row * (padded_in / 2 * 3);
    auto* about = reinterpret_cast<ActivationBlock*>(values + padded_in);
    for (int64_t in = 0; in < padded_in; in += kBlockInputs, ++about) {
      if (in + kBlockInputs <= in_features) {
        round_block(from + in, values + in, about);
        continue;
      }
      float part[kBlockInputs] = {};
      for (int64_t i = in; i < in_features; ++i) part[i - in] = from[i];
      round_block(part, values + in, about);
    }
  }
}

}  // namespace
}  // namespace espalier::kernels
