#include "media/tiles.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace espalier {
namespace {

using Size = ImageProcessorSpec::Size;

// The largest picture of this shape within `room`; at least a pixel, which Python's floats may
// miss.
Size fitted_size(const Image& image, const Size& room) {
  const double wide = static_cast<double>(room.width) / image.width;
  const double high = static_cast<double>(room.height) / image.height;
  const auto length = [](int32_t of, double scale, int32_t most) {
    return std::clamp(static_cast<int32_t>(std::ceil(of * scale)), 1, most);
  };
  if (wide < high) return {room.width, length(image.height, wide, room.height)};
  return {length(image.width, high, room.width), room.height};
}

}  // namespace

Size best_resolution(std::span<const Size> resolutions, int32_t width, int32_t height) {
  Size best;
  int64_t most_shown = 0, least_margin = INT64_MAX;
  for (const Size& size : resolutions) {
    const double scale = std::min(static_cast<double>(size.width) / width,
                                  static_cast<double>(size.height) / height);
    const auto shown_width = static_cast<int64_t>(width * scale);
    const auto shown_height = static_cast<int64_t>(height * scale);
    const int64_t shown = std::min(shown_width * shown_height, int64_t{width} * height);
    const int64_t margin = int64_t{size.width} * size.height - shown;
    if (shown < most_shown || (shown == most_shown && margin >= least_margin)) continue;
    best = size;
    most_shown = shown;
    least_margin = margin;
  }
  return best;
}

Size nearest_grid(const ImageProcessorSpec::TileCounts& counts, int32_t side, int32_t width,
                  int32_t height) {
  std::vector<Size> grids;
  for (int32_t columns = 1; columns <= counts.max; ++columns) {
    for (int32_t rows = 1; columns * rows <= counts.max; ++rows) {
      if (columns * rows >= counts.min) grids.push_back({columns, rows});
    }
  }
  std::ranges::stable_sort(grids, {}, [](const Size& grid) { return grid.width * grid.height; });
  const double shape = static_cast<double>(width) / height;
  const double pixels = static_cast<double>(width) * height;
  Size best{1, 1};
  double least = std::numeric_limits<double>::infinity();
  for (const Size& grid : grids) {
    const double off = std::abs(shape - static_cast<double>(grid.width) / grid.height);
    const double room = 0.5 * side * side * grid.width * grid.height;
    if (off > least || (off == least && pixels <= room)) continue;
    least = off;
    best = grid;
  }
  return best;
}

Tiles stretch_tiles(const Image& image, const ImageProcessorSpec& spec, int32_t side,
                    const Size& grid) {
  Tiles out{.pixels = {}, .rows = grid.height, .columns = grid.width};
  const Image all = resize(image, grid.width * side, grid.height * side, spec.filter);
  for (int32_t i = 0; i < out.rows * out.columns; ++i) {
    const int64_t left = int64_t{i} % out.columns * side, top = int64_t{i} / out.columns * side;
    Image tile{.width = side, .height = side, .rgb = {}};
    tile.rgb.reserve(static_cast<size_t>(side) * static_cast<size_t>(side) * 3);
    for (int64_t y = top; y < top + side; ++y) {
      const auto from = all.rgb.begin() + (y * all.width + left) * 3;
      tile.rgb.insert(tile.rgb.end(), from, from + int64_t{side} * 3);
    }
    out.pixels.push_back(normalize(tile, spec));
  }
  if (out.pixels.size() > 1)
    out.pixels.push_back(normalize(resize(image, side, side, spec.filter), spec));
  return out;
}

Size least_canvas(int32_t tiles_max, int32_t side, int32_t width, int32_t height) {
  Size best;
  double best_scale = 0;
  for (int32_t rows = 1; rows <= tiles_max; ++rows) {
    for (int32_t columns = 1; rows * columns <= tiles_max; ++columns) {
      const double scale = std::min(static_cast<double>(int64_t{columns} * side) / width,
                                    static_cast<double>(int64_t{rows} * side) / height);
      const bool better = best_scale < 1 ? scale > best_scale : scale >= 1 && scale < best_scale;
      const bool smaller = scale == best_scale && rows * columns < best.width * best.height;
      if (!better && !smaller) continue;
      best = {columns, rows};
      best_scale = scale;
    }
  }
  return best;
}

int32_t tile_shape_number(const Size& canvas, int32_t tiles_max) {
  int32_t number = 0;
  for (int32_t rows = 1; rows <= tiles_max; ++rows) {
    for (int32_t columns = 1; rows * columns <= tiles_max; ++columns) {
      ++number;
      if (canvas == Size{columns, rows}) return number;
    }
  }
  return 0;
}

namespace {

// Within the canvas, and not smaller than a tile in both directions; as Python's floats make it.
Size fitted_to_canvas(const Image& image, int32_t side, const Size& canvas) {
  const int32_t width = std::clamp(image.width, side, canvas.width * side);
  const int32_t height = std::clamp(image.height, side, canvas.height * side);
  const double wide = static_cast<double>(width) / image.width;
  const double high = static_cast<double>(height) / image.height;
  const auto length = [](int32_t of, double scale, int32_t most) {
    return std::min(std::max(static_cast<int32_t>(std::floor(of * scale)), 1), most);
  };
  if (wide < high) return {width, length(image.height, wide, height)};
  return {length(image.width, high, width), height};
}

// Tile `index` of a canvas `columns` tiles wide, where the picture begins at `left` and `top`.
Image tile_of(const Image& fitted, int32_t side, int32_t index, int32_t columns, int32_t left,
              int32_t top) {
  const int32_t x0 = index % columns * side - left, y0 = index / columns * side - top;
  Image tile{.width = side, .height = side, .rgb = {}};
  tile.rgb.resize(static_cast<size_t>(side) * static_cast<size_t>(side) * 3);
  const int32_t from = std::max(x0, 0), end = std::min(x0 + side, fitted.width);
  for (int32_t y = std::max(y0, 0); y < std::min(y0 + side, fitted.height) && from < end; ++y) {
    std::copy_n(fitted.rgb.begin() + (int64_t{y} * fitted.width + from) * 3, (end - from) * 3,
                tile.rgb.begin() + (int64_t{y - y0} * side + from - x0) * 3);
  }
  return tile;
}

}  // namespace

Tiles canvas_tiles(const Image& image, const ImageProcessorSpec& spec, int32_t side,
                   const Size& canvas) {
  Tiles out{.pixels = {}, .rows = canvas.height, .columns = canvas.width};
  const Size size = fitted_to_canvas(image, side, canvas);
  const Image fitted = resize(image, size.width, size.height, spec.filter);
  for (int32_t i = 0; i < out.rows * out.columns; ++i)
    out.pixels.push_back(normalize(tile_of(fitted, side, i, out.columns, 0, 0), spec));
  return out;
}

Tiles cut_tiles(const Image& image, const ImageProcessorSpec& spec, int32_t side) {
  Tiles out;
  out.pixels.push_back(normalize(resize(image, side, side, spec.filter), spec));
  const Size room = best_resolution(spec.resolutions, image.width, image.height);
  ESP_CHECK(room.width >= side && room.width % side == 0 && room.height % side == 0);
  const Size size = fitted_size(image, room);
  const Image fitted = resize(image, size.width, size.height, spec.filter);
  const int32_t left = (room.width - size.width) / 2, top = (room.height - size.height) / 2;
  out.rows = room.height / side;
  out.columns = room.width / side;
  for (int32_t i = 0; i < out.rows * out.columns; ++i)
    out.pixels.push_back(normalize(tile_of(fitted, side, i, out.columns, left, top), spec));
  return out;
}

}  // namespace espalier
