#include "models/patch_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace espalier {
namespace {

// Squares of [row, end_row) x [column, end_column), row by row; places are of patches.
struct Window {
  int32_t row = 0, end_row = 0;
  int32_t column = 0, end_column = 0;
};

void append(const Window& window, int32_t merge, int32_t columns, PatchOrder& out) {
  for (int32_t row = window.row; row < window.end_row; ++row) {
    for (int32_t column = window.column; column < window.end_column; ++column) {
      out.squares[static_cast<size_t>(row) * static_cast<size_t>(columns) +
                  static_cast<size_t>(column)] =
          static_cast<int32_t>(out.places.size()) / (merge * merge);
      for (int32_t i = 0; i < merge * merge; ++i) {
        out.places.push_back({row * merge + i / merge, column * merge + i % merge});
      }
    }
  }
  out.window_ends.push_back(static_cast<int32_t>(out.places.size()));
}

}  // namespace

namespace {

// A line of patches; those behind the last whole square become no row.
PatchOrder order_line(const PatchGrid& grid, int32_t merge) {
  PatchOrder out;
  for (int32_t i = 0; i < grid.columns; ++i) out.places.push_back({.column = i});
  out.window_ends.push_back(grid.columns);
  out.squares.resize(static_cast<size_t>(grid.columns / merge));
  std::iota(out.squares.begin(), out.squares.end(), 0);
  return out;
}

}  // namespace

PatchOrder order_patches(const PatchGrid& grid, const PatchesSpec& patches) {
  if (patches.sound) return order_line(grid, patches.sound->merge);
  ESP_CHECK(
      patches.merge > 0 && grid.rows % patches.merge == 0 && grid.columns % patches.merge == 0,
      "{} x {} patches in squares of {}", grid.rows, grid.columns, patches.merge);
  const int32_t rows = grid.rows / patches.merge, columns = grid.columns / patches.merge;
  PatchOrder out;
  out.places.reserve(static_cast<size_t>(grid.size()));
  out.squares.resize(static_cast<size_t>(rows) * static_cast<size_t>(columns));
  const int32_t side = patches.window > 0 ? patches.window : std::max(rows, columns);
  for (int32_t row = 0; row < rows; row += side) {
    for (int32_t column = 0; column < columns; column += side) {
      append({row, std::min(row + side, rows), column, std::min(column + side, columns)},
             patches.merge, columns, out);
    }
  }
  return out;
}

std::vector<float> cut_patches(std::span<const PixelValues> frames, const PatchGrid& grid,
                               const PatchesSpec& patches) {
  ESP_CHECK(!frames.empty() && std::cmp_less_equal(frames.size(), patches.frames),
            "{} frames of {}", frames.size(), patches.frames);
  const int32_t side = patches.patch_size;
  std::vector<float> out(static_cast<size_t>(grid.size()) *
                         static_cast<size_t>(patches.features()));
  auto to = out.begin();
  for (const PatchOrder::Place& place : order_patches(grid, patches).places) {
    for (int32_t c = 0; c < patches.channels; ++c) {
      for (size_t frame = 0; std::cmp_less(frame, patches.frames); ++frame) {
        const PixelValues& pixels = frames[std::min(frame, frames.size() - 1)];
        for (int32_t y = place.row * side; y < (place.row + 1) * side; ++y) {
          const int64_t from =
              (int64_t{c} * pixels.height + y) * pixels.width + int64_t{place.column} * side;
          to = std::copy_n(pixels.values.begin() + from, side, to);
        }
      }
    }
  }
  return out;
}

std::vector<float> cut_patches(const PixelValues& pixels, const PatchGrid& grid,
                               const PatchesSpec& patches) {
  return cut_patches(std::span(&pixels, 1), grid, patches);
}

}  // namespace espalier
