#include <cstring>
#include <vector>

#include "kernels/lora/op.h"

namespace espalier::kernels::reference {
namespace {

double element(const std::byte* values, DType type, int64_t at) {
  if (type == DType::kBFloat16) {
    BFloat16 value;
    std::memcpy(&value, values + at * 2, 2);
    return to_float(value);
  }
  float value = 0;
  std::memcpy(&value, values + at * 4, 4);
  return value;
}

void add_row(const LoraFactors& f, const float* x, float* y) {
  for (int64_t r = 0; r < f.rank(); ++r) {
    double sum = 0;
    for (int64_t i = 0; i < f.in_features(); ++i)
      sum += x[i] * element(f.a(), f.type(), r * f.padded_in() + i);
    for (int64_t o = 0; o < f.out_features(); ++o)
      y[o] = static_cast<float>(y[o] +
                                sum * f.scale() * element(f.b(), f.type(), r * f.padded_out() + o));
  }
}

}  // namespace

void lora(const LoraArgs& args) {
  for (const LoraSegment& s : args.segments)
    for (int64_t row = s.row; row < s.row + s.num_rows; ++row)
      add_row(*s.factors, args.x + row * args.x_stride, args.y + row * args.y_stride + s.column);
}

}  // namespace espalier::kernels::reference
