// Pictures that are read whole and in tiles (LLaVA-NeXT, Liu et al. 2024), as transformers'
// processors cut them: fitted into the resolution that keeps most of it, between black margins, and
// cut into tiles of the size that the encoder reads. Pure and thread-safe.
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

// REQUIRES: spec.resolutions are multiples of a tile, `side` pixels wide and high.
Tiles cut_tiles(const Image& image, const ImageProcessorSpec& spec, int32_t side);

}  // namespace espalier
