// The order in which an encoder reads the patches of a picture whose rows are made of squares of
// patches, or whose attention has windows: what belongs together lies together. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "media/processor.h"
#include "models/decoder_spec.h"

namespace espalier {

// Of patches.
struct PatchGrid {
  int32_t rows = 0, columns = 0;
  // Where a picture's tiles see each other: the grid of them, each of which has so many patches.
  int32_t tile_rows = 0, tile_columns = 0;

  int32_t num_tiles() const { return tile_rows * tile_columns; }
  // Of one tile.
  int32_t size() const { return rows * columns; }
  friend bool operator==(const PatchGrid&, const PatchGrid&) = default;
};

struct PatchOrder {
  struct Place {
    int32_t row = 0, column = 0;  // in the grid
  };
  std::vector<Place> places;         // of each patch as it is read
  std::vector<int32_t> window_ends;  // the patch behind each window's last, rising
  std::vector<int32_t> squares;      // of the picture, row by row: where each is read, in squares
};

// Windows row by row, in each its squares row by row, in each its patches row by row; a window at
// the right or below may be smaller. One window where there are none.
// REQUIRES: the grid's sides are multiples of patches.merge.
PatchOrder order_patches(const PatchGrid& grid, const PatchesSpec& patches);

// A picture's patches as an encoder takes them, [grid.size(), features()].
std::vector<float> cut_patches(const PixelValues& pixels, const PatchGrid& grid,
                               const PatchesSpec& patches);
// The same of frames of a video, at most patches.frames and of one size; the last one is repeated.
std::vector<float> cut_patches(std::span<const PixelValues> frames, const PatchGrid& grid,
                               const PatchesSpec& patches);

}  // namespace espalier
