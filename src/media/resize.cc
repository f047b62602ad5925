#include "media/resize.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace espalier {
namespace {

// Keys 1981 with a = -1/2.
double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}
double bilinear(double x) { return std::max(0.0, 1.0 - std::fabs(x)); }

int32_t fixed_point(double weight) {
  return static_cast<int32_t>(weight * (1 << kWeightBits) + (weight < 0 ? -0.5 : 0.5));
}

void split_weights(ResizeFilter& filter) {
  filter.halves.resize(2 * filter.weights.size());
  for (size_t i = 0; i < filter.weights.size(); ++i) {
    const int32_t high = filter.weights[i] >> ResizeFilter::kLowBits;
    int16_t* const group = filter.halves.data() + i / 4 * 8 + i % 4;
    group[0] = static_cast<int16_t>(high);
    group[4] = static_cast<int16_t>(filter.weights[i] - (high << ResizeFilter::kLowBits));
  }
}

ResizeFilter make_filter(int32_t from, int32_t to, Resample kind) {
  const bool cubic = kind == Resample::kBicubic;
  const double scale = static_cast<double>(from) / to;
  const double stretch = std::max(scale, 1.0);
  const double support = (cubic ? 2.0 : 1.0) * stretch;
  const double shrink = 1.0 / stretch;
  ResizeFilter filter;
  filter.stride = (static_cast<int32_t>(std::ceil(support)) * 2 + 1 + 3) / 4 * 4;
  filter.weights.resize(static_cast<size_t>(filter.stride) * static_cast<size_t>(to));
  std::vector<double> row(static_cast<size_t>(filter.stride));
  for (int32_t i = 0; i < to; ++i) {
    const double center = (i + 0.5) * scale;
    const int32_t first = std::max(static_cast<int32_t>(center - support + 0.5), 0);
    const int32_t last = std::min(static_cast<int32_t>(center + support + 0.5), from);
    double sum = 0;
    for (int32_t k = 0; k < last - first; ++k) {
      const double x = (k + first - center + 0.5) * shrink;
      sum += row[static_cast<size_t>(k)] = cubic ? bicubic(x) : bilinear(x);
    }
    filter.firsts.push_back(first);
    filter.counts.push_back(last - first);
    int32_t* const weights =
        filter.weights.data() + static_cast<size_t>(i) * static_cast<size_t>(filter.stride);
    for (int32_t k = 0; k < last - first; ++k) {
      const double weight = row[static_cast<size_t>(k)];
      weights[k] = fixed_point(sum != 0 ? weight / sum : weight);
    }
  }
  split_weights(filter);
  return filter;
}

// The last rows of the picture with room behind them, where a pass may read further than the row:
// those before have it in the rows that follow.
struct LastRows {
  int32_t first = 0;
  std::vector<uint8_t> rgb;
};

LastRows last_rows(const Image& image) {
  const auto row_bytes = int64_t{3} * image.width;
  const int64_t behind = (ResizePasses::kReadBehind + row_bytes - 1) / row_bytes;
  LastRows out{.first = static_cast<int32_t>(std::max<int64_t>(0, image.height - behind)),
               .rgb = {}};
  out.rgb.assign(image.rgb.begin() + out.first * row_bytes, image.rgb.end());
  out.rgb.resize(out.rgb.size() + ResizePasses::kReadBehind);
  return out;
}

Image resize_width(const Image& image, int32_t width, Resample kind, const ResizePasses& passes) {
  const ResizeFilter filter = make_filter(image.width, width, kind);
  const auto from_bytes = int64_t{3} * image.width, to_bytes = int64_t{3} * width;
  Image out{.width = width, .height = image.height, .rgb = {}};
  out.rgb.resize(static_cast<size_t>(to_bytes * image.height));
  const LastRows last = last_rows(image);
  passes.rows(image.rgb.data(), from_bytes, last.first, filter, width, out.rgb.data());
  passes.rows(last.rgb.data(), from_bytes, image.height - last.first, filter, width,
              out.rgb.data() + to_bytes * last.first);
  return out;
}

Image resize_height(const Image& image, int32_t height, Resample kind, const ResizePasses& passes) {
  const ResizeFilter filter = make_filter(image.height, height, kind);
  const auto row_bytes = int64_t{3} * image.width;
  Image out{.width = image.width, .height = height, .rgb = {}};
  out.rgb.resize(static_cast<size_t>(row_bytes * height));
  for (int32_t y = 0; y < height; ++y)
    passes.column(image.rgb.data(), row_bytes, filter, y, out.rgb.data() + row_bytes * y);
  return out;
}

}  // namespace

Image resize(const Image& image, int32_t width, int32_t height, Resample filter) {
  return resize_by(usable_resize_passes().front(), image, width, height, filter);
}

Image resize_by(const ResizePasses& passes, const Image& image, int32_t width, int32_t height,
                Resample filter) {
  ESP_CHECK(image.width > 0 && image.height > 0 && width > 0 && height > 0);
  if (image.width == width && image.height == height) return image;
  if (image.width == width) return resize_height(image, height, filter, passes);
  const Image wide = resize_width(image, width, filter, passes);
  return wide.height == height ? wide : resize_height(wide, height, filter, passes);
}

}  // namespace espalier
