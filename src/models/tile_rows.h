// What becomes of a picture that is read whole and in tiles (LLaVA-NeXT): the whole picture's rows,
// then the tiles' as one grid, without those of the margins, each line with a learned row behind
// it. Sizes and places are those of transformers' pack_image_features. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "models/decoder_spec.h"

namespace espalier {

// The rows of a picture's tiles, side by side.
struct TileGrid {
  int32_t tile_rows = 0, tile_columns = 0;  // tiles; 0: the picture is read whole alone
  int32_t side = 0;                         // rows of a tile along each side
  // The part of the grid that shows the picture.
  int32_t first_row = 0, num_rows = 0;
  int32_t first_column = 0, num_columns = 0;
  // What that part is reduced to; the same where it is not.
  int32_t lines = 0, line_length = 0;

  int32_t num_tiles() const { return tile_rows * tile_columns; }
};

// Of a picture of this size whose tiles come from `resolution`, each `side` rows wide and high.
TileGrid make_tile_grid(const ImageProcessorSpec::Size& picture, int32_t tile_rows,
                        int32_t tile_columns, int32_t side, int32_t tiles_max);

// How many rows a picture becomes.
int32_t num_rows_of(const TileGrid& grid, int32_t side);

// tiles: [1 + grid.num_tiles(), side * side, width], the whole picture first; line_end: [width];
// rows: [num_rows_of(grid), width].
void arrange_tile_rows(const TileGrid& grid, std::span<const float> tiles,
                       std::span<const float> line_end, std::span<float> rows);

}  // namespace espalier
