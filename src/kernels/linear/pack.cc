#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "kernels/linear/block_layout.h"
#include "kernels/linear/block_rows.h"
#include "kernels/linear/op.h"

namespace espalier::kernels {
namespace {

constexpr int64_t kUnit = PackedMatrix::kUnit;
constexpr int64_t kPanel = kUnit / 2;

constexpr int64_t rounded_up(int64_t value, int64_t multiple) {
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

// The offset of input `in` of the unit's output `out`, in elements.
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

bool holds_blocks(const PackSpec& spec, const WeightRows& block) {
  return block.format || spec.quantize;
}

Status check_block(const PackSpec& spec, const WeightRows& block) {
  if (block.data == nullptr || block.rows <= 0) {
    return invalid_argument("a block of {} rows{}", block.rows,
                            block.data == nullptr ? " without data" : "");
  }
  if (block.row_stride != 0 && block.row_stride < spec.in_features) {
    return invalid_argument("a row stride of {} with {} inputs", block.row_stride,
                            spec.in_features);
  }
  if (!block.order.empty() && static_cast<int64_t>(block.order.size()) != block.rows) {
    return invalid_argument("an order of {} rows for {}", block.order.size(), block.rows);
  }
  if (!block.format) return {};
  const BlockFormatInfo& info = block_format_info(*block.format);
  if (spec.in_features % info.elements != 0) {
    return invalid_argument("rows of {} are no whole blocks of {} ({})", spec.in_features,
                            info.elements, info.name);
  }
  return {};
}

Status check_spec(const PackSpec& spec) {
  if (spec.in_features <= 0) return invalid_argument("a matrix of {} inputs", spec.in_features);
  if (spec.type == DType::kFloat16) {
    return invalid_argument("weights are held as F32 or BF16, not as F16");
  }
  if (spec.quantize && *spec.quantize != BlockFormat::kQ8_0 &&
      *spec.quantize != BlockFormat::kQ4K && *spec.quantize != BlockFormat::kQ6K) {
    return invalid_argument("weights are not rounded to {}; use Q8_0, Q4_K or Q6_K",
                            block_format_info(*spec.quantize).name);
  }
  for (const WeightRows& block : spec.blocks) ESP_RETURN_IF_ERROR(check_block(spec, block));
  if (spec.blocks.empty()) return invalid_argument("a matrix without rows");
  for (const WeightRows& block : spec.blocks) {
    if (holds_blocks(spec, block) != holds_blocks(spec, spec.blocks[0])) {
      return invalid_argument("one matrix of quantised rows and of numbers");
    }
  }
  if (!spec.gate_up) return {};
  if (spec.blocks.size() != 2 || spec.blocks[0].rows != spec.blocks[1].rows) {
    return invalid_argument("gate and up are two blocks of equal rows");
  }
  if (spec.blocks[0].format != spec.blocks[1].format) {
    return invalid_argument("gate and up of two formats");
  }
  return {};
}

const PackedMatrix::Part& part_of(const PackedMatrix& w, int64_t output) {
  size_t index = w.parts().size() - 1;
  while (w.parts()[index].first_output > output) --index;
  return w.parts()[index];
}

// Rows of one source, read as what they are packed from.
class RowReader {
 public:
  RowReader(const PackSpec& spec, const WeightRows& rows)
      : spec_(spec), rows_(rows), numbers_(static_cast<size_t>(spec.in_features)) {
    const int64_t stride = rows.row_stride == 0 ? spec.in_features : rows.row_stride;
    row_bytes_ = static_cast<size_t>(stride) * dtype_size(rows.type);
    if (rows.format) {
      const BlockFormatInfo& info = block_format_info(*rows.format);
      row_bytes_ = static_cast<size_t>(spec.in_features / info.elements) * info.bytes;
    }
  }

  // Packs row `row` as output `out` of a unit of the part.
  void pack(int64_t row, const PackedMatrix::Part& part, int64_t out, std::byte* unit) {
    const int64_t source = rows_.order.empty() ? row : rows_.order[static_cast<size_t>(row)];
    const std::byte* from =
        static_cast<const std::byte*>(rows_.data) + static_cast<size_t>(source) * row_bytes_;
    if (!part.format) return pack_row(from, rows_.type, spec_.in_features, out, spec_.type, unit);
    if (rows_.format) {
      take_apart(*part.format, from, spec_.in_features, blocks_);
    } else {
      for (int64_t in = 0; in < spec_.in_features; ++in) {
        numbers_[static_cast<size_t>(in)] = as_float(from, rows_.type, in);
      }
      quantize_row(*part.format, numbers_.data(), spec_.in_features, blocks_);
    }
    place_row(*part.format, blocks_, out, unit);
  }

 private:
  const PackSpec& spec_;
  const WeightRows& rows_;
  size_t row_bytes_;
  std::vector<float> numbers_;
  BlockRow blocks_;
};

}  // namespace

int64_t packed_bytes(BlockFormat format, int64_t rows, int64_t in_features) {
  const BlockLayout& layout = kBlockLayouts[static_cast<size_t>(format)];
  return rows * (padded_inputs(format, in_features) / layout.chunk * layout.chunk_bytes) / kUnit;
}

// Rows of the last part's format are added to it; rows of another format begin a new part.
void PackedMatrix::add_part(std::optional<BlockFormat> format, int64_t rows) {
  const int64_t unit_outputs = gate_up_ ? kPanel : kUnit;
  if (parts_.empty() || parts_.back().format != format) {
    Part part;
    part.format = format;
    if (!parts_.empty()) {
      const Part& before = parts_.back();
      part.first_output = before.first_output + before.out_features;
      part.first_unit = before.first_unit + before.unit_count;
      part.offset = before.offset + static_cast<size_t>(before.unit_count) * before.unit_bytes;
    }
    if (format) {
      const BlockLayout& layout = kBlockLayouts[static_cast<size_t>(*format)];
      part.padded_in = padded_inputs(*format, in_features_);
      part.unit_bytes = static_cast<size_t>(part.padded_in / layout.chunk * layout.chunk_bytes);
    } else {
      part.padded_in = type_ == DType::kBFloat16 ? rounded_up(in_features_, 32) : in_features_;
      part.unit_bytes = static_cast<size_t>(part.padded_in * kUnit) * dtype_size(type_);
    }
    parts_.push_back(part);
  }
  Part& part = parts_.back();
  part.out_features += rows;
  part.unit_count = (part.out_features + unit_outputs - 1) / unit_outputs;
  out_features_ += rows;
}

Status PackedMatrix::copy_from(CpuBackend& backend, const PackedMatrix& other) {
  // The other's memory may be larger than its values, as may be this one's.
  size_t size = 0;
  for (const Part& part : other.parts_)
    size = std::max(size, part.offset + static_cast<size_t>(part.unit_count) * part.unit_bytes);
  if (data_.size_bytes() < size) {
    ESP_ASSIGN_OR_RETURN(data_, Buffer::allocate(size));
  }
  constexpr int64_t kCopyBytes = 256 << 10;  // at a time
  backend.pool().parallel_for(static_cast<int64_t>(size), kCopyBytes,
                              [&](int64_t begin, int64_t end) {
                                std::memcpy(data_.data() + begin, other.data_.data() + begin,
                                            static_cast<size_t>(end - begin));
                              });
  type_ = other.type_;
  gate_up_ = other.gate_up_;
  in_features_ = other.in_features_;
  out_features_ = other.out_features_;
  parts_ = other.parts_;
  return Status();
}

Result<PackedMatrix> PackedMatrix::pack(CpuBackend& backend, const PackSpec& spec) {
  ESP_RETURN_IF_ERROR(check_spec(spec));
  PackedMatrix matrix;
  matrix.type_ = spec.type;
  matrix.gate_up_ = spec.gate_up;
  matrix.in_features_ = spec.in_features;
  const auto format_of = [&](const WeightRows& block) {
    return block.format ? block.format : spec.quantize;
  };
  for (const WeightRows& block : spec.blocks) {
    matrix.add_part(format_of(block), block.rows);
    if (spec.gate_up) break;  // up is interleaved with gate
  }
  const Part& last = matrix.parts_.back();
  // The kernels prefetch weights a little ahead of what they read, which is harmless beyond the
  // end.
  ESP_ASSIGN_OR_RETURN(
      matrix.data_,
      Buffer::allocate(last.offset + static_cast<size_t>(last.unit_count) * last.unit_bytes));

  const int64_t unit_outputs = spec.gate_up ? kPanel : kUnit;
  int64_t base = 0;  // of the block, among the outputs
  for (size_t index = 0; index < spec.blocks.size(); ++index) {
    const WeightRows& block = spec.blocks[index];
    const Part& part =
        *std::find_if(matrix.parts_.rbegin(), matrix.parts_.rend(),
                      [&](const Part& candidate) { return candidate.first_output <= base; });
    backend.pool().parallel_for(block.rows, kPanel, [&](int64_t begin, int64_t end) {
      RowReader reader(spec, block);
      for (int64_t row = begin; row < end; ++row) {
        const int64_t output = base - part.first_output + row;
        const int64_t unit = output / unit_outputs;
        const int64_t out =
            output % unit_outputs + (spec.gate_up ? static_cast<int64_t>(index) * kPanel : 0);
        reader.pack(
            row, part, out,
            matrix.data_.data() + part.offset + static_cast<size_t>(unit) * part.unit_bytes);
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
      const PackedMatrix::Part& part = part_of(w, id);
      const int64_t output = id - part.first_output;
      const std::byte* unit =
          w.weights(part) + static_cast<size_t>(output / kUnit) * part.unit_bytes;
      float* to = out + i * out_stride;
      if (part.format) {
        widen_row(*part.format, unit, output % kUnit, w.in_features(), to);
        continue;
      }
      for (int64_t in = 0; in < w.in_features(); ++in) {
        to[in] =
            w.type() == DType::kFloat32
                ? reinterpret_cast<const float*>(unit)[index_f32(in, output % kUnit)]
                : to_float(reinterpret_cast<const BFloat16*>(unit)[index_bf16(in, output % kUnit)]);
      }
    }
  };
  const auto count = static_cast<int64_t>(ids.size());
  count <= 2 ? copy(0, count) : backend.pool().parallel_for(count, 4, copy);
}

}  // namespace espalier::kernels
