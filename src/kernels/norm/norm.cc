#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/share_rows.h"
#include "kernels/cpu/table.h"
#include "kernels/norm/op.h"

namespace espalier::kernels {

void rms_norm(CpuBackend& backend, const RmsNormArgs& args) {
  ESP_CHECK(args.dim > 0 && args.groups > 0, "a norm over {} groups of {}", args.groups, args.dim);
  const auto rows = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t group = 0; group < args.groups; ++group) {
        const int64_t at = group * args.dim;
        backend.table().rms_norm(args.x + row * args.x_stride + at, args.weight, args.epsilon,
                                 args.dim, args.y + row * args.y_stride + at);
      }
    }
  };
  share_rows(backend, args.rows, args.groups * args.dim, rows);
}

void layer_norm(CpuBackend& backend, const LayerNormArgs& args) {
  ESP_CHECK(args.dim > 0, "a norm over {}", args.dim);
  share_rows(backend, args.rows, args.dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      backend.table().layer_norm(args.x + row * args.x_stride, args.weight, args.bias, args.epsilon,
                                 args.dim, args.y + row * args.y_stride);
    }
  });
}

void scale_columns(CpuBackend& backend, const ScaleColumnsArgs& args) {
  share_rows(backend, args.rows, args.dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = args.x + row * args.x_stride;
      float* y = args.y + row * args.y_stride;
      for (int64_t i = 0; i < args.dim; ++i) y[i] = x[i] * args.weight[i];
    }
  });
}

void mean_parts(CpuBackend& backend, const MeanPartsArgs& args) {
  ESP_CHECK(args.parts > 0, "the mean of {} parts", args.parts);
  const float share = 1.0f / static_cast<float>(args.parts);
  share_rows(backend, args.rows, args.parts * args.dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* x = args.x + row * args.x_stride;
      float* y = args.y + row * args.y_stride;
      std::copy_n(x, args.dim, y);
      for (int64_t part = 1; part < args.parts; ++part) {
        for (int64_t i = 0; i < args.dim; ++i) y[i] += x[part * args.dim + i];
      }
      for (int64_t i = 0; i < args.dim; ++i) y[i] *= share;
    }
  });
}

}  // namespace espalier::kernels
