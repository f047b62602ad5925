#include <cmath>

#include "kernels/activation/op.h"

namespace espalier::kernels::reference {

void silu_mul(const SiluMulArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t i = 0; i < args.dim; ++i) {
      const double gate = args.gate[row * args.gate_stride + i];
      const double up = args.up[row * args.up_stride + i];
      args.y[row * args.y_stride + i] = static_cast<float>(gate / (1 + std::exp(-gate)) * up);
    }
  }
}

}  // namespace espalier::kernels::reference
