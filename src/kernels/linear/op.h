// Linear layers on the CPU: y = x W^T from weights that are packed once at load. Each call runs in
// parallel on the back end's pool; arguments are borrowed for the call.
//
// Exactness: a row of y depends on its row of x, on W and on the instruction set; not on how many
// rows are in the call, on the rows beside it or on the number of threads. Every (row, output) is
// accumulated in float32 over the inputs in one order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "tensor/block_format.h"
#include "tensor/buffer.h"
#include "tensor/dtype.h"

namespace espalier::kernels {

// Rows of a weight matrix as a checkpoint holds them: data[row * row_stride + in]. Borrowed.
struct WeightRows {
  const void* data = nullptr;
  DType type = DType::kBFloat16;
  int64_t rows = 0;
  int64_t row_stride = 0;  // in elements; 0: in_features
  // The rows are blocks of this format, one row after the other: neither type nor row_stride.
  std::optional<BlockFormat> format = std::nullopt;
  // The index in `data` of each row, [rows]; empty: the order in which they are stored.
  std::span<const int64_t> order = {};
};

struct PackSpec {
  int64_t in_features = 0;
  // The storage format: kFloat32 or kBFloat16. With kBFloat16 the activations are rounded to
  // bfloat16 as well, once a call; multiplications are exact and sums are float32.
  DType type = DType::kBFloat16;
  // One under the other: [q; k; v] is one matrix whose outputs are q's, then k's, then v's.
  std::span<const WeightRows> blocks;
  // For linear_silu_mul: blocks are {gate, up} of equal rows, and out_features is that of one.
  bool gate_up = false;
  // Rounds rows of numbers to this format (kQ8_0, kQ4K or kQ6K) instead of `type`.
  std::optional<BlockFormat> quantize = std::nullopt;
};

// Owns its weights in the layout of the kernels; move-only. Immutable, so safe to share.
//
// The outputs are cut into units of two panels of 16 (the last filled up with zeros), unit after
// unit:
//   float32:   [unit][in][32]
//   bfloat16:  [unit][in / 32][panel: 2][pair: 16][output: 16][2], `in` filled up with zeros to a
//              multiple of 32: what AMX loads as tiles and vdpbf16ps as vectors
//   quantised:  block_layout.h; exactly the numbers of the source's blocks
// With gate_up the first panel of a unit is 16 outputs of gate, the second the same of up.
//
// Blocks of different formats make one matrix of several parts, each of whole units. With quantised
// weights the activations are rounded to 8 bits, by blocks of 32 inputs, once a call: each term
// is off by at most half of a 127th of its block's largest activation, times the weight.
class PackedMatrix {
 public:
  static constexpr int64_t kUnit = 32;

  // Reads each block once, from its first row to its last, in parallel; the source is not needed
  // afterwards. kInvalidArgument for shapes that do not fit, kResourceExhausted for no memory.
  static Result<PackedMatrix> pack(CpuBackend& backend, const PackSpec& spec);

  // Takes the other's values, in its own memory where that is large enough; all threads copy.
  Status copy_from(CpuBackend& backend, const PackedMatrix& other);

  PackedMatrix() = default;
  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return out_features_; }
  DType type() const { return type_; }  // where it is not quantised
  bool quantized() const { return !parts_.empty() && parts_[0].format.has_value(); }
  bool gate_up() const { return gate_up_; }
  size_t size_bytes() const { return data_.size_bytes(); }

  // Outputs of one storage format. Units are counted over all parts.
  struct Part {
    std::optional<BlockFormat> format;
    int64_t first_output = 0, out_features = 0;
    int64_t first_unit = 0, unit_count = 0;
    int64_t padded_in = 0;
    size_t unit_bytes = 0;
    size_t offset = 0;  // of the first unit
  };
  std::span<const Part> parts() const { return parts_; }
  int64_t unit_count() const {
    return parts_.empty() ? 0 : parts_.back().first_unit + parts_.back().unit_count;
  }
  const std::byte* weights(const Part& part) const { return data_.data() + part.offset; }

 private:
  void add_part(std::optional<BlockFormat> format, int64_t rows);

  Buffer data_;
  DType type_ = DType::kFloat32;
  bool gate_up_ = false;
  int64_t in_features_ = 0;
  int64_t out_features_ = 0;
  std::vector<Part> parts_;
};

// The packed bytes of rows of a format, but for rounding up to whole units.
int64_t packed_bytes(BlockFormat format, int64_t rows, int64_t in_features);

struct LinearArgs {
  const float* x = nullptr;     // [rows, in_features], rows x_stride apart
  int64_t x_stride = 0;         // in elements, at least in_features
  float* y = nullptr;           // [rows, out_features], rows y_stride apart; does not overlap x
  int64_t y_stride = 0;         // in elements, at least out_features
  int64_t rows = 0;             // 0 does nothing
  const float* bias = nullptr;  // [out_features] float32, or none
  bool accumulate = false;      // y += x W^T + bias: a residual
};

// REQUIRES: w is packed without gate_up.
void linear(CpuBackend& backend, const PackedMatrix& w, const LinearArgs& args);

// y = silu(x gate^T) * (x up^T), silu(v) = v / (1 + exp(-v)): the first half of a gated MLP.
// REQUIRES: w is packed with gate_up; no bias, no accumulate.
void linear_silu_mul(CpuBackend& backend, const PackedMatrix& w, const LinearArgs& args);

// The rows of a call that one of several matrices multiplies: those of an expert.
struct LinearGroup {
  const PackedMatrix* w = nullptr;
  int64_t rows = 0;             // those after the rows of the groups before; 0 does nothing
  const float* bias = nullptr;  // [out_features], or none
};

// The rows that a group counts for when scratch is reserved: call reserve_linear() with the sum of
// these.
constexpr int64_t padded_group_rows(int64_t rows) { return (rows + 15) / 16 * 16; }

// As linear() and linear_silu_mul() for rows that are adjacent group by group in args.x and args.y,
// each group with its own matrix. The units of all groups are distributed at once, so that threads
// wait for one another once and not after each matrix; a row has the bits of a call with its matrix
// alone. REQUIRES: args.rows is the sum of the groups', all matrices have the same shape, args.bias
// is null.
void linear_grouped(CpuBackend& backend, std::span<const LinearGroup> groups,
                    const LinearArgs& args);
void linear_silu_mul_grouped(CpuBackend& backend, std::span<const LinearGroup> groups,
                             const LinearArgs& args);

// out[i] = row ids[i] of w as float32: an embedding that shares its memory with the output head, or
// is quantised.
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
