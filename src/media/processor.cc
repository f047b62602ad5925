#include "media/processor.h"

#include <algorithm>

#include "base/check.h"

namespace espalier {
namespace {

using Size = ImageProcessorSpec::Size;

// In 64 bits: a picture of one row may become very long.
struct LongSize {
  int64_t width = 0, height = 0;
};

LongSize resized(const ImageProcessorSpec& spec, int32_t width, int32_t height) {
  if (spec.size) return {spec.size->width, spec.size->height};
  if (spec.shortest_edge == 0) return {width, height};
  const int64_t edge = spec.shortest_edge;
  const int64_t longest = edge * std::max(width, height) / std::min(width, height);
  return width <= height ? LongSize{edge, longest} : LongSize{longest, edge};
}

Image crop_to(const Image& image, const Size& size) {
  Image out{.width = size.width, .height = size.height, .rgb = {}};
  out.rgb.resize(static_cast<size_t>(size.width) * static_cast<size_t>(size.height) * 3);
  // Where the picture's first pixel lies in the result: below 0 it is cut, above it has a margin.
  const auto offset = [](int32_t from, int32_t to) {
    return from > to ? -((from - to) / 2) : (to - from) / 2;
  };
  const int32_t left = offset(image.width, size.width), top = offset(image.height, size.height);
  const int32_t skipped = std::max(0, -left), begin = std::max(0, left);
  const auto count = static_cast<size_t>(std::min(image.width, size.width)) * 3;
  for (int32_t y = std::max(0, top); y < std::min(size.height, top + image.height); ++y) {
    const int64_t from = (int64_t{y - top} * image.width + skipped) * 3;
    const int64_t to = (int64_t{y} * size.width + begin) * 3;
    std::copy_n(image.rgb.begin() + from, count, out.rgb.begin() + to);
  }
  return out;
}

PixelValues normalized(const Image& image, const ImageProcessorSpec& spec) {
  PixelValues out{.width = image.width, .height = image.height, .values = {}};
  const size_t plane = image.rgb.size() / 3;
  out.values.resize(image.rgb.size());
  for (size_t c = 0; c < 3; ++c) {
    // A value depends on the byte and its channel alone.
    std::array<float, 256> table;
    for (size_t byte = 0; byte < table.size(); ++byte) {
      table[byte] = (static_cast<float>(byte) * spec.rescale - spec.mean[c]) / spec.std[c];
    }
    float* const to = out.values.data() + c * plane;
    for (size_t i = 0; i < plane; ++i) to[i] = table[image.rgb[3 * i + c]];
  }
  return out;
}

}  // namespace

Size ImageProcessorSpec::output_size(int32_t width, int32_t height) const {
  if (crop) return *crop;
  const LongSize after = resized(*this, width, height);
  return {static_cast<int32_t>(after.width), static_cast<int32_t>(after.height)};
}

Result<PixelValues> process_image(const Image& image, const ImageProcessorSpec& spec) {
  const LongSize size = resized(spec, image.width, image.height);
  if (std::max(size.width, size.height) > kResizedSideMax) {
    return fail(invalid_argument(
        "a picture of {} x {} pixels would become {} x {}: send one that is less narrow",
        image.width, image.height, size.width, size.height));
  }
  const Image fitted = resize(image, static_cast<int32_t>(size.width),
                              static_cast<int32_t>(size.height), spec.filter);
  return normalized(spec.crop ? crop_to(fitted, *spec.crop) : fitted, spec);
}

std::vector<float> cut_patches(const PixelValues& pixels, int32_t patch) {
  ESP_CHECK(patch > 0);
  const int32_t rows = pixels.height / patch, columns = pixels.width / patch;
  std::vector<float> out(static_cast<size_t>(rows) * static_cast<size_t>(columns) * 3 *
                         static_cast<size_t>(patch) * static_cast<size_t>(patch));
  auto to = out.begin();
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t column = 0; column < columns; ++column) {
      for (int32_t c = 0; c < 3; ++c) {
        for (int32_t y = row * patch; y < (row + 1) * patch; ++y) {
          const int64_t from =
              (int64_t{c} * pixels.height + y) * pixels.width + int64_t{column} * patch;
          to = std::copy_n(pixels.values.begin() + from, patch, to);
        }
      }
    }
  }
  return out;
}

}  // namespace espalier
