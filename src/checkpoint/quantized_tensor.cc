#include "checkpoint/quantized_tensor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "checkpoint/convert.h"
#include "checkpoint/e2m1_reader.h"
#include "checkpoint/input_groups.h"
#include "checkpoint/small_floats.h"

// Compiled without contraction of products and sums, so that results have the reference's bits.

namespace espalier {
namespace {

template <typename T>
T load(const std::byte* from, int64_t i) {
  T value;
  std::memcpy(&value, from + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

// Calls fn(row, column, out) for the elements [first, first + out.size()) of rows of `columns`.
template <typename Fn>
void for_each_element(int64_t first, int64_t columns, std::span<float> out, const Fn& fn) {
  int64_t row = columns > 0 ? first / columns : 0, column = columns > 0 ? first % columns : 0;
  for (float& value : out) {
    value = fn(row, column);
    if (++column < columns) continue;
    column = 0;
    ++row;
  }
}

// ---- GGUF ----

class BlockReader final : public TensorReader {
 public:
  BlockReader(const GgufTensor& tensor, std::vector<int64_t> rows)
      : type_(*tensor.type),
        bytes_(tensor.bytes.data()),
        columns_(tensor.shape.size() < 2 && !rows.empty() ? 1 : row_size(tensor)),
        rows_(std::move(rows)) {}

  void read(int64_t first, std::span<float> out) const override {
    while (!out.empty()) {
      const int64_t row = first / columns_, column = first % columns_;
      const auto count = std::min(static_cast<int64_t>(out.size()), columns_ - column);
      const int64_t from = rows_.empty() ? row : rows_[static_cast<size_t>(row)];
      read_run(from * columns_ + column, out.first(static_cast<size_t>(count)));
      out = out.subspan(static_cast<size_t>(count));
      first += count;
    }
  }

  std::optional<StoredBlocks> blocks() const override {
    const std::optional<BlockFormat> format = parse_block_format(type_.name);
    if (!format || columns_ % type_.elements != 0) return std::nullopt;
    return StoredBlocks{*format, bytes_, rows_};
  }
  // Scales lie in the blocks.
  std::optional<StoredInt4> int4() const override {
    const std::optional<StoredBlocks> stored = blocks();
    if (!stored || stored->format != BlockFormat::kQ4_0) return std::nullopt;
    return StoredInt4{.order = StoredInt4::Order::kQ4_0,
                      .data = bytes_,
                      .line_bytes = columns_ / type_.elements * static_cast<int64_t>(type_.bytes),
                      .rows = rows_,
                      .group = 32};
  }

 private:
  static int64_t row_size(const GgufTensor& tensor) {
    return tensor.shape.empty() ? 1 : std::max<int64_t>(tensor.shape.back(), 1);
  }

  void read_run(int64_t first, std::span<float> out) const {
    std::array<float, 256> values{};
    while (!out.empty()) {
      const int64_t block = first / type_.elements, skip = first % type_.elements;
      const auto count = std::min<int64_t>(static_cast<int64_t>(out.size()), type_.elements - skip);
      const std::byte* from = bytes_ + static_cast<size_t>(block) * type_.bytes;
      if (count == type_.elements) {
        type_.dequantize(from, out.data());
      } else {
        type_.dequantize(from, values.data());
        std::copy_n(values.begin() + skip, count, out.begin());
      }
      out = out.subspan(static_cast<size_t>(count));
      first += count;
    }
  }

  const BlockType& type_;
  const std::byte* const bytes_;
  const int64_t columns_;
  const std::vector<int64_t> rows_;
};

// ---- Plain types ----

class TableReader final : public TensorReader {
 public:
  TableReader(const std::byte* bytes, const std::array<float, 256>& table)
      : bytes_(bytes), table_(table) {}
  void read(int64_t first, std::span<float> out) const override {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = table_[static_cast<uint8_t>(bytes_[static_cast<size_t>(first) + i])];
    }
  }

 private:
  const std::byte* const bytes_;
  const std::array<float, 256>& table_;
};

template <typename T>
class NumberReader final : public TensorReader {
 public:
  explicit NumberReader(const std::byte* bytes) : bytes_(bytes) {}
  void read(int64_t first, std::span<float> out) const override {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<float>(load<T>(bytes_, first + static_cast<int64_t>(i)));
    }
  }

 private:
  const std::byte* const bytes_;
};

std::vector<float> all_floats(const CheckpointTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  copy_as_float(tensor, 0, values);
  return values;
}

// ---- FP8 and 8-bit integers with scales ----

// scale [r, c] holds for the rows and columns of its block.
class ScaledReader final : public TensorReader {
 public:
  struct Scales {
    std::vector<float> values;  // [.., columns]
    int64_t columns = 1;
    int64_t block_rows = 1, block_columns = 1;  // of elements
  };

  ScaledReader(std::shared_ptr<const TensorReader> values, const CheckpointTensor& weight,
               Scales scales)
      : values_(std::move(values)),
        columns_(weight.shape[1]),
        scales_(std::move(scales.values)),
        scale_columns_(scales.columns),
        block_rows_(scales.block_rows),
        block_columns_(scales.block_columns),
        codes_(weight.dtype_name == "F8_E4M3" ? weight.bytes.data() : nullptr) {}

  std::optional<StoredE4m3> e4m3() const override {
    const bool of_rows = scales_.size() == 1 || (block_rows_ == 1 && scale_columns_ == 1);
    const bool of_blocks = block_rows_ == 128 && block_columns_ == 128;
    if (codes_ == nullptr || !(of_rows || of_blocks)) return std::nullopt;
    return StoredE4m3{codes_, scales_, of_rows ? 0 : scale_columns_};
  }
  void read(int64_t first, std::span<float> out) const override {
    values_->read(first, out);
    size_t i = 0;
    for_each_element(first, columns_, out, [&](int64_t row, int64_t column) {
      const int64_t scale = row / block_rows_ * scale_columns_ + column / block_columns_;
      return out[i++] * scales_[static_cast<size_t>(scale)];
    });
  }

 private:
  const std::shared_ptr<const TensorReader> values_;
  const int64_t columns_;
  const std::vector<float> scales_;
  const int64_t scale_columns_, block_rows_, block_columns_;
  const std::byte* const codes_;  // null: no e4m3
};

// ---- Integers with scales and zero points ----

// Eight values of 4 bits in an int32, or four of 8.
int packed_value(const std::byte* from, int64_t word, int slot, int bits) {
  return static_cast<int>(load<uint32_t>(from, word) >> (slot * bits)) & ((1 << bits) - 1);
}

// qweight [in / n, out]: a word has n rows of a column; qzeros [groups, out / n].
class GptqReader final : public TensorReader {
 public:
  GptqReader(PackedShape shape, const std::byte* weights, const std::byte* zeros,
             std::vector<float> scales, std::vector<int32_t> groups, int zero_offset)
      : shape_(shape),
        per_word_(32 / shape.bits),
        weights_(weights),
        zeros_(zeros),
        scales_(std::move(scales)),
        groups_(std::move(groups)),
        grouping_(shape, groups_),
        zero_offset_(zero_offset) {}
  void read(int64_t first, std::span<float> out) const override {
    const int64_t n = shape_.out_features;
    for_each_element(first, shape_.in_features, out, [&](int64_t row, int64_t column) {
      const int q = packed_value(weights_, column / per_word_ * n + row,
                                 static_cast<int>(column % per_word_), shape_.bits);
      const int64_t group = groups_[static_cast<size_t>(column)];
      const int zero = packed_value(zeros_, group * (n / per_word_) + row / per_word_,
                                    static_cast<int>(row % per_word_), shape_.bits);
      return scales_[static_cast<size_t>(group * n + row)] *
             static_cast<float>(q - zero - zero_offset_);
    });
  }
  std::optional<StoredInt4> int4() const override {
    if (grouping_.group == 0) return std::nullopt;
    return StoredInt4{.order = StoredInt4::Order::kColumns,
                      .data = weights_,
                      .line_bytes = shape_.out_features * 4,
                      .columns = grouping_.columns,
                      .group = grouping_.group,
                      .zeros = true};
  }
  float int4_scale(int64_t row, int64_t column) const override {
    return scales_[static_cast<size_t>(groups_[static_cast<size_t>(column)] * shape_.out_features +
                                       row)];
  }
  uint8_t int4_zero(int64_t row, int64_t column) const override {
    const int64_t words = shape_.out_features / per_word_;
    const int zero =
        packed_value(zeros_, groups_[static_cast<size_t>(column)] * words + row / per_word_,
                     static_cast<int>(row % per_word_), shape_.bits);
    return static_cast<uint8_t>(zero + zero_offset_);
  }

 private:
  const PackedShape shape_;
  const int per_word_;
  const std::byte *const weights_, *const zeros_;
  const std::vector<float> scales_;
  const std::vector<int32_t> groups_;  // of each input
  const InputGroups grouping_;
  const int zero_offset_;
};

// qweight [in, out / 8], qzeros [groups, out / 8]; column c of eight lies in this slot.
constexpr int kAwqSlots[8] = {0, 4, 1, 5, 2, 6, 3, 7};

class AwqReader final : public TensorReader {
 public:
  AwqReader(PackedShape shape, const std::byte* weights, const std::byte* zeros,
            std::vector<float> scales)
      : shape_(shape), weights_(weights), zeros_(zeros), scales_(std::move(scales)) {}
  void read(int64_t first, std::span<float> out) const override {
    const int64_t words = shape_.out_features / 8;
    const int64_t group_size = shape_.in_features / shape_.num_groups;
    for_each_element(first, shape_.in_features, out, [&](int64_t row, int64_t column) {
      const int slot = kAwqSlots[row % 8];
      const int64_t group = column / group_size;
      const int q = packed_value(weights_, column * words + row / 8, slot, 4);
      const int zero = packed_value(zeros_, group * words + row / 8, slot, 4);
      return scales_[static_cast<size_t>(group * shape_.out_features + row)] *
             static_cast<float>(q - zero);
    });
  }
  std::optional<StoredInt4> int4() const override {
    const int64_t size = shape_.in_features / shape_.num_groups;
    if (size % 32 != 0) return std::nullopt;
    return StoredInt4{.order = StoredInt4::Order::kAwq,
                      .data = weights_,
                      .line_bytes = shape_.out_features / 2,
                      .group = size % 128 == 0 ? 128 : 32,
                      .zeros = true};
  }
  float int4_scale(int64_t row, int64_t column) const override {
    return scales_[static_cast<size_t>(group_at(column) * shape_.out_features + row)];
  }
  uint8_t int4_zero(int64_t row, int64_t column) const override {
    return static_cast<uint8_t>(packed_value(
        zeros_, group_at(column) * (shape_.out_features / 8) + row / 8, kAwqSlots[row % 8], 4));
  }

 private:
  int64_t group_at(int64_t column) const {
    return column / (shape_.in_features / shape_.num_groups);
  }

  const PackedShape shape_;
  const std::byte *const weights_, *const zeros_;
  const std::vector<float> scales_;
};

// Whole numbers of 4 or 8 bits in words of a row's neighbours, low bits first, counted from half of
// their range, or from a zero point of each row and group.
class RowPackedReader final : public TensorReader {
 public:
  RowPackedReader(PackedShape shape, const std::byte* weights, const std::byte* zeros,
                  std::vector<float> scales, std::vector<int32_t> groups)
      : shape_(shape),
        per_word_(32 / shape.bits),
        weights_(weights),
        zeros_(zeros),
        scales_(std::move(scales)),
        groups_(std::move(groups)),
        grouping_(shape, groups_) {}
  void read(int64_t first, std::span<float> out) const override {
    const int64_t words = (shape_.in_features + per_word_ - 1) / per_word_;
    for_each_element(first, shape_.in_features, out, [&](int64_t row, int64_t column) {
      const int64_t group = groups_[static_cast<size_t>(column)];
      const int q = packed_value(weights_, row * words + column / per_word_,
                                 static_cast<int>(column % per_word_), shape_.bits);
      return scales_[static_cast<size_t>(row * shape_.num_groups + group)] *
             static_cast<float>(q - zero(row, group));
    });
  }
  std::optional<StoredInt4> int4() const override {
    if (grouping_.group == 0) return std::nullopt;
    return StoredInt4{.order = StoredInt4::Order::kRows,
                      .data = weights_,
                      .line_bytes = shape_.in_features / 2,
                      .columns = grouping_.columns,
                      .group = grouping_.group,
                      .zeros = zeros_ != nullptr};
  }
  float int4_scale(int64_t row, int64_t column) const override {
    const int64_t group = groups_[static_cast<size_t>(column)];
    return scales_[static_cast<size_t>(row * shape_.num_groups + group)];
  }
  uint8_t int4_zero(int64_t row, int64_t column) const override {
    return static_cast<uint8_t>(zero(row, groups_[static_cast<size_t>(column)]));
  }

 private:
  int zero(int64_t row, int64_t group) const {
    if (zeros_ == nullptr) return 1 << (shape_.bits - 1);
    return packed_value(zeros_, row / per_word_ * shape_.num_groups + group,
                        static_cast<int>(row % per_word_), shape_.bits);
  }

  const PackedShape shape_;
  const int per_word_;
  const std::byte *const weights_, *const zeros_;  // zeros: [out / n, groups], or null
  const std::vector<float> scales_;                // [out, groups]
  const std::vector<int32_t> groups_;              // of each input
  const InputGroups grouping_;
};

// ---- Putting together ----

// What a checkpoint's config.json says of its quantisation.
struct QuantizationConfig {
  std::string method;  // empty: nothing is said
  int bits = 4;
  int zero_offset = 1;         // of GPTQ
  std::vector<int64_t> block;  // [rows, columns] of a scale, of FP8; empty: 128 by 128

  static Result<QuantizationConfig> read(const JsonObject& config) {
    QuantizationConfig out;
    ESP_ASSIGN_OR_RETURN(out.method, config.string_or("quant_method", ""));
    if (out.method == "mxfp4") return out;  // its tensors are read by the models that have them
    if (out.method == "compressed-tensors") {
      ESP_RETURN_IF_ERROR(out.read_compressed(config));
      return out;
    }
    if (out.method == "modelopt") {
      ESP_ASSIGN_OR_RETURN(const std::string algorithm, config.string_or("quant_algo", "FP8"));
      if (algorithm == "FP8" || algorithm == "NVFP4") return out;
      return fail(config.field_error(
          "quant_algo", fmt::format("is {}; of ModelOpt FP8 and NVFP4 are read", algorithm)));
    }
    if (out.method == "fbgemm_fp8") return out;
    const auto methods = quantization_methods();
    if (std::ranges::find(methods, out.method) == methods.end()) {
      return fail(error(StatusCode::kUnimplemented,
                        "{}: the quantisation method '{}' is not read; those that are: {}",
                        config.name(), out.method, fmt::join(methods, ", ")));
    }
    ESP_RETURN_IF_ERROR(out.read_packed(config));
    return out;
  }

 private:
  Status read_packed(const JsonObject& config) {
    ESP_ASSIGN_OR_RETURN(const int64_t wide, config.integer_or("bits", 4));
    bits = static_cast<int>(wide);
    if (method != "fp8" && bits != 4 && !(method == "gptq" && bits == 8)) {
      return config.field_error("bits", fmt::format("is {}; 4 bits are read", bits));
    }
    ESP_ASSIGN_OR_RETURN(const std::string format, config.string_or("checkpoint_format", "gptq"));
    zero_offset = format == "gptq_v2" ? 0 : 1;
    if (!config.has("weight_block_size")) return {};
    ESP_ASSIGN_OR_RETURN(block, config.integers("weight_block_size"));
    if (block.size() == 2 && block[0] >= 1 && block[1] >= 1) return {};
    return config.field_error("weight_block_size", "must be two sizes");
  }

  // All groups of layers have one format and one number of bits.
  Status read_compressed(const JsonObject& config) {
    ESP_ASSIGN_OR_RETURN(const std::string format, config.string("format"));
    const bool floats = format == "float-quantized" || format == "naive-quantized";
    if (format == "nvfp4-pack-quantized" || format == "mxfp4-pack-quantized") return {};
    if (!floats && format != "int-quantized" && format != "pack-quantized") {
      return config.field_error(
          "format", fmt::format("is {}; of compressed-tensors float-quantized, int-quantized, "
                                "pack-quantized, nvfp4-pack-quantized and mxfp4-pack-quantized are "
                                "read",
                                format));
    }
    ESP_ASSIGN_OR_RETURN(const JsonObject groups, config.object("config_groups"));
    ESP_ASSIGN_OR_RETURN(const JsonObject group, groups.object("group_0"));
    ESP_ASSIGN_OR_RETURN(const JsonObject weights, group.object("weights"));
    ESP_ASSIGN_OR_RETURN(const int64_t wide, weights.integer("num_bits"));
    bits = static_cast<int>(wide);
    if (bits != 8 && !(bits == 4 && format == "pack-quantized")) {
      return weights.field_error("num_bits",
                                 fmt::format("is {}; {} of {}8 bits is read", bits, format,
                                             format == "pack-quantized" ? "4 and " : ""));
    }
    if (weights.has("block_structure")) {
      ESP_ASSIGN_OR_RETURN(block, weights.integers("block_structure"));
      if (block.size() != 2 || block[0] < 1 || block[1] < 1)
        return weights.field_error("block_structure", "must be two sizes");
    }
    return {};
  }
};

// Scales of activations, keys and values: activations are scaled by what they are, a row at a time.
bool is_activation_scale(std::string_view name) {
  constexpr std::string_view kEnds[] = {".input_scale", ".output_scale",    ".k_scale",
                                        ".v_scale",     ".q_scale",         ".input_scale_ub",
                                        ".prob_scale",  ".weight_scale_ub", ".input_global_scale"};
  return std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

Status misfit(const CheckpointTensor& tensor, std::string_view why) {
  return error(StatusCode::kDataLoss, "the tensor '{}' ({} {}) {}", tensor.name, tensor.dtype_name,
               shape_string(tensor.shape), why);
}

// A checkpoint's tensors by name, and which are parts of another and no tensors of their own.
class TensorParts {
 public:
  explicit TensorParts(std::vector<CheckpointTensor>& tensors) : tensors_(tensors) {
    for (size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
  }
  const CheckpointTensor* find(const std::string& name) {
    const auto it = index_.find(name);
    return it == index_.end() ? nullptr : &tensors_[it->second];
  }
  Result<const CheckpointTensor*> part(const std::string& name, const std::string& of) {
    const CheckpointTensor* tensor = find(name);
    if (tensor == nullptr) {
      return fail(
          error(StatusCode::kDataLoss, "the tensor '{}' is there and '{}' is missing", of, name));
    }
    used_.insert(name);
    return tensor;
  }

  // The tensor of this name, or groups of equal size in order.
  Result<std::vector<int32_t>> read_groups(const std::string& name, const PackedShape& shape) {
    std::vector<int32_t> groups(static_cast<size_t>(shape.in_features));
    const CheckpointTensor* index = find(name);
    if (index == nullptr || index->num_elements() == 0) {
      const int64_t size = (shape.in_features + shape.num_groups - 1) / shape.num_groups;
      for (size_t i = 0; i < groups.size(); ++i) {
        groups[i] = static_cast<int32_t>(static_cast<int64_t>(i) / size);
      }
      if (index != nullptr) used_.insert(index->name);
      return groups;
    }
    used_.insert(index->name);
    if (index->dtype_name != "I32" || index->num_elements() != shape.in_features) {
      return fail(misfit(*index, fmt::format("should hold {} I32", shape.in_features)));
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      groups[i] = load<int32_t>(index->bytes.data(), static_cast<int64_t>(i));
      if (groups[i] < 0 || groups[i] >= shape.num_groups) {
        return fail(
            misfit(*index, fmt::format("names group {} of {}", groups[i], shape.num_groups)));
      }
    }
    return groups;
  }

  void use(const std::string& name) { used_.insert(name); }
  bool used(const std::string& name) const { return used_.contains(name); }

 private:
  std::vector<CheckpointTensor>& tensors_;
  std::map<std::string, size_t> index_;
  std::set<std::string> used_;
};

// Multiplies scales by the number that all of a matrix share.
Status scale_all(TensorParts& parts, const std::string& stem, const std::string& name,
                 E2m1Scales& scales) {
  const bool divides = parts.find(stem + ".weight_global_scale") != nullptr;
  ESP_ASSIGN_OR_RETURN(
      const CheckpointTensor* scale,
      parts.part(stem + (divides ? ".weight_global_scale" : ".weight_scale_2"), name));
  if (!scale->dtype || scale->num_elements() != 1) return misfit(*scale, "should be a number");
  const float all = all_floats(*scale).front();
  for (float& value : scales.values) value = divides ? value / all : value * all;
  scales.of_all = divides ? 1 / all : all;
  return {};
}

// Codes [out, in / 2] with weight_scale: e4m3 [out, in / 16], multiplied by weight_scale_2
// (ModelOpt) or divided by weight_global_scale (compressed-tensors); or exponents of powers of
// two [out, in / 32] alone.
Status add_e2m1(TensorParts& parts, std::vector<CheckpointTensor>& tensors, size_t index,
                const std::string& stem) {
  const CheckpointTensor codes = tensors[index];
  ESP_ASSIGN_OR_RETURN(const CheckpointTensor* scales,
                       parts.part(stem + ".weight_scale", codes.name));
  if (codes.shape.size() != 2) return misfit(codes, "should be a matrix");
  const bool nvfp4 = scales->dtype_name == "F8_E4M3";
  const int64_t block = nvfp4 ? 16 : 32, rows = codes.shape[0], columns = 2 * codes.shape[1];
  if ((!nvfp4 && scales->dtype_name != "U8") || columns % block != 0 ||
      scales->shape != std::vector<int64_t>{rows, columns / block})
    return misfit(*scales, fmt::format("does not fit '{}' {}: NVFP4 has an F8_E4M3 for 16 "
                                       "inputs, MXFP4 a U8 for 32",
                                       codes.name, shape_string(codes.shape)));
  E2m1Scales of{.data = scales->bytes.data(),
                .values = nvfp4 ? decode_table<e4m3>() : decode_table<e8m0>(),
                .block = block,
                .nvfp4 = nvfp4};
  if (nvfp4) ESP_RETURN_IF_ERROR(scale_all(parts, stem, codes.name, of));
  CheckpointTensor out;
  out.name = stem + ".weight";
  out.dtype_name = nvfp4 ? "NVFP4" : "MXFP4";
  out.shape = {rows, columns};
  out.bytes = codes.bytes;
  out.reader = make_e2m1_reader(codes.bytes.data(), columns, of);
  if (codes.name == out.name) {
    tensors[index] = std::move(out);
    return {};
  }
  if (parts.find(out.name) != nullptr) return misfit(codes, "stands beside a '.weight'");
  parts.use(codes.name);
  tensors.push_back(std::move(out));
  return {};
}

class Combiner {
 public:
  Combiner(const std::optional<JsonObject>& config, std::vector<CheckpointTensor>& tensors)
      : config_(config), tensors_(tensors), parts_(tensors) {}

  Status run() {
    if (config_) {
      ESP_ASSIGN_OR_RETURN(quantization_, QuantizationConfig::read(*config_));
    }
    const size_t count = tensors_.size();
    for (size_t i = 0; i < count; ++i) {
      const std::string name = tensors_[i].name;
      if (name.ends_with(".qweight")) {
        ESP_RETURN_IF_ERROR(add_packed(name.substr(0, name.size() - 8)));
      } else if (name.ends_with(".weight_packed")) {
        const std::string stem = name.substr(0, name.size() - 14);
        ESP_RETURN_IF_ERROR(tensors_[i].dtype_name == "U8" ? add_e2m1(parts_, tensors_, i, stem)
                                                           : add_row_packed(stem));
      } else if (name.ends_with(".weight") && tensors_[i].dtype_name == "U8" &&
                 parts_.find(name + "_scale") != nullptr) {
        ESP_RETURN_IF_ERROR(add_e2m1(parts_, tensors_, i, name.substr(0, name.size() - 7)));
      } else if (name.ends_with(".weight") && is_scaled(tensors_[i])) {
        ESP_RETURN_IF_ERROR(add_scales(i, name.substr(0, name.size() - 7)));
      } else if (config_ && is_activation_scale(name)) {
        parts_.use(name);
      }
    }
    for (CheckpointTensor& tensor : tensors_) {
      if (!tensor.dtype && tensor.reader == nullptr) tensor.reader = make_plain_reader(tensor);
    }
    std::erase_if(tensors_,
                  [&](const CheckpointTensor& tensor) { return parts_.used(tensor.name); });
    return {};
  }

 private:
  static bool is_scaled(const CheckpointTensor& tensor) {
    return tensor.dtype_name.starts_with("F8_E") || tensor.dtype_name == "I8";
  }
  Status add_scales(size_t index, const std::string& stem) {
    CheckpointTensor& weight = tensors_[index];
    std::shared_ptr<const TensorReader> values = make_plain_reader(weight);
    const CheckpointTensor* scale = parts_.find(stem + ".weight_scale_inv");
    if (scale == nullptr) scale = parts_.find(stem + ".weight_scale");
    if (scale == nullptr) {
      weight.reader = std::move(values);
      return {};
    }
    parts_.use(scale->name);
    if (!scale->dtype) {
      return misfit(*scale, "should be of type F32, BF16 or F16");
    }
    if (weight.shape.size() != 2) return misfit(weight, "should be a matrix");
    const int64_t rows = weight.shape[0], columns = weight.shape[1];
    int64_t scale_rows = 1, scale_columns = 1, block_rows = rows, block_columns = columns;
    if (scale->num_elements() == rows && scale->shape.size() <= 2 && rows > 1 &&
        (scale->shape.size() == 1 || scale->shape[1] == 1)) {
      scale_rows = rows;
      block_rows = 1;
    } else if (scale->num_elements() != 1) {
      block_rows = quantization_.block.empty() ? 128 : quantization_.block[0];
      block_columns = quantization_.block.empty() ? 128 : quantization_.block[1];
      scale_rows = (rows + block_rows - 1) / block_rows;
      scale_columns = (columns + block_columns - 1) / block_columns;
      if (scale->shape != std::vector<int64_t>{scale_rows, scale_columns}) {
        return misfit(*scale, fmt::format("does not hold blocks of [{}, {}] of {}", block_rows,
                                          block_columns, shape_string(weight.shape)));
      }
    }
    if (scale->num_elements() != scale_rows * scale_columns) return misfit(*scale, "is odd");
    weight.reader = std::make_shared<ScaledReader>(
        std::move(values), weight,
        ScaledReader::Scales{.values = all_floats(*scale),
                             .columns = scale_columns,
                             .block_rows = std::max<int64_t>(block_rows, 1),
                             .block_columns = std::max<int64_t>(block_columns, 1)});
    return {};
  }

  Status add_packed(const std::string& stem) {
    const std::string name = stem + ".qweight";
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* weight, parts_.part(name, name));
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* zeros, parts_.part(stem + ".qzeros", name));
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* scales, parts_.part(stem + ".scales", name));
    for (const CheckpointTensor* tensor : {weight, zeros}) {
      if (tensor->dtype_name != "I32" || tensor->shape.size() != 2) {
        return misfit(*tensor, "should be a matrix of I32");
      }
    }
    if (!scales->dtype || scales->shape.size() != 2) {
      return misfit(*scales, "should be a matrix of F16, BF16 or F32");
    }
    PackedShape shape{.out_features = scales->shape[1],
                      .num_groups = scales->shape[0],
                      .bits = quantization_.bits};
    const int64_t per_word = 32 / quantization_.bits;
    const bool is_awq = quantization_.method.empty()
                            ? weight->shape[1] * per_word == shape.out_features
                            : quantization_.method == "awq";
    shape.in_features = is_awq ? weight->shape[0] : weight->shape[0] * per_word;
    const int64_t words = shape.out_features / per_word;
    if (shape.out_features < 1 || shape.num_groups < 1 || shape.out_features % per_word != 0 ||
        weight->shape[1] != (is_awq ? words : shape.out_features)) {
      return misfit(*weight,
                    fmt::format("does not fit '{}' {}", scales->name, shape_string(scales->shape)));
    }
    if (zeros->shape != std::vector<int64_t>{shape.num_groups, words}) {
      return misfit(*zeros, fmt::format("should have shape [{}, {}]", shape.num_groups, words));
    }
    if (is_awq && shape.in_features % shape.num_groups != 0) {
      return misfit(*scales, fmt::format("does not cut {} inputs into groups", shape.in_features));
    }
    CheckpointTensor out;
    out.name = stem + ".weight";
    out.dtype_name = is_awq ? "AWQ" : "GPTQ";
    out.shape = {shape.out_features, shape.in_features};
    out.bytes = weight->bytes;
    if (parts_.find(out.name) != nullptr) return misfit(*weight, "stands beside a '.weight'");
    if (is_awq) {
      out.reader = std::make_shared<AwqReader>(shape, weight->bytes.data(), zeros->bytes.data(),
                                               all_floats(*scales));
    } else {
      ESP_ASSIGN_OR_RETURN(std::vector<int32_t> groups, parts_.read_groups(stem + ".g_idx", shape));
      out.reader = std::make_shared<GptqReader>(shape, weight->bytes.data(), zeros->bytes.data(),
                                                all_floats(*scales), std::move(groups),
                                                quantization_.zero_offset);
    }
    tensors_.push_back(std::move(out));
    return {};
  }

  // compressed-tensors: the rows' words are [out, in / n], their scales [out, groups].
  Status add_row_packed(const std::string& stem) {
    const std::string name = stem + ".weight_packed";
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* weight, parts_.part(name, name));
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* scales, parts_.part(stem + ".weight_scale", name));
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* sizes, parts_.part(stem + ".weight_shape", name));
    const CheckpointTensor* zeros = parts_.find(stem + ".weight_zero_point");
    if (weight->dtype_name != "I32" || weight->shape.size() != 2) {
      return misfit(*weight, "should be a matrix of I32");
    }
    if (!scales->dtype || scales->shape.size() != 2) {
      return misfit(*scales, "should be a matrix of F16, BF16 or F32");
    }
    if (sizes->dtype_name != "I64" || sizes->num_elements() != 2) {
      return misfit(*sizes, "should hold two I64");
    }
    const PackedShape shape{.out_features = load<int64_t>(sizes->bytes.data(), 0),
                            .in_features = load<int64_t>(sizes->bytes.data(), 1),
                            .num_groups = scales->shape[1],
                            .bits = quantization_.bits};
    const int64_t n = 32 / shape.bits;
    if (shape.out_features < 1 || shape.in_features < 1 || shape.num_groups < 1 ||
        weight->shape[0] != shape.out_features || weight->shape[1] > shape.in_features ||
        weight->shape[1] != (shape.in_features + n - 1) / n ||
        scales->shape[0] != shape.out_features) {
      return misfit(*weight,
                    fmt::format("does not fit '{}' {}", scales->name, shape_string(scales->shape)));
    }
    if (zeros != nullptr) {
      parts_.use(zeros->name);
      if (zeros->dtype_name != "I32" ||
          zeros->shape !=
              std::vector<int64_t>{(shape.out_features + n - 1) / n, shape.num_groups}) {
        return misfit(*zeros, "does not fit the weights");
      }
    }
    ESP_ASSIGN_OR_RETURN(std::vector<int32_t> groups,
                         parts_.read_groups(stem + ".weight_g_idx", shape));
    CheckpointTensor out;
    out.name = stem + ".weight";
    out.dtype_name = fmt::format("W{}", shape.bits);
    out.shape = {shape.out_features, shape.in_features};
    out.bytes = weight->bytes;
    if (parts_.find(out.name) != nullptr) return misfit(*weight, "stands beside a '.weight'");
    out.reader = std::make_shared<RowPackedReader>(shape, weight->bytes.data(),
                                                   zeros == nullptr ? nullptr : zeros->bytes.data(),
                                                   all_floats(*scales), std::move(groups));
    tensors_.push_back(std::move(out));
    return {};
  }

  const std::optional<JsonObject>& config_;
  std::vector<CheckpointTensor>& tensors_;
  TensorParts parts_;
  QuantizationConfig quantization_;
};

}  // namespace

std::shared_ptr<const TensorReader> make_block_reader(const GgufTensor& tensor,
                                                      std::vector<int64_t> rows) {
  return std::make_shared<BlockReader>(tensor, std::move(rows));
}

std::shared_ptr<const TensorReader> make_plain_reader(const CheckpointTensor& tensor) {
  const std::byte* from = tensor.bytes.data();
  const std::string_view type = tensor.dtype_name;
  if (type == "F64") return std::make_shared<NumberReader<double>>(from);
  if (type == "I64") return std::make_shared<NumberReader<int64_t>>(from);
  if (type == "I32") return std::make_shared<NumberReader<int32_t>>(from);
  if (type == "I16") return std::make_shared<NumberReader<int16_t>>(from);
  if (type == "I8") return std::make_shared<NumberReader<int8_t>>(from);
  if (type == "U64") return std::make_shared<NumberReader<uint64_t>>(from);
  if (type == "U32") return std::make_shared<NumberReader<uint32_t>>(from);
  if (type == "U16") return std::make_shared<NumberReader<uint16_t>>(from);
  if (type == "U8" || type == "BOOL") return std::make_shared<NumberReader<uint8_t>>(from);
  if (type == "F8_E4M3") return std::make_shared<TableReader>(from, decode_table<e4m3>());
  if (type == "F8_E5M2") return std::make_shared<TableReader>(from, decode_table<e5m2>());
  if (type == "F8_E8M0") return std::make_shared<TableReader>(from, decode_table<e8m0>());
  return nullptr;
}

std::span<const std::string_view> quantization_methods() {
  static constexpr std::string_view kMethods[] = {
      "fp8", "gptq", "awq", "compressed-tensors", "modelopt", "fbgemm_fp8"};
  return kMethods;
}

Status combine_quantized(const std::optional<JsonObject>& config,
                         std::vector<CheckpointTensor>& tensors) {
  return Combiner(config, tensors).run();
}

}  // namespace espalier
