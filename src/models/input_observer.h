// Sees what the matrices of a model's layers are multiplied by.
#pragma once

#include <cstdint>

#include "models/weight_id.h"

namespace espalier {

// Rows of a step on their way into a matrix. Borrowed for the call.
struct MatrixInputs {
  WeightId weight;           // of a layer, or of all experts of one
  int32_t expert = -1;       // of a mixture's
  const float* x = nullptr;  // [rows, columns], rows `stride` elements apart
  int64_t stride = 0;
  int64_t rows = 0, columns = 0;
};

// Called on the thread that runs the step, between its operations.
class InputObserver {
 public:
  virtual ~InputObserver() = default;
  virtual void see(const MatrixInputs& inputs) = 0;
};

}  // namespace espalier
