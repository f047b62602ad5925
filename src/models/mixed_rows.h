// Rows between four rows of an array: those of a picture that is read in tiles, and the learned
// positions of patches that lie between those of a grid. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/embedding/op.h"
#include "models/patch_order.h"
#include "models/tile_rows.h"

namespace espalier {

// The whole picture's rows, then those of the tiles' grid, and what ends a line as one that stands
// apart: what arrange_tile_rows() makes. side: rows of a tile along each side. begin: the first row
// of the tiles.
std::vector<kernels::MixedRow> mixed_rows(const TileGrid& grid, int32_t side, int32_t begin = 0);

// Of each patch in `order` its place among side * side learned positions, row by row, where the
// grid's corners lie on the positions' corners; empty where side is 0.
std::vector<kernels::MixedRow> grid_positions(const PatchOrder& order, const PatchGrid& grid,
                                              int32_t side);

}  // namespace espalier
