#include "models/weight_reader.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "models/decoder_weights.h"

namespace espalier {
namespace {

using kernels::PackedMatrix;
using kernels::WeightRows;

// Where row `i` of an expert goes in its shard, all of gate first; -1: another rank has it.
int64_t local_row(const ExpertRows& shape, int64_t i) {
  const int64_t block = i % shape.blocks();
  const TensorSlice slice = shape.slice();
  const int64_t row = i / shape.blocks() - slice.first_row;
  return row < 0 || row >= slice.rows ? -1 : block * slice.rows + row;
}

// Four bits: a sign, two of exponent, one of mantissa (OCP Microscaling formats 1.0, E2M1).
constexpr float kFp4[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
constexpr int64_t kMxBlock = 32;  // elements that share a scale, 2^(byte - 127)
constexpr int64_t kMxBytes = 16;  // of a block; the low half of a byte comes first

// Columns [first, first + count) of a row.
void widen_mxfp4(const uint8_t* blocks, const uint8_t* scales, int64_t first, int64_t count,
                 float* out) {
  float scale = 0;
  for (int64_t i = first; i < first + count; ++i) {
    if (i == first || i % kMxBlock == 0) scale = std::ldexp(1.0f, scales[i / kMxBlock] - 127);
    *out++ = kFp4[blocks[i / 2] >> (i % 2 * 4) & 15] * scale;
  }
}

// The same elements as a row of BlockFormat::kMxfp4: the exponent before its block, of which byte i
// has elements i and i + 16 instead of neighbours.
void reblock_mxfp4(const uint8_t* blocks, const uint8_t* scales, int64_t columns, std::byte* out) {
  for (int64_t block = 0; block < columns / kMxBlock; ++block, blocks += kMxBytes) {
    const auto element = [&](int64_t i) { return blocks[i / 2] >> (i % 2 * 4) & 15; };
    *out++ = std::byte{scales[block]};
    for (int64_t i = 0; i < kMxBytes; ++i) {
      *out++ = static_cast<std::byte>(element(i) | element(i + kMxBytes) << 4);
    }
  }
}

// The shard of a block of elements, [rows, in_features] as it lies in memory.
void shard_rows(const MatrixLayout& layout, size_t index, WeightRows& block) {
  if (layout.shard.whole()) return;
  const TensorSlice slice = layout.slice_of(layout.blocks[index]);
  const auto size = static_cast<int64_t>(dtype_size(block.type));
  block.data = static_cast<const std::byte*>(block.data) +
               (slice.first_row * layout.in_features + slice.first_column) * size;
  block.rows = slice.rows;
  block.row_stride = layout.in_features;
}

// The shard of a block that is stored quantised: whole rows.
WeightRows shard_blocks(const MatrixLayout& layout, const WeightBlock& block,
                        const StoredBlocks& stored) {
  const TensorSlice slice = layout.slice_of(block);
  const BlockFormatInfo& format = block_format_info(stored.format);
  WeightRows out{.data = stored.data, .rows = slice.rows, .format = stored.format};
  if (stored.order.empty()) {
    const int64_t row_bytes =
        layout.in_features / format.elements * static_cast<int64_t>(format.bytes);
    out.data = stored.data + slice.first_row * row_bytes;
  } else {
    out.order =
        stored.order.subspan(static_cast<size_t>(slice.first_row), static_cast<size_t>(slice.rows));
  }
  return out;
}

}  // namespace

LentTensor skip_elements(const LentTensor& tensor, int64_t count) {
  return {static_cast<const std::byte*>(tensor.data) +
              static_cast<size_t>(count) * dtype_size(tensor.type),
          tensor.type};
}

StorageFormat WeightReader::format_of(const MatrixLayout& layout, bool gate_up) const {
  return storage_format(layout, gate_up, types_,
                        [this](std::string_view name) { return source_.stored_format(name); });
}

Status WeightReader::pack_rows(const kernels::PackSpec& spec, PackedMatrix& out) {
  ESP_ASSIGN_OR_RETURN(out, PackedMatrix::pack(backend_, spec));
  return Status();
}

// The checkpoint's own blocks.
Status WeightReader::stored_matrix(const MatrixLayout& layout, bool gate_up, PackedMatrix& out) {
  std::vector<WeightRows> rows;
  for (const WeightBlock& block : layout.blocks) {
    const int64_t shape[] = {block.rows, layout.in_features};
    ESP_ASSIGN_OR_RETURN(const StoredBlocks lent, source_.lend_blocks(block.name, shape));
    rows.push_back(shard_blocks(layout, block, lent));
  }
  ESP_RETURN_IF_ERROR(
      pack_rows({.in_features = layout.in_features, .blocks = rows, .gate_up = gate_up}, out));
  for (const WeightBlock& block : layout.blocks) source_.give_back(block.name);
  return Status();
}

Status WeightReader::matrix(const MatrixLayout& layout, PackedMatrix& out, bool gate_up) {
  if (layout.empty()) return Status();
  ESP_RETURN_IF_ERROR(check_shard(layout));
  const StorageFormat format = format_of(layout, gate_up);
  if (format.stored) return stored_matrix(layout, gate_up, out);
  const int64_t in_features = layout.in_features;
  std::vector<WeightRows> rows;
  std::vector<std::string> taken;
  std::vector<Buffer> turned;
  const auto take = [&](const std::string& name, int64_t outputs) -> Result<LentTensor> {
    taken.push_back(name);
    const std::vector<int64_t> shape = !layout.stored_shape.empty() ? layout.stored_shape
                                       : layout.transposed
                                           ? std::vector<int64_t>{in_features, outputs}
                                           : std::vector<int64_t>{outputs, in_features};
    ESP_ASSIGN_OR_RETURN(LentTensor lent, source_.lend(name, shape));
    if (!layout.transposed) return lent;
    ESP_ASSIGN_OR_RETURN(Buffer buffer, transpose(lent, in_features, outputs));
    turned.push_back(std::move(buffer));
    return LentTensor{turned.back().data(), DType::kFloat32};
  };
  LentTensor all;  // of a fused tensor
  if (layout.fused) {
    ESP_ASSIGN_OR_RETURN(all, take(layout.blocks[0].name, layout.out_features()));
  }
  for (const WeightBlock& block : layout.blocks) {
    LentTensor lent = all;
    if (layout.fused) {
      all = skip_elements(all, block.rows * in_features);
    } else {
      ESP_ASSIGN_OR_RETURN(lent, take(block.name, block.rows));
    }
    rows.push_back({.data = lent.data, .type = lent.type, .rows = block.rows});
  }
  for (size_t i = 0; i < rows.size(); ++i) shard_rows(layout, i, rows[i]);
  kernels::PackSpec spec{.in_features = layout.local_columns(),
                         .type = format.type,
                         .blocks = rows,
                         .gate_up = gate_up};
  if (!format.blocks.empty()) spec.quantize = format.blocks[0];
  ESP_RETURN_IF_ERROR(pack_rows(spec, out));
  for (const std::string& name : taken) source_.give_back(name);
  return Status();
}

Status WeightReader::vector(const VectorLayout& layout, std::vector<float>& out) {
  for (const WeightBlock& block : layout.blocks) {
    const int64_t shape[] = {block.rows};
    ESP_ASSIGN_OR_RETURN(const LentTensor lent, source_.lend(block.name, shape));
    for (int64_t i = 0; i < block.rows; ++i) out.push_back(element_of(lent, i));
    source_.give_back(block.name);
  }
  if (layout.parts.empty()) return Status();
  std::vector<float> parts;
  for (const VectorLayout::Part& part : layout.parts) {
    const auto first = out.begin() + part.first;
    parts.insert(parts.end(), first, first + part.count);
  }
  out = std::move(parts);
  return Status();
}

Status WeightReader::norm(const std::optional<NormSpec>& spec, const VectorLayout& layout,
                          NormWeights& out) {
  if (!spec || layout.empty()) return Status();
  ESP_RETURN_IF_ERROR(vector(layout, out.weight));
  switch (spec->kind) {
    case NormSpec::Kind::kRms:
    case NormSpec::Kind::kScale:
      break;
    case NormSpec::Kind::kGate:
      for (float& value : out.weight) value = std::tanh(value);
      break;
    case NormSpec::Kind::kRmsOneCentred:
      for (float& value : out.weight) value += 1.0f;
      break;
    case NormSpec::Kind::kLayer: {
      const auto half = out.weight.begin() + std::ssize(out.weight) / 2;
      out.bias.assign(half, out.weight.end());
      out.weight.erase(half, out.weight.end());
      break;
    }
  }
  return Status();
}

Status WeightReader::table(const MatrixLayout& layout, Buffer& out) {
  if (layout.empty()) return Status();
  const std::string& name = layout.blocks[0].name;
  const int64_t shape[] = {layout.out_features(), layout.in_features};
  ESP_ASSIGN_OR_RETURN(const LentTensor lent, source_.lend(name, shape));
  ESP_RETURN_IF_ERROR(check_shard(layout));
  const TensorSlice slice = layout.shard.slice(shape[0], shape[1]);
  const LentTensor rows = skip_elements(lent, slice.first_row * shape[1]);
  const int64_t count = slice.rows * shape[1];
  ESP_ASSIGN_OR_RETURN(out, Buffer::allocate(static_cast<size_t>(count) * dtype_size(type_)));
  constexpr int64_t kGrain = 1 << 16;
  backend_.pool().parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    if (rows.type == type_) {
      const size_t size = dtype_size(type_), first = static_cast<size_t>(begin) * size;
      std::memcpy(out.data() + first, static_cast<const std::byte*>(rows.data) + first,
                  static_cast<size_t>(end - begin) * size);
      return;
    }
    for (int64_t i = begin; i < end; ++i) {
      const float value = element_of(rows, i);
      if (type_ == DType::kFloat32) {
        out.as<float>()[i] = value;
      } else {
        out.as<BFloat16>()[i] = to_bfloat16(value);
      }
    }
  });
  source_.give_back(name);
  return Status();
}

Result<Buffer> WeightReader::transpose(const LentTensor& tensor, int64_t rows, int64_t columns) {
  ESP_ASSIGN_OR_RETURN(Buffer out,
                       Buffer::allocate(static_cast<size_t>(rows * columns) * sizeof(float)));
  constexpr int64_t kGrain = 64;
  backend_.pool().parallel_for(columns, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = begin; column < end; ++column) {
        out.as<float>()[column * rows + row] = element_of(tensor, row * columns + column);
      }
    }
  });
  return out;
}

Status WeightReader::pack(const LentTensor& tensor, int64_t rows, int64_t columns,
                          PackedMatrix& out) {
  const WeightRows block{.data = tensor.data, .type = tensor.type, .rows = rows};
  return pack_rows({.in_features = columns, .type = type_, .blocks = {&block, 1}}, out);
}

Status WeightReader::pack_transposed(const LentTensor& tensor, int64_t rows, int64_t columns,
                                     PackedMatrix& out) {
  ESP_ASSIGN_OR_RETURN(const Buffer turned, transpose(tensor, rows, columns));
  return pack({turned.data(), DType::kFloat32}, columns, rows, out);
}

void WeightReader::pass_over(const MlpLayout& expert) {
  for (const std::string& name : tensor_names(expert)) source_.pass_over(name);
}

Status WeightReader::experts(const std::string& name, const ExpertRows& shape,
                             std::vector<PackedMatrix>& out) {
  const int64_t extents[] = {shape.count, shape.columns, shape.rows};
  ESP_ASSIGN_OR_RETURN(const LentTensor lent, source_.lend(name, extents));
  const int64_t size = shape.rows * shape.columns;
  const TensorSlice slice = shape.slice();
  for (const int64_t expert : shape.experts) {
    ESP_ASSIGN_OR_RETURN(Buffer turned,
                         transpose(skip_elements(lent, expert * size), shape.columns, shape.rows));
    const auto* rows = turned.as<float>();
    // Gate's rows are every other one, then up's.
    const int64_t step = shape.blocks();
    std::vector<WeightRows> blocks;
    for (int64_t first = 0; first < step; ++first) {
      blocks.push_back(
          {.data = rows + (first + step * slice.first_row) * shape.columns + slice.first_column,
           .type = DType::kFloat32,
           .rows = slice.rows,
           .row_stride = step * shape.columns});
    }
    ESP_RETURN_IF_ERROR(pack_rows({.in_features = slice.columns,
                                   .type = type_,
                                   .blocks = blocks,
                                   .quantize = types_.quantize},
                                  out.emplace_back()));
  }
  source_.give_back(name);
  return Status();
}

Status WeightReader::mxfp4_experts(const std::string& name, const ExpertRows& shape,
                                   std::vector<PackedMatrix>& out) {
  if (shape.columns % kMxBlock != 0) {
    return invalid_argument("'{}': {} columns are no whole number of MXFP4 blocks of {}", name,
                            shape.columns, kMxBlock);
  }
  const TensorSlice slice = shape.slice();
  const int64_t groups = shape.columns / kMxBlock;
  const int64_t block_shape[] = {shape.count, shape.rows, groups, kMxBytes};
  const int64_t scale_shape[] = {shape.count, shape.rows, groups};
  ESP_ASSIGN_OR_RETURN(const auto blocks, source_.lend_bytes(name + "_blocks", block_shape));
  ESP_ASSIGN_OR_RETURN(const auto scales, source_.lend_bytes(name + "_scales", scale_shape));
  const auto* block_bytes = reinterpret_cast<const uint8_t*>(blocks.data());
  const auto* scale_bytes = reinterpret_cast<const uint8_t*>(scales.data());
  // An expert's rows as blocks, or as numbers; a shard that cuts blocks has numbers.
  const bool keep = types_.keep_blocks && slice.columns % kMxBlock == 0;
  const size_t row_bytes = keep ? static_cast<size_t>(slice.columns / kMxBlock) * (kMxBytes + 1)
                                : static_cast<size_t>(slice.columns) * sizeof(float);
  const int64_t local_rows = shape.blocks() * slice.rows;
  ESP_ASSIGN_OR_RETURN(Buffer rows, Buffer::allocate(static_cast<size_t>(local_rows) * row_bytes));
  WeightRows block{.data = rows.data(), .type = DType::kFloat32, .rows = local_rows};
  kernels::PackSpec spec{.in_features = slice.columns, .type = type_, .blocks = {&block, 1}};
  if (keep) {
    block.format = BlockFormat::kMxfp4;
  } else {
    spec.quantize = types_.quantize;
  }
  for (const int64_t expert : shape.experts) {
    backend_.pool().parallel_for(shape.rows, 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t place = local_row(shape, row);
        if (place < 0) continue;
        const int64_t at = (expert * shape.rows + row) * groups;
        std::byte* to = rows.data() + static_cast<size_t>(place) * row_bytes;
        if (keep) {
          const int64_t from = at + slice.first_column / kMxBlock;
          reblock_mxfp4(block_bytes + from * kMxBytes, scale_bytes + from, slice.columns, to);
        } else {
          widen_mxfp4(block_bytes + at * kMxBytes, scale_bytes + at, slice.first_column,
                      slice.columns, reinterpret_cast<float*>(to));
        }
      }
    });
    ESP_RETURN_IF_ERROR(pack_rows(spec, out.emplace_back()));
  }
  source_.give_back(name + "_blocks");
  source_.give_back(name + "_scales");
  return Status();
}

Status WeightReader::expert_biases(const std::string& name, const ExpertRows& shape,
                                   std::vector<std::vector<float>>& out) {
  const int64_t extents[] = {shape.count, shape.rows};
  ESP_ASSIGN_OR_RETURN(const LentTensor lent, source_.lend(name, extents));
  const auto local_rows = static_cast<size_t>(shape.blocks() * shape.slice().rows);
  for (const int64_t expert : shape.experts) {
    std::vector<float>& bias = out.emplace_back(local_rows);
    for (int64_t i = 0; i < shape.rows; ++i) {
      const int64_t place = local_row(shape, i);
      if (place >= 0) bias[static_cast<size_t>(place)] = element_of(lent, expert * shape.rows + i);
    }
  }
  source_.give_back(name);
  return Status();
}

}  // namespace espalier
