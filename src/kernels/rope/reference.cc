#include "kernels/rope/op.h"

namespace espalier::kernels::reference {

void rope(const RopeArgs& args) {
  const int64_t half = args.rotary_dim / 2;
  for (size_t token = 0; token < args.positions.size(); ++token) {
    for (int64_t head = 0; head < args.heads; ++head) {
      float* x = args.x + static_cast<int64_t>(token) * args.x_stride + head * args.head_dim;
      for (int64_t i = 0; i < half; ++i) {
        const double cos = args.cos[args.positions[token] * half + i];
        const double sin = args.sin[args.positions[token] * half + i];
        float& first = args.interleaved ? x[2 * i] : x[i];
        float& second = args.interleaved ? x[2 * i + 1] : x[i + half];
        const double a = first, b = second;
        first = static_cast<float>(a * cos - b * sin);
        second = static_cast<float>(b * cos + a * sin);
      }
    }
  }
}

}  // namespace espalier::kernels::reference
