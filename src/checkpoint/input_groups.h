// How the inputs of a packed matrix are grouped, and how a device has the groups.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace espalier {

struct PackedShape {
  int64_t out_features = 0, in_features = 0, num_groups = 0;
  int bits = 4;
};

// The groups as they are, or with the inputs of a group behind each other (GPTQ's act-order).
struct InputGroups {
  int32_t group = 0;  // inputs of one of the device's groups, 32 or 128; 0: a device has none such
  std::shared_ptr<const std::vector<int32_t>> columns;  // the inputs in this order; null: as stored

  // groups: of each input.
  InputGroups(const PackedShape& shape, const std::vector<int32_t>& groups);
};

}  // namespace espalier
