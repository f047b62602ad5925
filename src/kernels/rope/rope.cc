#include "base/check.h"
#include "kernels/cpu/share_rows.h"
#include "kernels/cpu/table.h"
#include "kernels/rope/op.h"

namespace espalier::kernels {
namespace {

void rotate_neighbours(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

}  // namespace

void rope(CpuBackend& backend, const RopeArgs& args) {
  ESP_CHECK(args.rotary_dim % 2 == 0 && args.rotary_dim <= args.head_dim,
            "{} of {} elements of a head to rotate", args.rotary_dim, args.head_dim);
  const int64_t half = args.rotary_dim / 2;
  const auto rotate = args.interleaved ? rotate_neighbours : backend.table().rope_half;
  share_rows(backend, static_cast<int64_t>(args.positions.size()), args.heads * args.head_dim,
             [&](int64_t begin, int64_t end) {
               for (int64_t token = begin; token < end; ++token) {
                 const int64_t at = args.positions[static_cast<size_t>(token)] * half;
                 float* x = args.x + token * args.x_stride;
                 for (int64_t head = 0; head < args.heads; ++head, x += args.head_dim) {
                   rotate(x, args.cos + at, args.sin + at, half);
                 }
               }
             });
}

}  // namespace espalier::kernels
