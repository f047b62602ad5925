#include "checkpoint/input_groups.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

namespace espalier {
namespace {

// The size of a device's groups that stored ones of neighbours consist of; 0 for others.
int32_t group_of(const PackedShape& shape, std::span<const int32_t> groups) {
  if (shape.bits != 4 || shape.in_features % 32 != 0) return 0;
  bool of_128 = true;
  for (int64_t i = 0; i < shape.in_features; ++i) {
    const int32_t group = groups[static_cast<size_t>(i)];
    if (group != groups[static_cast<size_t>(i / 32 * 32)]) return 0;
    of_128 = of_128 && group == groups[static_cast<size_t>(i / 128 * 128)];
  }
  return of_128 ? 128 : 32;
}

}  // namespace

InputGroups::InputGroups(const PackedShape& shape, const std::vector<int32_t>& groups)
    : group(group_of(shape, groups)) {
  if (group > 0) return;
  std::vector<int32_t> order(groups.size()), sorted;
  std::iota(order.begin(), order.end(), 0);
  const auto of = [&](int32_t column) { return groups[static_cast<size_t>(column)]; };
  std::ranges::stable_sort(order, {}, of);
  for (const int32_t column : order) sorted.push_back(of(column));
  group = group_of(shape, sorted);
  if (group > 0) columns = std::make_shared<const std::vector<int32_t>>(std::move(order));
}

}  // namespace espalier
