// GEMM of quantised weights on AMX tiles, for kBlockTileRows rows and more; fewer rows use VNNI.
// Both sum the same integers and add the groups in the same order, so a row's result has the same
// bits in both.
//
// For kGroup units and kSlice inputs at a time the weights are unpacked to signed bytes and float32
// scales (12 KiB a unit, in L2), which every 16 rows then use: a tile MMA of a block of 32
// inputs (or two, of 16) leaves integers in memory, and vectors scale them and add them to 16 sums
// that stay in registers over the slice, while the tile results of the next blocks run.
// Activations of 16 rows are adjacent (prepare_block_tiles), so that they are read as one stream.
// Figures: docs/notes/cpu_linear.md.
#include "kernels/cpu/bytes_avx512.h"
// The vectors come first: what follows is written in them.
#include "kernels/linear/cpu_blocks_impl.h"

namespace espalier::kernels {
namespace {

constexpr int64_t kGroup = 8;    // units
constexpr int64_t kSlice = 256;  // inputs
constexpr int64_t kSliceBlocks = kSlice / kBlockInputs;
constexpr int64_t kTileRows = 16;
constexpr int64_t kTileSums = kTileRows * kUnitOutputs;  // of one unit
constexpr int64_t kRowsAtOnce = 896;
constexpr int64_t kTurns = 4;  // buffers of tile results
constexpr int64_t kTurnsAhead = 2;

// A slice of a unit.
struct alignas(64) UnpackedUnit {
  int8_t values[kSliceBlocks][2][8 * kVectorBytes];  // by block and panel, less zero
  float scales[kSliceBlocks][2][kUnitOutputs];       // the second where groups are of 16
  float minima[kSliceBlocks][2][kUnitOutputs];       // the same
};

struct alignas(64) Scratch {
  float sums[kRowsAtOnce / kTileRows * kGroup * kTileSums];  // [row tile][unit][16][32]
  UnpackedUnit units[kGroup];
  int32_t tile_results[kTurns][2][kTileRows * 16];  // in turns; of each half
};
static_assert(sizeof(Scratch) <= kLinearScratchBytes);

// prepared, for each 16 rows, 24 padded_in bytes apart: [padded_in / 32][16][32] int8, then
// [padded_in / 32][16] float32 of scales, then three times as many sums of the values times scale:
// of each block's 32, of its first half, of its second.
void prepare_block_tiles(const float* x, int64_t x_stride, int64_t row_begin, int64_t row_end,
                         int64_t in_features, int64_t padded_in, void* prepared) {
  for (int64_t row = row_begin; row < row_end; ++row) {
    const float* from = x + row * x_stride;
    const int64_t in_tile = row % kTileRows;
    auto* tile = static_cast<int8_t*>(prepared) + row / kTileRows * (24 * padded_in);
    auto* scales = reinterpret_cast<float*>(tile + kTileRows * padded_in) + in_tile;
    float* scaled_sums = scales + padded_in / 2;
    for (int64_t in = 0; in < padded_in; in += kBlockInputs) {
      int8_t* values = tile + (in * kTileRows + in_tile * kBlockInputs);
      ActivationBlock about;
      if (in + kBlockInputs <= in_features) {
        round_block(from + in, values, &about);
      } else {
        float part[kBlockInputs] = {};
        for (int64_t i = in; i < in_features; ++i) part[i - in] = from[i];
        round_block(part, values, &about);
      }
      scales[in / 2] = about.scale;
      scaled_sums[in / 2] = about.scaled_sum;
      for (int half = 0; half < 2; ++half) {
        scaled_sums[(half + 1) * (padded_in / 2) + in / 2] =
            about.scale * static_cast<float>(about.sums[half]);
      }
    }
  }
}

// Where a unit's weights begin from a block on that is the first of a chunk.
template <BlockFormat kFormat>
inline const std::byte* slice_of(const LinearTask& task, int64_t unit, int64_t first_block) {
  constexpr BlockLayout kLayout = kLayoutOf<kFormat>;
  constexpr int64_t kChunkBlocks = kLayout.chunk / kBlockInputs;
  return task.weights + static_cast<size_t>(unit) * task.unit_bytes +
         first_block / kChunkBlocks * kLayout.chunk_bytes;
}

template <BlockFormat kFormat>
void unpack(const LinearTask& task, int64_t unit, int64_t first_block, int64_t blocks,
            UnpackedUnit& out) {
  using namespace simd;
  constexpr BlockLayout kLayout = kLayoutOf<kFormat>;
  const std::byte* w = slice_of<kFormat>(task, unit, first_block);
  F d[2] = {zero(), zero()}, dmin[2] = {zero(), zero()};
  if constexpr (kLayout.header_bytes > 0) {  // a slice is one chunk
    for (int64_t panel = 0; panel < 2; ++panel) {
      d[panel] = load_f16(w + 32 * panel);
      if (kLayout.minima) dmin[panel] = load_f16(w + 64 + 32 * panel);
    }
    w += kLayout.header_bytes;
  }
  for (int64_t block = 0; block < blocks; ++block, w += kLayout.block_bytes) {
    for (int64_t line = 0; line < kLayout.block_bytes; line += 64) {
      prefetch(w + kPrefetchBytes + line);
    }
    for (int64_t panel = 0; panel < 2; ++panel) {
      const int64_t output = panel * kPanelOutputs;
      for (int half = 0; half < kBlockInputs / kLayout.group; ++half) {
        store(out.scales[block][half] + output, load_scale<kFormat>(w, output, half, d[panel]));
        if constexpr (kLayout.minima) {
          store(out.minima[block][half] + output,
                load_minimum<kFormat>(w, output, half, dmin[panel]));
        }
      }
      Bytes v[8];
      load_values<kFormat>(values_of<kFormat>(w, output), v);
      for (int k = 0; k < 8; ++k) {
        store_bytes(
            out.values[block][panel] + k * kVectorBytes,
            kLayout.zero == 0 ? v[k] : subtract_bytes(v[k], static_cast<int>(kLayout.zero)));
      }
    }
  }
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0 to 3: tile results; 4, 5: activations, [16][group] bytes; 6, 7: weights, [group /
// 4][64].
inline void configure_tiles(int64_t group) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.column_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? group : 64);
    config.rows[i] = static_cast<uint8_t>(i < 6 ? kTileRows : group / 4);
  }
  // GCC's intrinsic declares that it reads the first bytes only; without this the compiler drops
  // the other stores.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

// 16 rows of activations by one panel of a block.
template <BlockFormat kFormat>
inline void multiply_tile(const int8_t* x, const int8_t* values,
                          int32_t (&tile_results)[2][kTileRows * 16]) {
  _tile_zero(0);
  _tile_loadd(4, x, kBlockInputs);
  _tile_loadd(6, values, 64);
  _tile_dpbssd(0, 4, 6);
  _tile_stored(0, tile_results[0], 64);
  if constexpr (kLayoutOf<kFormat>.group == 16) {
    _tile_zero(1);
    _tile_loadd(5, x + 16, kBlockInputs);
    _tile_loadd(7, values + 4 * kVectorBytes, 64);
    _tile_dpbssd(1, 5, 7);
    _tile_stored(1, tile_results[1], 64);
  }
}

// A slice of 16 rows of activations.
struct Activations {
  const int8_t* values;  // [blocks][16][32]
  const float* scales;   // [blocks][16]
  // The same: of whole blocks, or of first halves and, half_stride on, of second ones.
  const float* scaled_sums;
  int64_t half_stride;
};

template <BlockFormat kFormat>
inline Activations activations_of(const LinearTask& task, int64_t row, int64_t first_block) {
  const int64_t padded_in = task.prepared_stride / 3 * 2;  // of the activations
  const auto* tile = static_cast<const int8_t*>(task.prepared) + row * task.prepared_stride;
  const auto* scales =
      reinterpret_cast<const float*>(tile + kTileRows * padded_in) + first_block * kTileRows;
  const int64_t plane = padded_in / 2;  // of one number a row and block
  return {tile + first_block * (kTileRows * kBlockInputs), scales,
          scales + (kLayoutOf<kFormat>.group == 16 ? 2 : 1) * plane, plane};
}

// Multiplies 16 rows by one panel of a unit over a slice; sums: [16][32], at the panel's first
// output. next: null, or packed weights to prefetch, one eighth of them with each block. Kept out
// of line, since 16 sums and their operands take all registers.
template <BlockFormat kFormat>
__attribute__((noinline)) void multiply_panel(Activations x, bool first, int64_t blocks,
                                              const UnpackedUnit& unit, int64_t panel,
                                              int32_t (&tile_results)[kTurns][2][kTileRows * 16],
                                              float* sums, const std::byte* next) {
  using namespace simd;
  constexpr BlockLayout kLayout = kLayoutOf<kFormat>;
  constexpr int64_t kTileBytes = kTileRows * kBlockInputs;
  const int64_t output = panel * kPanelOutputs;
  F s[kTileRows];
#pragma GCC unroll 16
  for (int64_t r = 0; r < kTileRows; ++r) s[r] = first ? zero() : load(sums + r * kUnitOutputs);
  for (int64_t block = 0; block < kTurnsAhead && block < blocks; ++block) {
    multiply_tile<kFormat>(x.values + block * kTileBytes, unit.values[block][panel],
                           tile_results[block]);
  }
  for (int64_t block = 0; block < blocks; ++block) {
    if (next != nullptr) {
      for (int64_t line = 0; line < kLayout.block_bytes / 2; line += 64) {
        prefetch(next + block * kLayout.block_bytes / 2 + line);
      }
    }
    if (const int64_t later = block + kTurnsAhead; later < blocks) {
      multiply_tile<kFormat>(x.values + later * kTileBytes, unit.values[later][panel],
                             tile_results[later % kTurns]);
    }
    for (int half = 0; half < kBlockInputs / kLayout.group; ++half) {
      const F scale = load(unit.scales[block][half] + output);
      const int32_t* of_half = tile_results[block % kTurns][half];
      const float* scales = x.scales + block * kTileRows;
#pragma GCC unroll 16
      for (int64_t r = 0; r < kTileRows; ++r) {
        s[r] =
            fma(to_floats(_mm512_load_si512(of_half + r * 16)), mul(scale, set1(scales[r])), s[r]);
      }
      if constexpr (kLayout.minima) {
        const F minimum = load(unit.minima[block][half] + output);
        const float* scaled_sums = x.scaled_sums + half * x.half_stride + block * kTileRows;
#pragma GCC unroll 16
        for (int64_t r = 0; r < kTileRows; ++r) s[r] = fnma(minimum, set1(scaled_sums[r]), s[r]);
      }
    }
  }
#pragma GCC unroll 16
  for (int64_t r = 0; r < kTileRows; ++r) store(sums + r * kUnitOutputs, s[r]);
}

inline void finish_tile(const LinearTask& task, int64_t row, int64_t row_end, int64_t unit_begin,
                        int64_t unit_end, const float* sums) {
  const int64_t rows = row_end - row < kTileRows ? row_end - row : kTileRows;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t unit = unit_begin; unit < unit_end; ++unit) {
      const float* from = sums + (unit - unit_begin) * kTileSums + r * kUnitOutputs;
      const simd::F pair[2] = {simd::load(from), simd::load(from + 16)};
      finish_row(task, unit, row + r, pair);
    }
  }
}

// Rows [row_begin, row_end), at most kRowsAtOnce, by units [unit_begin, unit_end), at most kGroup.
// Rows up to the next multiple of 16 have room in `prepared`; what they hold goes nowhere.
template <BlockFormat kFormat>
void multiply_group(const LinearTask& task, int64_t row_begin, int64_t row_end, int64_t unit_begin,
                    int64_t unit_end, Scratch& scratch) {
  const int64_t all_blocks = task.padded_in / kBlockInputs;
  for (int64_t first = 0; first < all_blocks; first += kSliceBlocks) {
    const int64_t blocks = all_blocks - first < kSliceBlocks ? all_blocks - first : kSliceBlocks;
    for (int64_t unit = unit_begin; unit < unit_end; ++unit) {
      unpack<kFormat>(task, unit, first, blocks, scratch.units[unit - unit_begin]);
    }
    for (int64_t row = row_begin; row < row_end; row += kTileRows) {
      float* sums = scratch.sums + (row - row_begin) / kTileRows * kGroup * kTileSums;
      const Activations x = activations_of<kFormat>(task, row, first);
      for (int64_t unit = unit_begin; unit < unit_end; ++unit) {
        // With the last rows, the weights of the next slice are prefetched.
        const std::byte* next =
            row + kTileRows < row_end ? nullptr : slice_of<kFormat>(task, unit, first + blocks);
        for (int64_t panel = 0; panel < 2; ++panel) {
          multiply_panel<kFormat>(
              x, first == 0, blocks, scratch.units[unit - unit_begin], panel, scratch.tile_results,
              sums + (unit - unit_begin) * kTileSums + panel * kPanelOutputs,
              next == nullptr ? next
                              : next + panel * (blocks * kLayoutOf<kFormat>.block_bytes / 2));
        }
      }
      if (first + blocks == all_blocks) finish_tile(task, row, row_end, unit_begin, unit_end, sums);
    }
  }
}

template <BlockFormat kFormat>
void linear_tiles_int8(const LinearTask& task, int64_t unit_begin, int64_t unit_end, void* memory) {
  if (task.rows < kBlockTileRows) return linear_blocks<kFormat>(task, unit_begin, unit_end, memory);
  auto& scratch = *static_cast<Scratch*>(memory);
  configure_tiles(kLayoutOf<kFormat>.group);
  // 16 rows alone use what they unpack once: a unit at a time, it stays in L1.
  const int64_t group = task.rows <= kTileRows ? 1 : kGroup;
  for (int64_t unit = unit_begin; unit < unit_end; unit += group) {
    const int64_t end = unit + group < unit_end ? unit + group : unit_end;
    for (int64_t row = 0; row < task.rows; row += kRowsAtOnce) {
      const int64_t row_end = row + kRowsAtOnce < task.rows ? row + kRowsAtOnce : task.rows;
      multiply_group<kFormat>(task, row, row_end, unit, end, scratch);
    }
  }
  _tile_release();
}

}  // namespace

constinit const PrepareFn kPrepareBlocksAmx = prepare_block_tiles;
constinit const LinearFn kLinearBlocksAmx[kNumBlockFormats] = {
    linear_tiles_int8<BlockFormat::kQ8_0>,  linear_tiles_int8<BlockFormat::kQ4_0>,
    linear_tiles_int8<BlockFormat::kQ4_1>,  linear_tiles_int8<BlockFormat::kQ5_0>,
    linear_tiles_int8<BlockFormat::kQ5_1>,  linear_tiles_int8<BlockFormat::kQ4K>,
    linear_tiles_int8<BlockFormat::kQ5K>,   linear_tiles_int8<BlockFormat::kQ6K>,
    linear_tiles_int8<BlockFormat::kQ2K>,   linear_tiles_int8<BlockFormat::kQ3K>,
    linear_tiles_int8<BlockFormat::kIq4Nl>, linear_tiles_int8<BlockFormat::kIq4Xs>,
    linear_tiles_int8<BlockFormat::kMxfp4>};

}  // namespace espalier::kernels
