// The GELUs of encoders and projectors, on the CPU. The call runs in parallel on the back
// end's pool; arguments are borrowed for the call. The tanh form, which decoders have, is an
// Activation (op.h).
#pragma once

#include <cstdint>

#include "kernels/cpu/backend.h"

namespace espalier::kernels {

enum class Gelu : uint8_t {
  kErf,    // v / 2 * (1 + erf(v / sqrt(2)))
  kQuick,  // v / (1 + exp(-1.702 v)): CLIP's
};

// y[row, i] = gelu(x[row, i]) * up[row, i], i < dim; without up (null) the GELU alone. x, up, y:
// [rows, dim] float32, strides in elements; y may be x. A row's bits do not depend on the other
// rows.
struct GeluArgs {
  Gelu kind = Gelu::kErf;
  const float* x = nullptr;
  int64_t x_stride = 0;
  const float* up = nullptr;
  int64_t up_stride = 0;
  float* y = nullptr;
  int64_t y_stride = 0;
  int64_t rows = 0;
  int64_t dim = 0;
};
void gelu(CpuBackend& backend, const GeluArgs& args);

}  // namespace espalier::kernels
