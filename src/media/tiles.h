// Pictures that are read whole and in tiles of the size that the encoder reads, as transformers'
// processors cut them: fitted into the resolution that keeps most of it, between black margins
// (LLaVA-NeXT, Liu et al. 2024), or stretched to the grid of tiles whose shape is nearest to its
// own (InternVL, Chen et al. 2024). Pure and thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "media/processor.h"

namespace espalier {

// The one of `resolutions` that shows most pixels of a picture of this size, and of equal ones that
// with the least margins, the first of them. REQUIRES: there is one.
ImageProcessorSpec::Size best_resolution(std::span<const ImageProcessorSpec::Size> resolutions,
                                         int32_t width, int32_t height);

struct Tiles {
  std::vector<PixelValues> pixels;  // the whole picture, then the tiles row by row
  int32_t rows = 0, columns = 0;    // of tiles
};

// The grid of `counts` tiles, each `side` pixels wide and high, whose shape is nearest to that of a
// picture of this size; of equally near ones the largest that the picture fills by half. In tiles.
ImageProcessorSpec::Size nearest_grid(const ImageProcessorSpec::TileCounts& counts, int32_t side,
                                      int32_t width, int32_t height);

// Tiles row by row, and behind them, where there are several, the whole picture. grid: of tiles.
Tiles stretch_tiles(const Image& image, const ImageProcessorSpec& spec, int32_t side,
                    const ImageProcessorSpec::Size& grid);

// The canvas of at most `tiles_max` tiles that a picture of this size, its shape kept, has to be
// enlarged least for, or else shrunk least; of equal ones the smallest (Mllama). In tiles.
ImageProcessorSpec::Size least_canvas(int32_t tiles_max, int32_t side, int32_t width,
                                      int32_t height);
// From 1 on, among all canvases of at most so many tiles, by rows, then columns; 0: it is none.
int32_t tile_shape_number(const ImageProcessorSpec::Size& canvas, int32_t tiles_max);
// The picture fitted into the left upper corner of the canvas, black beside it. Tiles row by row;
// there is no whole picture.
Tiles canvas_tiles(const Image& image, const ImageProcessorSpec& spec, int32_t side,
                   const ImageProcessorSpec::Size& canvas);

// REQUIRES: spec.resolutions are multiples of a tile, `side` pixels wide and high.
Tiles cut_tiles(const Image& image, const ImageProcessorSpec& spec, int32_t side);

}  // namespace espalier
