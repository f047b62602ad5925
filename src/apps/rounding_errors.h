// How far the matrices of a quantised model are from those that they were made of, by layer.
// Thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace espalier::apps {

// Of matrices, the norm of the differences over the norm of the numbers before.
struct LayerErrors {
  int32_t layer = -1;  // -1: what lies outside of layers
  int32_t num_matrices = 0;
  double all = 0;  // of all of the layer's numbers together
  double worst = 0;
  std::string worst_name;  // of the matrix
};

// By layer, of those with matrices that changed. Both are folders or GGUFs of the same tensors.
Result<std::vector<LayerErrors>> rounding_errors(const std::filesystem::path& before,
                                                 const std::filesystem::path& after);
std::string errors_text(const std::vector<LayerErrors>& layers);

}  // namespace espalier::apps
