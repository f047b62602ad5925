// Resizing as Pillow's Image.resize does it, to the bit: image processors of models were trained
// with it. Two passes, rows first, each a convolution with a filter that is stretched by the factor
// of reduction (so it averages where a picture shrinks), in whole numbers with 22 bits behind the
// point, rounded to 8 bits after each pass.
//
// Pure and thread-safe.
#pragma once

#include <cstdint>

#include "media/image.h"
#include "media/resize_passes.h"

namespace espalier {

enum class Resample : uint8_t { kBilinear, kBicubic };

// REQUIRES: the image and the new size have at least one pixel.
Image resize(const Image& image, int32_t width, int32_t height, Resample filter);
// The same by one of usable_resize_passes(), whose results are equal.
Image resize_by(const ResizePasses& passes, const Image& image, int32_t width, int32_t height,
                Resample filter);

}  // namespace espalier
