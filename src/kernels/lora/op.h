// Low-rank additions to a GEMM's result (LoRA, Hu et al. 2021) on the CPU: rows of a batch may each
// have another adapter, or none. Each call runs in parallel on the back end's pool; arguments are
// borrowed for the call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace espalier::kernels {

// The two factors of one adapted matrix, laid out for reading row after row:
//   a  [rank, padded_in]   elements of `type`, zeros behind in_features
//   b  [rank, padded_out]  transposed, zeros behind out_features
class LoraFactors {
 public:
  LoraFactors() = default;
  // a: [rank, in_features], b: [out_features, rank], row-major. type: kFloat32 or kBFloat16, to
  // which elements are rounded. kResourceExhausted when there is no memory.
  static Result<LoraFactors> pack(std::span<const float> a, std::span<const float> b, int64_t rank,
                                  float scale, DType type);

  int64_t rank() const { return rank_; }
  int64_t in_features() const { return in_; }
  int64_t out_features() const { return out_; }
  int64_t padded_in() const { return padded(in_); }
  int64_t padded_out() const { return padded(out_); }
  float scale() const { return scale_; }
  DType type() const { return type_; }
  const std::byte* a() const { return a_.as<std::byte>(); }
  const std::byte* b() const { return b_.as<std::byte>(); }
  size_t size_bytes() const;

 private:
  static constexpr int64_t kPadding = 16;  // elements: the widest vector
  static int64_t padded(int64_t count) { return (count + kPadding - 1) / kPadding * kPadding; }

  int64_t rank_ = 0, in_ = 0, out_ = 0;
  float scale_ = 1;
  DType type_ = DType::kFloat32;
  Buffer a_, b_;
};

// Rows [row, row + num_rows) of x and y belong to one adapter, whose factors add to columns
// [column, column + out_features) of y.
struct LoraSegment {
  const LoraFactors* factors = nullptr;
  int64_t row = 0, num_rows = 0;
  int64_t column = 0;
};

struct LoraArgs {
  const float* x = nullptr;  // rows x_stride elements apart; a segment reads its in_features
  int64_t x_stride = 0;
  float* y = nullptr;  // rows y_stride elements apart
  int64_t y_stride = 0;
  // Two segments never name the same element of y.
  std::span<const LoraSegment> segments;
};

// y += scale * (x A^T) B^T of each segment. A row's result does not depend on the other rows, on
// the segments or on the number of threads.
void lora(CpuBackend& backend, const LoraArgs& args);

namespace reference {
void lora(const LoraArgs& args);
}  // namespace reference

}  // namespace espalier::kernels
