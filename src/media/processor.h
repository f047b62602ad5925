// From a picture to the numbers that a vision encoder reads, as the processors of transformers make
// them: resized, cropped or padded, scaled to [0, 1], normalised by channel.
//
// Plain values and pure functions, thread-safe. A spec is made from a model's
// preprocessor_config.json by the models room.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
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
  // Or both sides become multiples of a number, within bounds of the area and as near to its shape
  // as they allow (Qwen2-VL).
  struct Area {
    int64_t pixels_min = 0, pixels_max = 0;
    int32_t multiple = 1;  // of pixels
    // The bounds are those of so many pictures of one size, `frames_counted` for comparing; where
    // there are several, sides below `multiple` grow first.
    int32_t frames = 1, frames_counted = 1;
  };
  std::optional<Area> area;
  // Or a picture that is larger shrinks to fit into `most`, and then both sides grow to multiples
  // of a number (Pixtral).
  struct Within {
    Size most;
    int32_t multiple = 1;  // of pixels
  };
  std::optional<Within> within;
  Resample filter = Resample::kBicubic;
  std::optional<Size> crop;  // around the centre; a picture that is smaller gets a black margin
  float rescale = 1.0f / 255;
  std::array<float, 3> mean = {0, 0, 0}, std = {1, 1, 1};  // red, green, blue

  // The picture is read whole, and in tiles of that size from a fitting one of these (tiles.h).
  std::vector<Size> resolutions;
  // Or whole, and in as many tiles of `size` as make the shape that is nearest to its own
  // (tiles.h).
  struct TileCounts {
    int32_t min = 1, max = 12;
    friend bool operator==(const TileCounts&, const TileCounts&) = default;
  };
  std::optional<TileCounts> tile_counts;

  // Of models that read videos: bounds of a frame's area, and which frames are read.
  struct Video {
    std::optional<Area> area;
    double frames_per_second = 2;  // that are sampled, within the counts below
    int32_t num_frames = 0;        // or a number of them, whatever their time; 0: by time
    int32_t frames_min = 4, frames_max = 768;
    int32_t multiple = 2;  // of the number of frames
    bool to_last = false;  // the last frame is one of them, and `multiple` counts for nothing
    // The area's bounds are those of all frames together (Qwen3-VL). Where frame_pixels is above 0
    // a frame has at most so many, too.
    bool area_of_all = false;
    int64_t frame_pixels = 0;
  };
  std::optional<Video> video;
  // The same with the bounds of one of so many frames. REQUIRES: video.
  ImageProcessorSpec of_frames(int32_t num_frames) const;

  // Of a picture after resize and crop.
  Size output_size(int32_t width, int32_t height) const;
};

// Indices of the frames that are read of `total`, of which a video has so many a second (0: that is
// unknown, and all are read up to the most); rising. As transformers' processors sample them.
std::vector<int32_t> sample_frames(const ImageProcessorSpec::Video& spec, int32_t total,
                                   double frames_per_second);

// The times in seconds at which groups of `group` frames of these indices stand, each between its
// first and its last frame; the last index fills the last group.
std::vector<double> grid_seconds(std::span<const int32_t> indices, double frames_per_second,
                                 int32_t group);

// [3, height, width] float32.
struct PixelValues {
  int32_t width = 0, height = 0;
  std::vector<float> values;
};

// Fails with kInvalidArgument where the picture is so narrow that its longer side would pass
// kResizedSideMax, or kNarrowestShape with an area, or that nothing would be left of its shorter
// side: its cost must not exceed that of the pictures that limits allow.
Result<PixelValues> process_image(const Image& image, const ImageProcessorSpec& spec);
// Its first step alone: the picture resized, not cropped. Of the result the same makes itself.
Result<Image> fit_image(const Image& image, const ImageProcessorSpec& spec);
// The size of its result, without the work: fails as it does.
Result<ImageProcessorSpec::Size> processed_size(const ImageProcessorSpec::Size& picture,
                                                const ImageProcessorSpec& spec);
inline constexpr int32_t kResizedSideMax = 16384;
inline constexpr int32_t kNarrowestShape = 200;  // the longer side over the shorter one
// The steps behind the resize: the picture as numbers.
PixelValues normalize(const Image& image, const ImageProcessorSpec& spec);

}  // namespace espalier
