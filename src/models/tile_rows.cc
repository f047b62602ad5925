#include "models/tile_rows.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "models/mixed_rows.h"

namespace espalier {
namespace {

// Rows of a margin on one side, where `length` rows of the picture fill `scaled` of `all`.
int32_t margin(int32_t length, double scale, int32_t all) {
  constexpr double kDigits = 1e7;  // that transformers rounds to
  const auto filled = static_cast<int32_t>(std::nearbyint(length * scale * kDigits) / kDigits);
  return (all - filled) / 2;
}

// Between two rows of the tiles' grid, as torch's bilinear interpolation places them.
struct Sample {
  int32_t first = 0, second = 0;
  float weight = 0;  // of the second
};

Sample sample(int32_t at, int32_t from, int32_t to) {
  if (from == to) return {at, at, 0};
  const float scale = static_cast<float>(from) / static_cast<float>(to);
  const float place = std::max((static_cast<float>(at) + 0.5f) * scale - 0.5f, 0.0f);
  const int32_t first = std::min(static_cast<int32_t>(place), from - 1);
  return {first, std::min(first + 1, from - 1), place - static_cast<float>(first)};
}

}  // namespace

TileGrid make_tile_grid(const ImageProcessorSpec::Size& picture, int32_t tile_rows,
                        int32_t tile_columns, int32_t side, int32_t tiles_max) {
  TileGrid grid{.tile_rows = tile_rows, .tile_columns = tile_columns, .side = side};
  const int32_t rows = tile_rows * side, columns = tile_columns * side;
  const double shape = static_cast<double>(picture.width) / picture.height;
  if (shape > static_cast<double>(columns) / rows) {
    grid.first_row = margin(picture.height, static_cast<double>(columns) / picture.width, rows);
  } else {
    grid.first_column = margin(picture.width, static_cast<double>(rows) / picture.height, columns);
  }
  grid.lines = grid.num_rows = rows - 2 * grid.first_row;
  grid.line_length = grid.num_columns = columns - 2 * grid.first_column;
  if (tiles_max == 0) return grid;
  const double most = static_cast<double>(tiles_max) * side * side;
  const double ratio = std::sqrt(static_cast<double>(grid.lines) * grid.line_length / most);
  constexpr double kReducedFrom = 1.1;
  if (ratio > kReducedFrom) {
    grid.lines = std::max(1, static_cast<int32_t>(std::floor(grid.num_rows / ratio)));
    grid.line_length = std::max(1, static_cast<int32_t>(std::floor(grid.num_columns / ratio)));
  }
  return grid;
}

int32_t num_rows_of(const TileGrid& grid, int32_t side) {
  const int32_t behind = grid.num_tiles() > 0 ? grid.lines * (grid.line_length + 1) : 1;
  return side * side + behind;
}

std::vector<kernels::MixedRow> mixed_rows(const TileGrid& grid, int32_t side, int32_t begin) {
  std::vector<kernels::MixedRow> out;
  out.reserve(static_cast<size_t>(num_rows_of(grid, side)));
  const int32_t tile = side * side;
  for (int32_t row = 0; row < tile; ++row) out.push_back(kernels::MixedRow::of(begin + row));
  if (grid.num_tiles() == 0) out.emplace_back();
  const auto at = [&](int32_t row, int32_t column) {
    row += grid.first_row;
    column += grid.first_column;
    const int32_t index = row / grid.side * grid.tile_columns + column / grid.side;
    return begin + (1 + index) * tile + row % grid.side * grid.side + column % grid.side;
  };
  for (int32_t line = 0; grid.num_tiles() > 0 && line < grid.lines; ++line) {
    const Sample down = sample(line, grid.num_rows, grid.lines);
    for (int32_t place = 0; place < grid.line_length; ++place) {
      const Sample across = sample(place, grid.num_columns, grid.line_length);
      out.push_back({.corners = {at(down.first, across.first), at(down.first, across.second),
                                 at(down.second, across.first), at(down.second, across.second)},
                     .across = across.weight,
                     .down = down.weight});
    }
    out.emplace_back();
  }
  return out;
}

void arrange_tile_rows(const TileGrid& grid, std::span<const float> tiles,
                       std::span<const float> line_end, std::span<float> rows) {
  const size_t width = line_end.size();
  const size_t tile = tiles.size() / static_cast<size_t>(1 + grid.num_tiles()) / width;
  const auto side = static_cast<int32_t>(std::lround(std::sqrt(static_cast<double>(tile))));
  auto to = rows.begin();
  for (const kernels::MixedRow& row : mixed_rows(grid, side)) {
    if (row.corners[0] < 0) {
      to = std::copy(line_end.begin(), line_end.end(), to);
      continue;
    }
    const auto corner = [&](int32_t i) {
      return tiles.data() + static_cast<size_t>(row.corners[i]) * width;
    };
    for (size_t i = 0; i < width; ++i) {
      const float upper = (1 - row.across) * corner(0)[i] + row.across * corner(1)[i];
      const float lower = (1 - row.across) * corner(2)[i] + row.across * corner(3)[i];
      *to++ = (1 - row.down) * upper + row.down * lower;
    }
  }
  ESP_CHECK(to == rows.end(), "{} numbers of rows", rows.size());
}

}  // namespace espalier
