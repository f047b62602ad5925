#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/linear/op.h"

namespace espalier::kernels {
namespace {

constexpr int64_t kUnit = PackedMatrix::kUnit;
constexpr int64_t kPanel = kUnit / 2;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

float as_float(const void* row, DType type, int64_t index) {
  switch (type) {
    case DType::kFloat32:
      return static_cast<const float*>(row)[index];
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(row)[index]);
    case DType::kFloat16:
      return to_float(static_cast<const Float16*>(row)[index]);
  }
  return 0;
}

// Where input `in` of the unit's output `out` lies, in elements.
int64_t index_f32(int64_t in, int64_t out) { return in * kUnit + out; }
int64_t index_bf16(int64_t in, int64_t out) {
  return ((in / 32 * 2 + out / kPanel) * 16 + in % 32 / 2) * 2 * kPanel + out % kPanel * 2 + in % 2;
}

// Writes one row of the source as output `out` of a unit.
void pack_row(const void* row, DType from, int64_t in_features, int64_t out, DType to,
              std::byte* unit) {
  if (to == DType::kFloat32) {
    auto* values = reinterpret_cast<float*>(unit);
    for (int64_t in = 0; in < in_features; ++in) {
      values[index_f32(in, out)] = as_float(row, from, in);
    }
  } else if (from == DType::kBFloat16) {
    auto* values = reinterpret_cast<BFloat16*>(unit);
    const auto* source = static_cast<const BFloat16*>(row);
    for (int64_t in = 0; in < in_features; ++in) values[index_bf16(in, out)] = source[in];
  } else {
    auto* values = reinterpret_cast<BFloat16*>(unit);
    for (int64_t in = 0; in < in_features; ++in) {
      values[index_bf16(in, out)] = to_bfloat16(as_float(row, from, in));
    }
  }
}

Status check_spec(const PackSpec& spec) {
  if (spec.in_features <= 0) return invalid_argument("a matrix of {} inputs", spec.in_features);
  if (spec.type == DType::kFloat16) {
    return invalid_argument("weights are held as F32 or BF16, not as F16");
  }
  for (const WeightRows& block : spec.blocks) {
    if (block.data == nullptr || block.rows <= 0) {
      return invalid_argument("a block of {} rows{}", block.rows,
                              block.data == nullptr ? " without data" : "");
    }
    if (block.row_stride != 0 && block.row_stride < spec.in_features) {
      return invalid_argument("a row stride of {} with {} inputs", block.row_stride,
                              spec.in_features);
    }
  }
  if (spec.blocks.empty()) return invalid_argument("a matrix without rows");
  if (spec.gate_up && (spec.blocks.size() != 2 || spec.blocks[0].rows != spec.blocks[1].rows)) {
    return invalid_argument("gate and up are two blocks of equal rows");
  }
  return {};
}

}  // namespace

Result<PackedMatrix> PackedMatrix::pack(CpuBackend& backend, const PackSpec& spec) {
  ESP_RETURN_IF_ERROR(check_spec(spec));
  PackedMatrix matrix;
  matrix.type_ = spec.type;
  matrix.gate_up_ = spec.gate_up;
  matrix.in_features_ = spec.in_features;
  matrix.padded_in_ =
      spec.type == DType::kBFloat16 ? round_up(spec.in_features, 32) : spec.in_features;
  int64_t rows = 0;
  for (const WeightRows& block : spec.blocks) rows += block.rows;
  matrix.out_features_ = spec.gate_up ? rows / 2 : rows;
  const int64_t unit_outputs = spec.gate_up ? kPanel : kUnit;
  matrix.num_units_ = (matrix.out_features_ + unit_outputs - 1) / unit_outputs;
  // The kernels ask for weights a little ahead of what they read: harmless beyond the end.
  ESP_ASSIGN_OR_RETURN(
      matrix.data_, Buffer::allocate(static_cast<size_t>(matrix.num_units_) * matrix.unit_bytes()));

  int64_t base = 0;  // of the block, among the outputs
  for (size_t index = 0; index < spec.blocks.size(); ++index) {
    const WeightRows& block = spec.blocks[index];
    const int64_t stride = block.row_stride == 0 ? spec.in_features : block.row_stride;
    const auto row_bytes = static_cast<size_t>(stride) * dtype_size(block.type);
    backend.pool().parallel_for(block.rows, kPanel, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const void* from =
            static_cast<const std::byte*>(block.data) + static_cast<size_t>(row) * row_bytes;
        const int64_t output = base + row;
        const int64_t unit = output / unit_outputs;
        const int64_t out =
            output % unit_outputs + (spec.gate_up ? static_cast<int64_t>(index) * kPanel : 0);
        pack_row(from, block.type, spec.in_features, out, spec.type,
                 matrix.data_.data() + static_cast<size_t>(unit) * matrix.unit_bytes());
      }
    });
    if (!spec.gate_up) base += block.rows;
  }
  return matrix;
}

void gather_packed_rows(CpuBackend& backend, const PackedMatrix& w, std::span<const int32_t> ids,
                        float* out, int64_t out_stride) {
  ESP_CHECK(!w.gate_up(), "rows of a matrix packed with gate_up have no ids");
  const auto copy = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t id = ids[static_cast<size_t>(i)];
      ESP_CHECK(id >= 0 && id < w.out_features(), "row {} of a matrix of {}", id, w.out_features());
      const std::byte* unit = w.unit(id / kUnit);
      float* to = out + i * out_stride;
      for (int64_t in = 0; in < w.in_features(); ++in) {
        to[in] =
            w.type() == DType::kFloat32
                ? reinterpret_cast<const float*>(unit)[index_f32(in, id % kUnit)]
                : to_float(reinterpret_cast<const BFloat16*>(unit)[index_bf16(in, id % kUnit)]);
      }
    }
  };
  const auto count = static_cast<int64_t>(ids.size());
  count <= 2 ? copy(0, count) : backend.pool().parallel_for(count, 4, copy);
}

}  // namespace espalier::kernels
