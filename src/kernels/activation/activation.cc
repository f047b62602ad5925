#include "kernels/activation/op.h"

#include "base/check.h"
#include "kernels/cpu/share_rows.h"
#include "kernels/cpu/table.h"

namespace espalier::kernels {
namespace {

constexpr int64_t kChunk = 4096;  // floats, chunks of a flat range

// fn(at, count) over [0, count) in chunks.
template <typename Fn>
void share_run(CpuBackend& backend, int64_t count, const Fn& fn) {
  share_rows(backend, (count + kChunk - 1) / kChunk, kChunk, [&](int64_t begin, int64_t end) {
    fn(begin * kChunk, std::min(end * kChunk, count) - begin * kChunk);
  });
}

}  // namespace

void gated(CpuBackend& backend, const GatedArgs& args) {
  ESP_CHECK(args.up != nullptr || args.activation != Activation::kClampedSwiglu);
  const CpuTable& table = backend.table();
  const auto rows = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* gate = args.gate + row * args.gate_stride;
      const float* up = args.up == nullptr ? nullptr : args.up + row * args.up_stride;
      float* y = args.y + row * args.y_stride;
      switch (args.activation) {
        case Activation::kSilu:
          table.silu_mul(gate, up, y, args.dim);
          break;
        case Activation::kGeluTanh:
          table.gelu_mul(gate, up, y, args.dim);
          break;
        case Activation::kClampedSwiglu:
          table.clamped_swiglu(gate, up, args.limit, y, args.dim);
          break;
      }
    }
  };
  share_rows(backend, args.rows, args.dim, rows);
}

void add(CpuBackend& backend, float* y, const float* x, int64_t count) {
  share_run(backend, count, [&](int64_t at, int64_t n) { backend.table().add(y + at, x + at, n); });
}

void scale(CpuBackend& backend, float* y, float factor, int64_t count) {
  share_run(backend, count,
            [&](int64_t at, int64_t n) { backend.table().scale(y + at, factor, n); });
}

void add_scaled(CpuBackend& backend, float* y, const float* x, float factor, int64_t count) {
  share_run(backend, count,
            [&](int64_t at, int64_t n) { backend.table().add_scaled(y + at, x + at, factor, n); });
}

void softcap(CpuBackend& backend, float* y, float cap, int64_t count) {
  share_run(backend, count,
            [&](int64_t at, int64_t n) { backend.table().softcap(y + at, cap, n); });
}

}  // namespace espalier::kernels
