#include "media/processor.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace espalier {
namespace {

using Size = ImageProcessorSpec::Size;

// In 64 bits: a picture of one row may become very long.
struct LongSize {
  int64_t width = 0, height = 0;
};

// Half of an odd number goes to the even neighbour, as Python rounds.
int64_t rounded_to(double side, int64_t multiple) {
  return std::llrint(side / static_cast<double>(multiple)) * multiple;
}

LongSize within_area(const ImageProcessorSpec::Area& area, double width, double height) {
  const auto multiple = static_cast<double>(area.multiple);
  if (area.frames_counted > 1 && std::min(width, height) < multiple) {
    const double grow = std::max(multiple / width, multiple / height);
    width = std::trunc(width * grow);
    height = std::trunc(height * grow);
  }
  const LongSize near{rounded_to(width, area.multiple), rounded_to(height, area.multiple)};
  const double pixels = area.frames * width * height;
  const int64_t near_pixels = area.frames_counted * near.width * near.height;
  if (near_pixels > area.pixels_max) {
    const double shrink = std::sqrt(pixels / static_cast<double>(area.pixels_max));
    const auto side = [&](double of) {
      return std::max(int64_t{area.multiple},
                      static_cast<int64_t>(std::floor(of / shrink / multiple)) * area.multiple);
    };
    return {side(width), side(height)};
  }
  if (near_pixels < area.pixels_min) {
    const double grow = std::sqrt(static_cast<double>(area.pixels_min) / pixels);
    const auto side = [&](double of) {
      return static_cast<int64_t>(std::ceil(of * grow / multiple)) * area.multiple;
    };
    return {side(width), side(height)};
  }
  return near;
}

// 0 where nothing is left of a side.
LongSize fitted_within(const ImageProcessorSpec::Within& within, double width, double height) {
  const double shrink = std::max({height / within.most.height, width / within.most.width, 1.0});
  const auto side = [&](double of) {
    const auto pixels = static_cast<int64_t>(std::floor(of / shrink));
    return (pixels + within.multiple - 1) / within.multiple * within.multiple;
  };
  return {side(width), side(height)};
}

LongSize resized(const ImageProcessorSpec& spec, int32_t width, int32_t height) {
  if (spec.area) return within_area(*spec.area, width, height);
  if (spec.within) return fitted_within(*spec.within, width, height);
  if (spec.size) return {spec.size->width, spec.size->height};
  if (spec.shortest_edge == 0) return {width, height};
  const int64_t edge = spec.shortest_edge;
  const int64_t longest = edge * std::max(width, height) / std::min(width, height);
  return width <= height ? LongSize{edge, longest} : LongSize{longest, edge};
}

Result<LongSize> resized_within_bounds(const ImageProcessorSpec& spec, const Size& picture) {
  const auto [shorter, longer] = std::minmax(picture.width, picture.height);
  if (spec.area && longer > int64_t{kNarrowestShape} * shorter) {
    return fail(
        invalid_argument("a picture of {} x {} pixels is too narrow: its longer side may be {} "
                         "times its shorter one",
                         picture.width, picture.height, kNarrowestShape));
  }
  const LongSize size = resized(spec, picture.width, picture.height);
  if (std::max(size.width, size.height) > kResizedSideMax ||
      std::min(size.width, size.height) < 1) {
    return fail(invalid_argument(
        "a picture of {} x {} pixels would become {} x {}: send one that is less narrow",
        picture.width, picture.height, size.width, size.height));
  }
  return size;
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

}  // namespace

Size ImageProcessorSpec::output_size(int32_t width, int32_t height) const {
  if (crop) return *crop;
  const LongSize after = resized(*this, width, height);
  return {static_cast<int32_t>(after.width), static_cast<int32_t>(after.height)};
}

ImageProcessorSpec ImageProcessorSpec::of_frames(int32_t num_frames) const {
  ESP_CHECK(video.has_value() && num_frames > 0);
  ImageProcessorSpec out = *this;
  if (!video->area) return out;
  Area& bounds = out.area.emplace(*video->area);
  if (!video->area_of_all) return out;
  bounds.frames = num_frames;
  bounds.frames_counted =
      std::max(video->multiple, static_cast<int32_t>(rounded_to(num_frames, video->multiple)));
  if (video->frame_pixels == 0) return out;
  // A twentieth above the least area of all, as transformers has it.
  const auto least = static_cast<int64_t>(static_cast<double>(bounds.pixels_min) * 1.05);
  const int64_t each = std::min(video->frame_pixels, bounds.pixels_max / num_frames);
  bounds.pixels_max = std::max(each, least) * num_frames;
  return out;
}

std::vector<double> grid_seconds(std::span<const int32_t> indices, double frames_per_second,
                                 int32_t group) {
  std::vector<double> out;
  const auto each = static_cast<size_t>(group);
  for (size_t begin = 0; begin < indices.size(); begin += each) {
    const size_t last = std::min(begin + each, indices.size()) - 1;
    out.push_back((indices[begin] / frames_per_second + indices[last] / frames_per_second) / 2);
  }
  return out;
}

namespace {

// From the first frame to the last one (Qwen3-VL).
std::vector<int32_t> sample_to_last(const ImageProcessorSpec::Video& spec, int32_t total,
                                    double frames_per_second) {
  int32_t count = std::min(total, spec.frames_max);
  if (spec.num_frames > 0) {
    count = spec.num_frames;
  } else if (frames_per_second > 0) {
    const double wanted = std::floor(total / frames_per_second * spec.frames_per_second);
    count = static_cast<int32_t>(
        std::min<double>({std::max<double>(wanted, spec.frames_min),
                          static_cast<double>(spec.frames_max), static_cast<double>(total)}));
  }
  count = std::clamp(count, 1, total);
  std::vector<int32_t> out(static_cast<size_t>(count));
  const double step = count > 1 ? static_cast<double>(total - 1) / (count - 1) : 0;
  for (int32_t i = 0; i < count; ++i)
    out[static_cast<size_t>(i)] = static_cast<int32_t>(std::nearbyint(i * step));
  return out;
}

}  // namespace

std::vector<int32_t> sample_frames(const ImageProcessorSpec::Video& spec, int32_t total,
                                   double frames_per_second) {
  if (spec.to_last) return sample_to_last(spec, total, frames_per_second);
  const int32_t multiple = spec.multiple;
  int32_t count = std::min(total, spec.frames_max);
  if (spec.num_frames > 0) {
    count = static_cast<int32_t>(rounded_to(spec.num_frames, multiple));
  } else if (frames_per_second > 0) {
    const int32_t most = std::min(spec.frames_max, total) / multiple * multiple;
    const double wanted = total / frames_per_second * spec.frames_per_second;
    const double bounded =
        std::min<double>({std::max<double>(wanted, spec.frames_min), static_cast<double>(most),
                          static_cast<double>(total)});
    count = static_cast<int32_t>(std::floor(bounded / multiple)) * multiple;
  }
  // A video of fewer frames is read whole; the last one stands for those that lack.
  count = std::clamp(count, 1, total);
  std::vector<int32_t> out(static_cast<size_t>(count));
  const double step = static_cast<double>(total) / count;
  for (int32_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] = static_cast<int32_t>(i * step);
  return out;
}

PixelValues normalize(const Image& image, const ImageProcessorSpec& spec) {
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

Result<Size> processed_size(const Size& picture, const ImageProcessorSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const LongSize size, resized_within_bounds(spec, picture));
  if (spec.crop) return *spec.crop;
  return Size{static_cast<int32_t>(size.width), static_cast<int32_t>(size.height)};
}

Result<Image> fit_image(const Image& image, const ImageProcessorSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const LongSize size,
                       resized_within_bounds(spec, {image.width, image.height}));
  return resize(image, static_cast<int32_t>(size.width), static_cast<int32_t>(size.height),
                spec.filter);
}

Result<PixelValues> process_image(const Image& image, const ImageProcessorSpec& spec) {
  ESP_ASSIGN_OR_RETURN(const Image fitted, fit_image(image, spec));
  return normalize(spec.crop ? crop_to(fitted, *spec.crop) : fitted, spec);
}

}  // namespace espalier
