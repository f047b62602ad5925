// y = x W^T: the matrix products of a model, from weights that are packed once at load.
//
// Exactness: a row of y depends on its row of x, on W and on the instruction set; not on how many
// rows are in the call, on the rows beside it or on the number of threads. Every (row, output) is
// accumulated in float32 over the inputs in one order.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace espalier::kernels {

// Rows of a weight matrix as a checkpoint holds them: data[row * row_stride + in]. Borrowed.
struct WeightRows {
  const void* data = nullptr;
  DType type = DType::kBFloat16;
  int64_t rows = 0;
  int64_t row_stride = 0;  // in elements; 0: in_features
};

struct PackSpec {
  int64_t in_features = 0;
  // What is held and streamed: kFloat32 or kBFloat16. With kBFloat16 the activations are rounded to
  // bfloat16 as well, once a call; products are exact and sums are float32.
  DType type = DType::kBFloat16;
  // One under the other: [q; k; v] is one matrix whose outputs are q's, then k's, then v's.
  std::span<const WeightRows> blocks;
  // For linear_silu_mul: blocks are {gate, up} of equal rows, and out_features is that of one.
  bool gate_up = false;
};

// Owns its weights in the layout of the kernels; move-only. Immutable, so safe to share.
//
// The outputs are cut into units of two panels of 16 (the last filled up with zeros), unit after
// unit:
//   float32:   [unit][in][32]
//   bfloat16:  [unit][in / 32][panel: 2][pair: 16][output: 16][2], `in` filled up with zeros to a
//              multiple of 32: what AMX loads as tiles and vdpbf16ps as vectors
// With gate_up the first panel of a unit is 16 outputs of gate, the second the same of up.
class PackedMatrix {
 public:
  static constexpr int64_t kUnit = 32;

  // Reads each block once, from its first row to its last, in parallel; the source is not needed
  // afterwards. kInvalidArgument for shapes that do not fit, kResourceExhausted for no memory.
  static Result<PackedMatrix> pack(CpuBackend& backend, const PackSpec& spec);

  PackedMatrix() = default;
  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return out_features_; }
  DType type() const { return type_; }
  bool gate_up() const { return gate_up_; }
  size_t size_bytes() const { return data_.size_bytes(); }

  int64_t padded_in() const { return padded_in_; }
  int64_t num_units() const { return num_units_; }
  size_t unit_bytes() const { return static_cast<size_t>(padded_in_ * kUnit) * dtype_size(type_); }
  const std::byte* unit(int64_t index) const {
    return data_.data() + static_cast<size_t>(index) * unit_bytes();
  }

 private:
  Buffer data_;
  DType type_ = DType::kFloat32;
  bool gate_up_ = false;
  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
  int64_t padded_in_ = 0;
  int64_t num_units_ = 0;
};

struct LinearArgs {
  const float* x = nullptr;     // [rows, in_features], rows x_stride apart
  int64_t x_stride = 0;         // in elements, at least in_features
  float* y = nullptr;           // [rows, out_features], rows y_stride apart; does not overlap x
  int64_t y_stride = 0;         // in elements, at least out_features
  int64_t rows = 0;             // 0 does nothing
  const float* bias = nullptr;  // [out_features] float32, or none
  bool accumulate = false;      // y += x W^T + bias, as a residual wants it
};

// REQUIRES: w is packed without gate_up.
void linear(CpuBackend& backend, const PackedMatrix& w, const LinearArgs& args);

// y = silu(x gate^T) * (x up^T), silu(v) = v / (1 + exp(-v)): the first half of a gated MLP.
// REQUIRES: w is packed with gate_up; no bias, no accumulate.
void linear_silu_mul(CpuBackend& backend, const PackedMatrix& w, const LinearArgs& args);

// out[i] = row ids[i] of w as float32: an embedding that shares its memory with the output head.
//   ids: each in [0, out_features); out: [ids.size(), in_features], rows out_stride apart.
// REQUIRES: w is packed without gate_up.
void gather_packed_rows(CpuBackend& backend, const PackedMatrix& w, std::span<const int32_t> ids,
                        float* out, int64_t out_stride);

namespace reference {

// The same from unpacked rows, one output at a time, accumulated in double; with round_to_bf16 both
// sides are rounded first, as the bfloat16 kernels do.
void linear(const WeightRows& w, int64_t in_features, bool round_to_bf16, const LinearArgs& args);

}  // namespace reference
}  // namespace espalier::kernels
