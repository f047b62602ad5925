#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/activation/op.h"

namespace espalier::kernels::reference {

namespace {

double gated_value(const GatedArgs& args, double gate, double up) {
  switch (args.activation) {
    case Activation::kSilu:
      return gate / (1 + std::exp(-gate)) * up;
    case Activation::kGeluTanh: {
      const double inner = std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate);
      return gate / 2 * (1 + std::tanh(inner)) * up;
    }
    case Activation::kClampedSwiglu: {
      const double limit = args.limit, g = std::min(gate, limit);
      return g / (1 + std::exp(-1.702 * g)) * (std::clamp(up, -limit, limit) + 1);
    }
  }
  return 0;
}

}  // namespace

void gated(const GatedArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t i = 0; i < args.dim; ++i) {
      const double up = args.up == nullptr ? 1.0 : args.up[row * args.up_stride + i];
      args.y[row * args.y_stride + i] =
          static_cast<float>(gated_value(args, args.gate[row * args.gate_stride + i], up));
    }
  }
}

}  // namespace espalier::kernels::reference
