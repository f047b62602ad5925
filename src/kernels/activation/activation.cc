#include "kernels/activation/op.h"
#include "kernels/cpu/share_rows.h"
#include "kernels/cpu/table.h"

namespace espalier::kernels {
namespace {

constexpr int64_t kPiece = 4096;  // floats: pieces of a flat run

// fn(at, count) over [0, count) in pieces.
template <typename Fn>
void share_run(CpuBackend& backend, int64_t count, const Fn& fn) {
  share_rows(backend, (count + kPiece - 1) / kPiece, kPiece, [&](int64_t begin, int64_t end) {
    fn(begin * kPiece, std::min(end * kPiece, count) - begin * kPiece);
  });
}

}  // namespace

void silu_mul(CpuBackend& backend, const SiluMulArgs& args) {
  share_rows(backend, args.rows, args.dim, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      backend.table().silu_mul(args.gate + row * args.gate_stride, args.up + row * args.up_stride,
                               args.y + row * args.y_stride, args.dim);
    }
  });
}

void add(CpuBackend& backend, float* y, const float* x, int64_t count) {
  share_run(backend, count, [&](int64_t at, int64_t n) { backend.table().add(y + at, x + at, n); });
}

void scale(CpuBackend& backend, float* y, float factor, int64_t count) {
  share_run(backend, count,
            [&](int64_t at, int64_t n) { backend.table().scale(y + at, factor, n); });
}

}  // namespace espalier::kernels
