#include <cmath>

#include "kernels/norm/op.h"

namespace espalier::kernels::reference {

void rms_norm(const RmsNormArgs& args) {
  for (int64_t row = 0; row < args.rows; ++row) {
    for (int64_t group = 0; group < args.groups; ++group) {
      const float* x = args.x + row * args.x_stride + group * args.dim;
      float* y = args.y + row * args.y_stride + group * args.dim;
      double sum = 0;
      for (int64_t i = 0; i < args.dim; ++i) sum += static_cast<double>(x[i]) * x[i];
      const double scale = 1.0 / std::sqrt(sum / static_cast<double>(args.dim) + args.epsilon);
      for (int64_t i = 0; i < args.dim; ++i)
        y[i] = static_cast<float>(x[i] * scale * args.weight[i]);
    }
  }
}

void layer_norm(const LayerNormArgs& args) {
  const auto size = static_cast<double>(args.dim);
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    double mean = 0, variance = 0;
    for (int64_t i = 0; i < args.dim; ++i) mean += x[i] / size;
    for (int64_t i = 0; i < args.dim; ++i) variance += (x[i] - mean) * (x[i] - mean) / size;
    const double scale = 1.0 / std::sqrt(variance + args.epsilon);
    for (int64_t i = 0; i < args.dim; ++i) {
      args.y[row * args.y_stride + i] =
          static_cast<float>((x[i] - mean) * scale * args.weight[i] + args.bias[i]);
    }
  }
}

}  // namespace espalier::kernels::reference
