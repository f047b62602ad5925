#include "checkpoint/compressed_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>

#include "checkpoint/convert.h"
#include "tensor/float16.h"

namespace espalier {
namespace {

using Kind = CompressedFormat::Kind;
using Rows = std::span<const float>;

constexpr int64_t kGroup = 128;  // inputs that share a scale of 4 bits
constexpr int64_t kBlock = 128;  // rows and inputs that share a scale of FP8_BLOCK
constexpr float kE4m3Max = 448;

constexpr CompressedFormat kFormats[] = {{"FP8", Kind::kFp8},
                                         {"FP8_BLOCK", Kind::kFp8Block},
                                         {"INT8", Kind::kInt8},
                                         {"INT4", Kind::kInt4},
                                         {"INT4_ZP", Kind::kInt4Zero}};

template <typename T>
void put_value(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

// A scale as the file has it.
float rounded_scale(float scale) { return to_float(to_bfloat16(scale)); }

float largest(Rows values) {
  float out = 0;
  for (const float value : values) out = std::max(out, std::abs(value));
  return out;
}

// The nearest e4m3, ties to even; beyond the range the largest.
uint8_t e4m3(float value) {
  const float size = std::abs(value);
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (!(size < kE4m3Max)) return std::isnan(size) ? 0x7f : sign | 0x7e;
  // Subnormal numbers have the exponent of the least normal ones.
  const int exponent = size == 0 ? -6 : std::max(std::ilogb(size), -6);
  const auto eighths = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));
  return sign | static_cast<uint8_t>(((exponent + 7) << 3) + eighths - 8);
}

float quotient(float value, float scale) { return scale == 0 ? 0.0f : value / scale; }

int8_t nearest_int8(float value) {
  return static_cast<int8_t>(std::clamp(std::nearbyint(value), -127.0f, 127.0f));
}

// ---- groups of 4 bits ----

struct Int4Group {
  float scale = 0;
  int zero = 8;

  int code(float value) const {
    const float steps = std::nearbyint(quotient(value, scale)) + static_cast<float>(zero);
    return static_cast<int>(std::clamp(steps, 0.0f, 15.0f));
  }
  double error(Rows values) const {
    double sum = 0;
    for (const float value : values) {
      const double off = value - static_cast<double>(code(value) - zero) * scale;
      sum += off * off;
    }
    return sum;
  }
};

Int4Group symmetric_group(Rows values, float kept) {
  return {.scale = rounded_scale(kept * largest(values) / 7.5f)};
}

// Zero is a number of each group, as in all of these formats.
Int4Group group_with_zero(Rows values, float kept) {
  const auto [least, most] = std::ranges::minmax(values);
  const float low = kept * std::min(least, 0.0f), high = kept * std::max(most, 0.0f);
  Int4Group group{.scale = rounded_scale((high - low) / 15.0f)};
  group.zero =
      static_cast<int>(std::clamp(std::nearbyint(-quotient(low, group.scale)), 0.0f, 15.0f));
  return group;
}

// Clipping a few large numbers costs less than coarse steps for all others.
Int4Group best_group(Rows values, bool zero) {
  Int4Group best;
  double least = std::numeric_limits<double>::infinity();
  for (int percent = 100; percent >= 70; percent -= 5) {
    const float kept = static_cast<float>(percent) / 100.0f;
    const Int4Group group = zero ? group_with_zero(values, kept) : symmetric_group(values, kept);
    const double error = group.error(values);
    if (error < least) least = error, best = group;
  }
  return best;
}

// ---- a matrix ----

// What is written of a matrix. Shared by the tensors that it becomes.
struct Matrix {
  const CheckpointTensor& tensor;
  const Kind kind;
  const int64_t rows, columns;

  // `count` rows, those beyond the matrix left out.
  std::vector<float> read(int64_t first, int64_t count) const {
    std::vector<float> values(static_cast<size_t>(std::min(count, rows - first) * columns));
    copy_as_float(tensor, first * columns, values);
    return values;
  }
  Rows row_of(const std::vector<float>& values, int64_t row) const {
    return Rows(values).subspan(static_cast<size_t>(row * columns), static_cast<size_t>(columns));
  }
  int64_t groups() const { return columns / kGroup; }
  int64_t blocks() const { return (columns + kBlock - 1) / kBlock; }
  Int4Group group(Rows row, int64_t index) const {
    return best_group(row.subspan(static_cast<size_t>(index * kGroup), kGroup),
                      kind == Kind::kInt4Zero);
  }
  float row_scale(Rows row) const {
    return rounded_scale(largest(row) / (kind == Kind::kInt8 ? 127.0f : kE4m3Max));
  }
};
using SharedMatrix = std::shared_ptr<const Matrix>;

// Codes of 8 bits of one row.
void put_row(const Matrix& m, Rows row, std::byte* to) {
  const float scale = m.row_scale(row);
  for (size_t i = 0; i < row.size(); ++i) {
    const float value = quotient(row[i], scale);
    to[i] = m.kind == Kind::kInt8 ? static_cast<std::byte>(nearest_int8(value))
                                  : static_cast<std::byte>(e4m3(value));
  }
}

// Rows [first, first + count) of the scales of blocks of 128 x 128.
std::vector<float> block_scales(const Matrix& m, const std::vector<float>& values, int64_t rows) {
  std::vector<float> out(static_cast<size_t>(m.blocks()));
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t block = 0; block < m.blocks(); ++block) {
      const int64_t first = block * kBlock, count = std::min(kBlock, m.columns - first);
      const Rows part =
          m.row_of(values, row).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
      float& most = out[static_cast<size_t>(block)];
      most = std::max(most, largest(part));
    }
  for (float& scale : out) scale = rounded_scale(scale / kE4m3Max);
  return out;
}

void put_block_row(const Matrix& m, const std::vector<float>& values, std::byte* to) {
  const int64_t rows = std::ssize(values) / m.columns;
  const std::vector<float> scales = block_scales(m, values, rows);
  for (int64_t i = 0; i < std::ssize(values); ++i) {
    const float scale = scales[static_cast<size_t>(i % m.columns / kBlock)];
    to[i] = static_cast<std::byte>(e4m3(quotient(values[static_cast<size_t>(i)], scale)));
  }
}

// Words of eight codes, low bits first.
void put_int4_row(const Matrix& m, Rows row, std::byte* to) {
  for (int64_t g = 0; g < m.groups(); ++g) {
    const Int4Group group = m.group(row, g);
    for (int64_t i = g * kGroup; i < (g + 1) * kGroup; i += 2) {
      const int low = group.code(row[static_cast<size_t>(i)]);
      const int high = group.code(row[static_cast<size_t>(i + 1)]);
      to[i / 2] = static_cast<std::byte>(low | high << 4);
    }
  }
}

// The zero points of eight rows: a word for each group, the first row's in its low bits.
void put_zeros(const Matrix& m, const std::vector<float>& values, std::byte* to) {
  for (int64_t g = 0; g < m.groups(); ++g) {
    uint32_t word = 0;
    for (int64_t row = 0; row < 8; ++row)
      word |= static_cast<uint32_t>(m.group(m.row_of(values, row), g).zero) << 4 * row;
    put_value(to + g * 4, word);
  }
}

// A tensor whose lines are made of `lines` rows of the matrix each.
using PutLine = void (*)(const Matrix&, const std::vector<float>&, std::byte*);
TensorToWrite tensor_of(const SharedMatrix& m, std::string name, std::string_view type,
                        std::vector<int64_t> shape, int64_t line_bytes, int64_t lines,
                        PutLine put) {
  return {.name = std::move(name),
          .shape = std::move(shape),
          .lines = LinesToWrite{.type = type,
                                .line_bytes = line_bytes,
                                .count = (m->rows + lines - 1) / lines,
                                .write = [m, lines, put](int64_t line, std::byte* to) {
                                  put(*m, m->read(line * lines, lines), to);
                                }}};
}

void add_codes_of_rows(const SharedMatrix& m, const std::string& stem,
                       std::vector<TensorToWrite>& out) {
  const char* type = m->kind == Kind::kInt8 ? "I8" : "F8_E4M3";
  out.push_back(tensor_of(m, stem + ".weight", type, {m->rows, m->columns}, m->columns, 1,
                          [](const Matrix& of, const std::vector<float>& row, std::byte* to) {
                            put_row(of, row, to);
                          }));
  out.push_back(tensor_of(m, stem + ".weight_scale", "BF16", {m->rows, 1}, 2, 1,
                          [](const Matrix& of, const std::vector<float>& row, std::byte* to) {
                            put_value(to, to_bfloat16(of.row_scale(row)));
                          }));
}

// A line of codes is a block of rows.
void add_codes_of_blocks(const SharedMatrix& m, const std::string& stem,
                         std::vector<TensorToWrite>& out) {
  out.push_back(tensor_of(m, stem + ".weight", "F8_E4M3", {m->rows, m->columns},
                          kBlock * m->columns, kBlock, put_block_row));
  const int64_t blocks = m->blocks();
  out.push_back(tensor_of(m, stem + ".weight_scale", "BF16",
                          {(m->rows + kBlock - 1) / kBlock, blocks}, 2 * blocks, kBlock,
                          [](const Matrix& of, const std::vector<float>& rows, std::byte* to) {
                            const int64_t count = std::ssize(rows) / of.columns;
                            for (const float scale : block_scales(of, rows, count)) {
                              put_value(to, to_bfloat16(scale));
                              to += 2;
                            }
                          }));
}

void add_int4(const SharedMatrix& m, const std::string& stem, std::vector<TensorToWrite>& out) {
  out.push_back(tensor_of(m, stem + ".weight_packed", "I32", {m->rows, m->columns / 8},
                          m->columns / 2, 1,
                          [](const Matrix& of, const std::vector<float>& row, std::byte* to) {
                            put_int4_row(of, row, to);
                          }));
  out.push_back(tensor_of(m, stem + ".weight_scale", "BF16", {m->rows, m->groups()},
                          2 * m->groups(), 1,
                          [](const Matrix& of, const std::vector<float>& row, std::byte* to) {
                            for (int64_t g = 0; g < of.groups(); ++g)
                              put_value(to + 2 * g, to_bfloat16(of.group(row, g).scale));
                          }));
  out.push_back(
      {.name = stem + ".weight_shape",
       .shape = {2},
       .lines = LinesToWrite{
           .type = "I64", .line_bytes = 16, .count = 1, .write = [m](int64_t, std::byte* to) {
             put_value(to, m->rows);
             put_value(to + 8, m->columns);
           }}});
  if (m->kind == Kind::kInt4Zero)
    out.push_back(tensor_of(m, stem + ".weight_zero_point", "I32", {m->rows / 8, m->groups()},
                            4 * m->groups(), 8, put_zeros));
}

// ---- the checkpoint ----

std::optional<std::string_view> stem_of(const CheckpointTensor& tensor) {
  constexpr std::string_view kEnd = ".weight";
  const std::string_view name = tensor.name;
  if (tensor.shape.size() != 2 || !name.ends_with(kEnd)) return std::nullopt;
  return name.substr(0, name.size() - kEnd.size());
}

bool takes(const CheckpointTensor& tensor, std::string_view stem, Kind kind) {
  if (tensor.name.find("layers.") == std::string::npos || !stem.ends_with("_proj")) return false;
  const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
  switch (kind) {
    case Kind::kFp8:
    case Kind::kInt8:
      return rows > 1 && columns > 1;
    case Kind::kFp8Block:
      return rows % kBlock == 0 && columns % kBlock == 0;
    case Kind::kInt4:
      return columns % kGroup == 0;
    case Kind::kInt4Zero:
      return columns % kGroup == 0 && rows % 8 == 0;
  }
  return false;
}

boost::json::object activations_of(Kind kind) {
  return {{"num_bits", 8},
          {"type", kind == Kind::kInt8 ? "int" : "float"},
          {"symmetric", true},
          {"dynamic", true},
          {"strategy", "token"}};
}

int64_t element_bytes(const TensorToWrite& tensor) {
  return tensor.num_elements() == 0 ? 1 : tensor.num_bytes() / tensor.num_elements();
}

// As compressed-tensors names what was done, with the modules that it was not done to.
std::string config_of(Kind kind, const std::vector<std::string>& ignored) {
  const bool int4 = kind == Kind::kInt4 || kind == Kind::kInt4Zero, int8 = kind == Kind::kInt8;
  boost::json::object weights{{"num_bits", int4 ? 4 : 8},
                              {"type", int4 || int8 ? "int" : "float"},
                              {"symmetric", kind != Kind::kInt4Zero},
                              {"dynamic", false},
                              {"strategy", int4                      ? "group"
                                           : kind == Kind::kFp8Block ? "block"
                                                                     : "channel"}};
  if (int4) weights["group_size"] = kGroup;
  if (kind == Kind::kFp8Block) weights["block_structure"] = {kBlock, kBlock};
  boost::json::object group{{"targets", {"Linear"}}, {"weights", std::move(weights)}};
  group["input_activations"] = nullptr;
  if (!int4) group["input_activations"] = activations_of(kind);
  if (kind == Kind::kFp8Block) {
    auto& activations = group["input_activations"].as_object();
    activations["strategy"] = "group";
    activations["group_size"] = kBlock;
  }
  const char* format = int4 ? "pack-quantized" : int8 ? "int-quantized" : "float-quantized";
  boost::json::array names;
  for (const std::string& name : ignored) names.emplace_back(name);
  return boost::json::serialize(
      boost::json::object{{"quant_method", "compressed-tensors"},
                          {"format", format},
                          {"quantization_status", "compressed"},
                          {"config_groups", {{"group_0", std::move(group)}}},
                          {"ignore", std::move(names)},
                          {"kv_cache_scheme", nullptr}});
}

}  // namespace

std::span<const CompressedFormat> compressed_formats() { return kFormats; }

const CompressedFormat* find_compressed_format(std::string_view name) {
  const auto found = std::ranges::find(kFormats, name, &CompressedFormat::name);
  return found == std::end(kFormats) ? nullptr : &*found;
}

Result<CompressedPlan> plan_compressed(const Checkpoint& checkpoint,
                                       const CompressedFormat& format) {
  CompressedPlan plan;
  std::vector<std::string> ignored;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const BlockEncoder* encoder = find_block_encoder(tensor.dtype_name);
    if (tensor.reader != nullptr || encoder == nullptr)
      return fail(error(StatusCode::kUnimplemented,
                        "the tensor '{}' is of the type {}: matrices are rounded from a folder of "
                        "F32, F16 or BF16",
                        tensor.name, tensor.dtype_name));
    const std::optional<std::string_view> stem = stem_of(tensor);
    if (!stem || !takes(tensor, *stem, format.kind)) {
      if (stem) ignored.emplace_back(*stem);
      plan.tensors.push_back({.name = tensor.name,
                              .shape = tensor.shape,
                              .encoder = encoder,
                              .stored = tensor.bytes,
                              .done = [&checkpoint, &tensor] { checkpoint.release(tensor); }});
      continue;
    }
    const auto matrix =
        std::make_shared<const Matrix>(tensor, format.kind, tensor.shape[0], tensor.shape[1]);
    const std::string name(*stem);
    if (format.kind == Kind::kFp8Block)
      add_codes_of_blocks(matrix, name, plan.tensors);
    else if (format.kind == Kind::kFp8 || format.kind == Kind::kInt8)
      add_codes_of_rows(matrix, name, plan.tensors);
    else
      add_int4(matrix, name, plan.tensors);
  }
  if (std::ranges::none_of(plan.tensors,
                           [](const TensorToWrite& t) { return t.lines.has_value(); }))
    return fail(invalid_argument("{} has no matrix that {} takes: layers' modules named *_proj{}",
                                 checkpoint.folder().string(), format.name,
                                 format.kind == Kind::kFp8 || format.kind == Kind::kInt8
                                     ? ""
                                     : ", of multiples of 128 inputs"));
  // Wide elements first, so that each tensor lies at a multiple of its elements' size.
  std::ranges::stable_sort(plan.tensors, std::greater(), element_bytes);
  plan.quantization_config = config_of(format.kind, ignored);
  return plan;
}

}  // namespace espalier
