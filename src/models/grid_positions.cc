#include <algorithm>
#include <cmath>

#include "models/mixed_rows.h"

namespace espalier {
namespace {

// Of one axis: the position at or before a patch, the one behind it, and that one's weight.
struct Between {
  int32_t before = 0, behind = 0;
  float weight = 0;
};

std::vector<Between> along_axis(int32_t patches, int32_t side) {
  std::vector<Between> out(static_cast<size_t>(patches));
  const auto last = static_cast<float>(std::max(1, patches - 1));
  for (int32_t i = 0; i < patches; ++i) {
    const float place = static_cast<float>(i) * static_cast<float>(side - 1) / last;
    const auto before = std::min(static_cast<int32_t>(std::floor(place)), side - 1);
    out[static_cast<size_t>(i)] = {before, std::min(before + 1, side - 1),
                                   place - static_cast<float>(before)};
  }
  return out;
}

}  // namespace

std::vector<kernels::MixedRow> grid_positions(const PatchOrder& order, const PatchGrid& grid,
                                              int32_t side) {
  std::vector<kernels::MixedRow> out;
  if (side == 0) return out;
  const std::vector<Between> rows = along_axis(grid.rows, side);
  const std::vector<Between> columns = along_axis(grid.columns, side);
  out.reserve(order.places.size());
  for (const PatchOrder::Place& place : order.places) {
    const Between& down = rows[static_cast<size_t>(place.row)];
    const Between& across = columns[static_cast<size_t>(place.column)];
    const auto at = [&](int32_t row, int32_t column) { return row * side + column; };
    out.push_back({.corners = {at(down.before, across.before), at(down.before, across.behind),
                               at(down.behind, across.before), at(down.behind, across.behind)},
                   .across = across.weight,
                   .down = down.weight});
  }
  return out;
}

}  // namespace espalier
