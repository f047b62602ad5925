// How grouped GEMMs are divided into tiles. Internal to kernels/moe; pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace espalier::kernels::cuda {

// Rows of a tile: as many as a group has on average (of num_rows by num_groups, those of other
// ranks counted), since a tile reads its whole matrix whatever rows it has. It depends on host-side
// numbers alone, so that arrange() and grouped_linear() agree.
inline int32_t grouped_tile_rows(int32_t num_rows, int32_t num_groups) {
  const int64_t each = num_rows / num_groups;
  return each <= 16 ? 16 : each <= 96 ? 64 : 128;
}

// Upper bound of the number of tiles: each group has at most one that is not full.
inline int32_t most_tiles(int32_t num_rows, int32_t num_groups, int32_t tile_rows) {
  return num_rows / tile_rows + std::min(num_rows, num_groups);
}

}  // namespace espalier::kernels::cuda
