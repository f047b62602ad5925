// GEMM in bfloat16 on AMX tiles, for one row as for a thousand, so that a row's result is the same
// in both: a tile's rows are independent, and each accumulates the same blocks of 32 inputs in the
// same order.
//
// Up to 32 rows by 32 outputs (one unit) are four tiles of sums; a block of 32 inputs is up to two
// tiles of activations (16 rows each, as prepare_tiles lays them out) and two tiles of weights (one
// panel each, as they are stored).
//
// Cache blocking for many rows: for kGroup units at a time and kSlice inputs at a time, 32 rows of
// activations (16 KiB) stay in L1 while the group's weights (128 KiB) come from L2; sums are kept
// in scratch between slices, exactly.
#include "kernels/cpu/simd_avx512.h"
// The vectors come first: what follows is written in them.
#include "kernels/cpu/table.h"
#include "kernels/linear/cpu_impl.h"

namespace espalier::kernels {
namespace {

constexpr int64_t kGroup = 8;      // units
constexpr int64_t kSlice = 256;    // inputs
constexpr int64_t kTileRows = 16;  // kRowGroup
constexpr int64_t kTileElements = 16 * 32;
constexpr int64_t kBlockRows = 32;  // two tiles
constexpr int64_t kBlockSums = kBlockRows * kUnitOutputs;
constexpr int64_t kRowsAtOnce =
    static_cast<int64_t>(kLinearScratchBytes) / (kGroup * kUnitOutputs * 4);  // sums in scratch
static_assert(kRowsAtOnce % kBlockRows == 0);

// prepared: [rows / 16][padded_in / 32][16][32] bfloat16: one tile after the other.
void prepare_tiles(const float* x, int64_t x_stride, int64_t row_begin, int64_t row_end,
                   int64_t in_features, int64_t padded_in, void* prepared) {
  using namespace simd;
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* from = x + row * x_stride;
    uint16_t* to = static_cast<uint16_t*>(prepared) + row / kTileRows * kTileRows * padded_in +
                   row % kTileRows * 32;
    for (int64_t in = 0; in < padded_in; in += kWidth) {
      const int64_t left = in_features - in;
      store_bf16(to + in / 32 * kTileElements + in % 32, left >= kWidth ? load(from + in)
                                                         : left > 0 ? load_part(from + in, left, 0)
                                                                    : zero());
    }
  }
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {};
};

// Tiles 0 to 3: sums (rows 0-15 by panel 0, by panel 1, rows 16-31 by panel 0, by panel 1); 4, 5:
// activations; 6, 7: weights.
inline void configure_tiles(int64_t rows) {
  TileConfig config;
  const auto low = static_cast<uint8_t>(rows < kTileRows ? rows : kTileRows);
  const auto high = static_cast<uint8_t>(rows > kTileRows ? rows - kTileRows : kTileRows);
  const uint8_t tile_rows[8] = {low, low, high, high, low, high, 16, 16};
  for (int i = 0; i < 8; ++i) config.rows[i] = tile_rows[i];
  // GCC's intrinsic declares that it reads the first bytes only; without this the compiler drops
  // the other stores.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// Multiplies one block of rows by one unit over `blocks` blocks of 32 inputs. x: the first tile of
// activations, the second (kTwo) `x_step` elements on. sums: [32][32]; first: they start at zero.
// kAhead: prefetches the weights after these, which come from memory. Kept out of line, since
// within the loops around it the compiler runs out of registers for addresses.
template <bool kTwo, bool kAhead>
__attribute__((noinline)) void multiply_block(const uint16_t* x, int64_t x_step, const uint16_t* w,
                                              int64_t blocks, bool first, float* sums) {
  constexpr int64_t kStride = kUnitOutputs * sizeof(float);
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (kTwo) {
      _tile_zero(2);
      _tile_zero(3);
    }
  } else {
    _tile_loadd(0, sums, kStride);
    _tile_loadd(1, sums + 16, kStride);
    if constexpr (kTwo) {
      _tile_loadd(2, sums + kTileRows * kUnitOutputs, kStride);
      _tile_loadd(3, sums + kTileRows * kUnitOutputs + 16, kStride);
    }
  }
  for (int64_t block = 0; block < blocks; ++block, x += kTileElements, w += 2 * kTileElements) {
    if constexpr (kAhead) {
#pragma GCC unroll 32
      for (int64_t line = 0; line < 32; ++line) simd::prefetch(w + 2 * kTileElements + line * 32);
    }
    _tile_loadd(6, w, 64);
    _tile_loadd(4, x, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + kTileElements, 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwo) {
      _tile_loadd(5, x + x_step, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, kStride);
  _tile_stored(1, sums + 16, kStride);
  if constexpr (kTwo) {
    _tile_stored(2, sums + kTileRows * kUnitOutputs, kStride);
    _tile_stored(3, sums + kTileRows * kUnitOutputs + 16, kStride);
  }
}

inline void multiply_rows(int64_t rows, bool ahead, const uint16_t* x, int64_t x_step,
                          const uint16_t* w, int64_t blocks, bool first, float* sums) {
  if (rows > kTileRows) {
    ahead ? multiply_block<true, true>(x, x_step, w, blocks, first, sums)
          : multiply_block<true, false>(x, x_step, w, blocks, first, sums);
  } else {
    ahead ? multiply_block<false, true>(x, x_step, w, blocks, first, sums)
          : multiply_block<false, false>(x, x_step, w, blocks, first, sums);
  }
}

// Writes the sums of a block of rows, row by row: a row's outputs of all units are adjacent.
inline void finish_block(const LinearTask& task, int64_t row, int64_t rows, int64_t unit_begin,
                         int64_t unit_end, const float* sums) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t unit = unit_begin; unit < unit_end; ++unit) {
      const float* from = sums + (unit - unit_begin) * kBlockSums + r * kUnitOutputs;
      const simd::F pair[2] = {simd::load(from), simd::load(from + 16)};
      finish_row(task, unit, row + r, pair);
    }
  }
}

// Rows [row_begin, row_end), at most kRowsAtOnce, by units [unit_begin, unit_end), at most kGroup.
void multiply_group(const LinearTask& task, int64_t row_begin, int64_t row_end, int64_t unit_begin,
                    int64_t unit_end, float* scratch) {
  // With one block of rows there is nothing to use again: one unit's weights from end to end.
  const int64_t slice = row_end - row_begin <= kBlockRows ? task.padded_in : kSlice;
  const auto* x = static_cast<const uint16_t*>(task.prepared);
  int64_t configured = 0;
  for (int64_t in = 0; in < task.padded_in; in += slice) {
    const int64_t left = task.padded_in - in;
    const int64_t blocks = (left < slice ? left : slice) / 32;
    for (int64_t row = row_begin; row < row_end; row += kBlockRows) {
      const int64_t rows = row_end - row < kBlockRows ? row_end - row : kBlockRows;
      if (rows != configured) configure_tiles(configured = rows);
      float* sums = scratch + (row - row_begin) / kBlockRows * kGroup * kBlockSums;
      for (int64_t unit = unit_begin; unit < unit_end; ++unit) {
        const auto* w = reinterpret_cast<const uint16_t*>(task.weights + static_cast<size_t>(unit) *
                                                                             task.unit_bytes) +
                        in / 32 * 2 * kTileElements;
        multiply_rows(rows, row == row_begin, x + row * task.padded_in + in / 32 * kTileElements,
                      kTileRows * task.padded_in, w, blocks, in == 0,
                      sums + (unit - unit_begin) * kBlockSums);
      }
      if (in + slice >= task.padded_in) finish_block(task, row, rows, unit_begin, unit_end, sums);
    }
  }
}

void linear_tiles(const LinearTask& task, int64_t unit_begin, int64_t unit_end, void* scratch) {
  for (int64_t unit = unit_begin; unit < unit_end; unit += kGroup) {
    const int64_t end = unit + kGroup < unit_end ? unit + kGroup : unit_end;
    for (int64_t row = 0; row < task.rows; row += kRowsAtOnce) {
      const int64_t row_end = row + kRowsAtOnce < task.rows ? row + kRowsAtOnce : task.rows;
      multiply_group(task, row, row_end, unit, end, static_cast<float*>(scratch));
    }
  }
  _tile_release();
}

}  // namespace

constinit const LinearFn kLinearAmx = linear_tiles;
constinit const PrepareFn kPrepareAmx = prepare_tiles;

}  // namespace espalier::kernels
