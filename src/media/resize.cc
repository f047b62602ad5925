#include "media/resize.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace espalier {
namespace {

// A weight has 32 bits: 8 of a pixel and 2 of sums of weights that overshoot leave 22.
constexpr int kPrecisionBits = 32 - 8 - 2;

// Keys 1981 with a = -1/2.
double bicubic(double x) {
  constexpr double a = -0.5;
  x = std::fabs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * a;
  return 0.0;
}
double bilinear(double x) { return std::max(0.0, 1.0 - std::fabs(x)); }

// Along one axis: output i is the sum over k < counts[i] of input firsts[i] + k times
// weights[i * stride + k].
struct Filter {
  std::vector<int32_t> firsts, counts, weights;
  int32_t stride = 0;

  std::span<const int32_t> weights_of(int32_t i) const {
    const auto at = static_cast<size_t>(i);
    return {weights.data() + at * static_cast<size_t>(stride), static_cast<size_t>(counts[at])};
  }
};

int32_t fixed_point(double weight) {
  return static_cast<int32_t>(weight * (1 << kPrecisionBits) + (weight < 0 ? -0.5 : 0.5));
}

Filter make_filter(int32_t from, int32_t to, Resample kind) {
  const bool cubic = kind == Resample::kBicubic;
  const double scale = static_cast<double>(from) / to;
  const double stretch = std::max(scale, 1.0);
  const double support = (cubic ? 2.0 : 1.0) * stretch;
  const double shrink = 1.0 / stretch;
  Filter filter;
  filter.stride = static_cast<int32_t>(std::ceil(support)) * 2 + 1;
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
  return filter;
}

uint8_t rounded(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kPrecisionBits, 0, 255));
}
constexpr int32_t kHalf = 1 << (kPrecisionBits - 1);

void resize_row(const uint8_t* from, const Filter& filter, int32_t width, uint8_t* to) {
  for (int32_t x = 0; x < width; ++x, to += 3) {
    const uint8_t* pixel = from + int64_t{3} * filter.firsts[static_cast<size_t>(x)];
    int32_t red = kHalf, green = kHalf, blue = kHalf;
    for (const int32_t weight : filter.weights_of(x)) {
      red += pixel[0] * weight;
      green += pixel[1] * weight;
      blue += pixel[2] * weight;
      pixel += 3;
    }
    to[0] = rounded(red), to[1] = rounded(green), to[2] = rounded(blue);
  }
}

// One row of the result as the weighted sum of rows of `from`, row_bytes apart. sums: scratch of a
// row.
void resize_column(const uint8_t* from, size_t row_bytes, std::span<const int32_t> weights,
                   std::vector<int32_t>& sums, uint8_t* to) {
  std::fill(sums.begin(), sums.end(), kHalf);
  int32_t* const sum = sums.data();
  for (const int32_t weight : weights) {
    for (size_t i = 0; i < row_bytes; ++i) sum[i] += from[i] * weight;
    from += row_bytes;
  }
  for (size_t i = 0; i < row_bytes; ++i) to[i] = rounded(sum[i]);
}

size_t row_bytes_of(int32_t width) { return static_cast<size_t>(width) * 3; }

Image resize_width(const Image& image, int32_t width, Resample kind) {
  const Filter filter = make_filter(image.width, width, kind);
  Image out{.width = width, .height = image.height, .rgb = {}};
  out.rgb.resize(row_bytes_of(width) * static_cast<size_t>(image.height));
  for (int32_t y = 0; y < image.height; ++y) {
    const auto row = static_cast<size_t>(y);
    resize_row(image.rgb.data() + row * row_bytes_of(image.width), filter, width,
               out.rgb.data() + row * row_bytes_of(width));
  }
  return out;
}

Image resize_height(const Image& image, int32_t height, Resample kind) {
  const Filter filter = make_filter(image.height, height, kind);
  const size_t row_bytes = row_bytes_of(image.width);
  Image out{.width = image.width, .height = height, .rgb = {}};
  out.rgb.resize(row_bytes * static_cast<size_t>(height));
  std::vector<int32_t> sums(row_bytes);
  for (int32_t y = 0; y < height; ++y) {
    const auto first = static_cast<size_t>(filter.firsts[static_cast<size_t>(y)]);
    resize_column(image.rgb.data() + first * row_bytes, row_bytes, filter.weights_of(y), sums,
                  out.rgb.data() + static_cast<size_t>(y) * row_bytes);
  }
  return out;
}

}  // namespace

Image resize(const Image& image, int32_t width, int32_t height, Resample filter) {
  ESP_CHECK(image.width > 0 && image.height > 0 && width > 0 && height > 0);
  if (image.width == width && image.height == height) return image;
  if (image.width == width) return resize_height(image, height, filter);
  const Image wide = resize_width(image, width, filter);
  return wide.height == height ? wide : resize_height(wide, height, filter);
}

}  // namespace espalier
