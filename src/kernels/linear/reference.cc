#include "kernels/linear/op.h"

namespace espalier::kernels::reference {
namespace {

float element(const WeightRows& w, int64_t in_features, int64_t row, int64_t column) {
  const int64_t index = row * (w.row_stride == 0 ? in_features : w.row_stride) + column;
  switch (w.type) {
    case DType::kFloat32:
      return static_cast<const float*>(w.data)[index];
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(w.data)[index]);
    case DType::kFloat16:
      return to_float(static_cast<const Float16*>(w.data)[index]);
  }
  return 0;
}

}  // namespace

void linear(const WeightRows& w, int64_t in_features, bool round_to_bf16, const LinearArgs& args) {
  const auto rounded = [&](float value) {
    return round_to_bf16 ? to_float(to_bfloat16(value)) : value;
  };
  for (int64_t row = 0; row < args.rows; ++row) {
    const float* x = args.x + row * args.x_stride;
    float* y = args.y + row * args.y_stride;
    for (int64_t out = 0; out < w.rows; ++out) {
      double sum = 0;
      for (int64_t in = 0; in < in_features; ++in) {
        sum += static_cast<double>(rounded(x[in])) * rounded(element(w, in_features, out, in));
      }
      if (args.bias != nullptr) sum += args.bias[out];
      if (args.accumulate) sum += y[out];
      y[out] = static_cast<float>(sum);
    }
  }
}

}  // namespace espalier::kernels::reference
