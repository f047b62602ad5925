// GEMM in bfloat16 with AVX512-BF16: vdpbf16ps adds both terms of a pair of inputs to each of 16
// outputs. One dependent chain for each output, over the inputs from first to last, whatever the
// number of rows.
#include "kernels/cpu/simd_avx512.h"
// The vectors come first: what follows is written in them.
#include "kernels/cpu/table.h"
#include "kernels/linear/cpu_impl.h"

namespace espalier::kernels {
namespace {

constexpr int64_t kRowsTogether = 8;  // 16 sums, 2 weights and 1 activation in 32 registers

// prepared: [rows][padded_in] bfloat16.
void prepare_rows(const float* x, int64_t x_stride, int64_t row_begin, int64_t row_end,
                  int64_t in_features, int64_t padded_in, void* prepared) {
  using namespace simd;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* from = x + row * x_stride;
    uint16_t* to = static_cast<uint16_t*>(prepared) + row * padded_in;
    for (int64_t in = 0; in < padded_in; in += kWidth, to += kWidth) {
      const int64_t left = in_features - in;
      store_bf16(to, left >= kWidth ? load(from + in)
                     : left > 0     ? load_part(from + in, left, 0)
                                    : zero());
    }
  }
}

inline __m512bh pairs(const uint16_t* p) { return (__m512bh)_mm512_load_si512(p); }

template <int64_t kRows>
inline void rows_by_unit(const LinearTask& task, int64_t unit, int64_t row) {
  const auto* w =
      reinterpret_cast<const uint16_t*>(task.weights + static_cast<size_t>(unit) * task.unit_bytes);
  const uint16_t* x = static_cast<const uint16_t*>(task.prepared) + row * task.padded_in;
  __m512 sums[kRows][2];
  for (auto& row_sums : sums) row_sums[0] = row_sums[1] = _mm512_setzero_ps();
  for (int64_t block = 0; block < task.padded_in; block += 32, w += 1024) {
    for (int64_t pair = 0; pair < 16; ++pair) {
      simd::prefetch(w + 1024 + pair * 32);
      simd::prefetch(w + 1536 + pair * 32);
      const __m512bh w0 = pairs(w + pair * 32), w1 = pairs(w + 512 + pair * 32);
      for (int64_t r = 0; r < kRows; ++r) {
        int32_t both;
        __builtin_memcpy(&both, x + r * task.padded_in + block + 2 * pair, sizeof both);
        const __m512bh factors = (__m512bh)_mm512_set1_epi32(both);
        sums[r][0] = _mm512_dpbf16_ps(sums[r][0], w0, factors);
        sums[r][1] = _mm512_dpbf16_ps(sums[r][1], w1, factors);
      }
    }
  }
  for (int64_t r = 0; r < kRows; ++r) finish_row(task, unit, row + r, sums[r]);
}

template <int64_t kRows>
inline void last_rows_bf16(const LinearTask& task, int64_t unit, int64_t row) {
  if constexpr (kRows > 0) {
    if (task.rows - row < kRows) return last_rows_bf16<kRows - 1>(task, unit, row);
    rows_by_unit<kRows>(task, unit, row);
  }
}

void linear_bf16(const LinearTask& task, int64_t unit_begin, int64_t unit_end, void*) {
  for (int64_t unit = unit_begin; unit < unit_end; ++unit) {
    for (int64_t row = 0; row < task.rows; row += kRowsTogether) {
      last_rows_bf16<kRowsTogether>(task, unit, row);
    }
  }
}

}  // namespace

constinit const LinearFn kLinearAvx512Bf16 = linear_bf16;
constinit const PrepareFn kPrepareAvx512Bf16 = prepare_rows;

}  // namespace espalier::kernels
