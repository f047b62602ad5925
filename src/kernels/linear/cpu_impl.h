// GEMM on vectors, one generic source for every instruction set: a few rows of x by one unit of 32
// outputs at a time, each output's sum in one lane, over the inputs from first to last. See
// PackedMatrix for the layout of the weights.
#pragma once

#include <cstdint>

#include "kernels/cpu/math.h"
#include "kernels/cpu/table.h"

namespace espalier::kernels {
namespace {

constexpr int64_t kUnitVectors = kUnitOutputs / simd::kWidth;

// Writes one row of a unit's sums: bias and residual, or the gate.
inline void finish_row(const LinearTask& task, int64_t unit, int64_t row, const simd::F* sums) {
  using namespace simd;
  const int64_t unit_outputs = task.gate_up ? kUnitOutputs / 2 : kUnitOutputs;
  const int64_t vectors = unit_outputs / kWidth;
  float* y = task.y + row * task.y_stride + unit * unit_outputs;
  for (int64_t v = 0; v < vectors; ++v) {
    const int64_t out = unit * unit_outputs + v * kWidth;
    const int64_t left = task.out_features - out;
    if (left <= 0) return;
    F value = task.gate_up ? mul(silu(sums[v]), sums[vectors + v]) : sums[v];
    float* to = y + v * kWidth;
    if (left >= kWidth) {
      if (task.bias != nullptr) value = add(value, load(task.bias + out));
      if (task.accumulate) value = add(value, load(to));
      store(to, value);
    } else {
      if (task.bias != nullptr) value = add(value, load_part(task.bias + out, left, 0));
      if (task.accumulate) value = add(value, load_part(to, left, 0));
      store_part(to, left, value);
    }
  }
}

template <int64_t kRows>
inline void rows_by_unit_f32(const LinearTask& task, int64_t unit, int64_t row) {
  using namespace simd;
  const auto* w =
      reinterpret_cast<const float*>(task.weights + static_cast<size_t>(unit) * task.unit_bytes);
  const float* x = task.x + row * task.x_stride;
  F sums[kRows][kUnitVectors];
  for (auto& row_sums : sums) {
    for (F& sum : row_sums) sum = zero();
  }
  for (int64_t in = 0; in < task.in_features; ++in, w += kUnitOutputs) {
    prefetch(w + 16 * kUnitOutputs);
    prefetch(w + 16 * kUnitOutputs + 16);
    for (int64_t v = 0; v < kUnitVectors; ++v) {
      const F weights = load(w + v * kWidth);
      for (int64_t r = 0; r < kRows; ++r) {
        sums[r][v] = fma(set1(x[r * task.x_stride + in]), weights, sums[r][v]);
      }
    }
  }
  for (int64_t r = 0; r < kRows; ++r) finish_row(task, unit, row + r, sums[r]);
}

// The prepared activations are float32 that were rounded to bfloat16.
template <int64_t kRows>
inline void rows_by_unit_bf16(const LinearTask& task, int64_t unit, int64_t row) {
  using namespace simd;
  constexpr int64_t kPanelVectors = kUnitVectors / 2;
  const auto* w =
      reinterpret_cast<const uint16_t*>(task.weights + static_cast<size_t>(unit) * task.unit_bytes);
  const float* x = static_cast<const float*>(task.prepared) + row * task.padded_in;
  F sums[kRows][kUnitVectors];
  for (auto& row_sums : sums) {
    for (F& sum : row_sums) sum = zero();
  }
  for (int64_t block = 0; block < task.padded_in; block += 32, w += 1024) {
    for (int64_t pair = 0; pair < 16; ++pair) {
      const int64_t in = block + 2 * pair;
      prefetch(w + 1024 + pair * 64);
      prefetch(w + 1024 + pair * 64 + 32);
      for (int64_t v = 0; v < kUnitVectors; ++v) {
        const Pair weights = load_pairs(w + (v / kPanelVectors) * 512 + pair * 32 +
                                        (v % kPanelVectors) * 2 * kWidth);
        for (int64_t r = 0; r < kRows; ++r) {
          const float* from = x + r * task.padded_in + in;
          sums[r][v] = fma(set1(from[0]), weights.first, sums[r][v]);
          sums[r][v] = fma(set1(from[1]), weights.second, sums[r][v]);
        }
      }
    }
  }
  for (int64_t r = 0; r < kRows; ++r) finish_row(task, unit, row + r, sums[r]);
}

// Rows of the remainder: the same text with fewer rows, so the same sums.
template <bool kBf16, int64_t kRows>
inline void last_rows(const LinearTask& task, int64_t unit, int64_t row) {
  if constexpr (kRows > 0) {
    if (task.rows - row < kRows) return last_rows<kBf16, kRows - 1>(task, unit, row);
    if constexpr (kBf16) {
      rows_by_unit_bf16<kRows>(task, unit, row);
    } else {
      rows_by_unit_f32<kRows>(task, unit, row);
    }
  }
}

template <bool kBf16>
void linear_units(const LinearTask& task, int64_t unit_begin, int64_t unit_end, void*) {
  for (int64_t unit = unit_begin; unit < unit_end; ++unit) {
    for (int64_t row = 0; row < task.rows; row += simd::kLinearRows) {
      last_rows<kBf16, simd::kLinearRows>(task, unit, row);
    }
  }
}

inline void prepare_bf16_as_f32(const float* x, int64_t x_stride, int64_t row_begin,
                                int64_t row_end, int64_t in_features, int64_t padded_in,
                                void* prepared) {
  using namespace simd;
  uint16_t rounded[kWidth];
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* from = x + row * x_stride;
    float* to = static_cast<float*>(prepared) + row * padded_in;
    int64_t in = 0;
    for (; in + kWidth <= in_features; in += kWidth) {
      store_bf16(rounded, load(from + in));
      store(to + in, load_bf16(rounded));
    }
    if (in < in_features) {
      store_bf16(rounded, load_part(from + in, in_features - in, 0));
      store(to + in, load_bf16(rounded));  // padded_in is a multiple of 32
      in += kWidth;
    }
    for (; in < padded_in; in += kWidth) store(to + in, zero());
  }
}

}  // namespace
}  // namespace espalier::kernels
