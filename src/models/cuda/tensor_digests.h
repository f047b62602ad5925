// Digests of the tensors that a decoder's weights hold on a GPU.
#pragma once

#include <vector>

#include "base/status.h"
#include "models/checkable_weights.h"
#include "models/cuda/weights.h"

namespace espalier {

// Of the bytes in the device's memory, whose elements have the type that the weights are loaded in;
// sorted by name. kUnimplemented names a tensor that is held in codes or in another order than its
// own. Several host threads hash. The current device is the weights'.
Result<std::vector<TensorDigest>> cuda_tensor_digests(const PlacedWeights& placed);

}  // namespace espalier
