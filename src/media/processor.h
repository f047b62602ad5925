// From a picture to the numbers that a vision encoder reads, as the processors of transformers make
// them: resized, cropped or padded, scaled to [0, 1], normalised by channel, cut into patches.
//
// Plain values and pure functions, thread-safe. A spec is made from a model's
// preprocessor_config.json by the models room.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.h"
#include "media/image.h"
#include "media/resize.h"

namespace espalier {

struct ImageProcessorSpec {
  struct Size {
    int32_t width = 0, height = 0;
    friend bool operator==(const Size&, const Size&) = default;
  };
  // The picture's shorter side becomes this long and the other one follows (CLIP), or the picture
  // becomes exactly `size`, whatever its shape (SigLIP); 0 and none: it is not resized.
  int32_t shortest_edge = 0;
  std::optional<Size> size;
  Resample filter = Resample::kBicubic;
  std::optional<Size> crop;  // around the centre; a picture that is smaller gets a black margin
  float rescale = 1.0f / 255;
  std::array<float, 3> mean = {0, 0, 0}, std = {1, 1, 1};  // red, green, blue

  // Of a picture after resize and crop.
  Size output_size(int32_t width, int32_t height) const;
};

// [3, height, width] float32.
struct PixelValues {
  int32_t width = 0, height = 0;
  std::vector<float> values;
};

// Fails with kInvalidArgument where the picture is so narrow that its longer side would pass
// kResizedSideMax: its cost must not exceed that of the pictures that limits allow.
Result<PixelValues> process_image(const Image& image, const ImageProcessorSpec& spec);
inline constexpr int32_t kResizedSideMax = 16384;

// [height / patch * width / patch, 3 * patch * patch]: patches row by row, each [3, patch, patch]
// as a convolution's weights lie. What is left at the right and below belongs to no patch.
std::vector<float> cut_patches(const PixelValues& pixels, int32_t patch);

}  // namespace espalier
