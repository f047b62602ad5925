// The rows of a picture that is read in tiles, each as one between rows of its tiles. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/embedding/op.h"
#include "models/tile_rows.h"

namespace espalier {

// The whole picture's rows, then those of the tiles' grid, and what ends a line as one that stands
// apart: what arrange_tile_rows() makes. side: rows of a tile along each side. begin: the first row
// of the tiles.
std::vector<kernels::MixedRow> mixed_rows(const TileGrid& grid, int32_t side, int32_t begin = 0);

}  // namespace espalier
