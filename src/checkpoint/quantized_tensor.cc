#include "checkpoint/quantized_tensor.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>

#include "checkpoint/convert.h"

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

// S.1111.111 is no number, and there is no infinity.
float e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  float value = 0;
  if (exponent == 15 && fraction == 7) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    value = static_cast<float>(fraction) * 0x1.0p-9f;
  } else {
    value = std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  }
  return (bits & 0x80) != 0 ? -value : value;
}

float e5m2(uint8_t bits) { return to_float(Float16{static_cast<uint16_t>(bits << 8)}); }

template <float (*kDecode)(uint8_t)>
const std::array<float, 256>& decode_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (int i = 0; i < 256; ++i) values[i] = kDecode(static_cast<uint8_t>(i));
    return values;
  }();
  return table;
}

float e8m0(uint8_t bits) {
  if (bits == 255) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, bits - 127);
}

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

// ---- FP8 with scales ----

// scale [r, c] holds for the rows and columns of its block.
class ScaledReader final : public TensorReader {
 public:
  ScaledReader(std::shared_ptr<const TensorReader> values, int64_t columns,
               std::vector<float> scales, int64_t scale_columns, int64_t block_rows,
               int64_t block_columns)
      : values_(std::move(values)),
        columns_(columns),
        scales_(std::move(scales)),
        scale_columns_(scale_columns),
        block_rows_(block_rows),
        block_columns_(block_columns) {}
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
};

// ---- Integers with scales and zero points ----

struct PackedShape {
  int64_t out_features = 0, in_features = 0, num_groups = 0;
  int bits = 4;
};

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

 private:
  const PackedShape shape_;
  const int per_word_;
  const std::byte *const weights_, *const zeros_;
  const std::vector<float> scales_;
  const std::vector<int32_t> groups_;  // of each input
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

 private:
  const PackedShape shape_;
  const std::byte *const weights_, *const zeros_;
  const std::vector<float> scales_;
};

// ---- Putting together ----

class Combiner {
 public:
  Combiner(const std::optional<JsonObject>& config, std::vector<CheckpointTensor>& tensors)
      : config_(config), tensors_(tensors) {
    for (size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
  }

  Status run() {
    ESP_RETURN_IF_ERROR(read_config());
    const size_t count = tensors_.size();
    for (size_t i = 0; i < count; ++i) {
      const std::string name = tensors_[i].name;
      if (name.ends_with(".qweight")) {
        ESP_RETURN_IF_ERROR(add_packed(name.substr(0, name.size() - 8)));
      } else if (name.ends_with(".weight") && tensors_[i].dtype_name.starts_with("F8_E")) {
        ESP_RETURN_IF_ERROR(add_scales(i, name.substr(0, name.size() - 7)));
      }
    }
    for (CheckpointTensor& tensor : tensors_) {
      if (!tensor.dtype && tensor.reader == nullptr) tensor.reader = make_plain_reader(tensor);
    }
    std::erase_if(tensors_,
                  [&](const CheckpointTensor& tensor) { return used_.contains(tensor.name); });
    return {};
  }

 private:
  Status read_config() {
    if (!config_) return {};
    ESP_ASSIGN_OR_RETURN(method_, config_->string_or("quant_method", ""));
    if (method_ == "mxfp4") return {};  // its tensors are read by the models that have them
    if (method_ != "gptq" && method_ != "awq" && method_ != "fp8") {
      return error(StatusCode::kUnimplemented,
                   "{}: the quantisation method '{}' is not read; those that are: fp8, gptq, awq",
                   config_->name(), method_);
    }
    ESP_ASSIGN_OR_RETURN(const int64_t bits, config_->integer_or("bits", 4));
    bits_ = static_cast<int>(bits);
    if (method_ != "fp8" && bits != 4 && !(method_ == "gptq" && bits == 8)) {
      return config_->field_error("bits", fmt::format("is {}; 4 bits are read", bits));
    }
    ESP_ASSIGN_OR_RETURN(const std::string format, config_->string_or("checkpoint_format", "gptq"));
    zero_offset_ = format == "gptq_v2" ? 0 : 1;
    if (config_->has("weight_block_size")) {
      ESP_ASSIGN_OR_RETURN(block_, config_->integers("weight_block_size"));
      if (block_.size() != 2 || block_[0] < 1 || block_[1] < 1) {
        return config_->field_error("weight_block_size", "must be two sizes");
      }
    }
    return {};
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
  static Status misfit(const CheckpointTensor& tensor, std::string_view why) {
    return error(StatusCode::kDataLoss, "the tensor '{}' ({} {}) {}", tensor.name,
                 tensor.dtype_name, shape_string(tensor.shape), why);
  }

  Status add_scales(size_t index, const std::string& stem) {
    CheckpointTensor& weight = tensors_[index];
    std::shared_ptr<const TensorReader> values = make_plain_reader(weight);
    const CheckpointTensor* scale = find(stem + ".weight_scale_inv");
    if (scale == nullptr) scale = find(stem + ".weight_scale");
    if (const CheckpointTensor* input = find(stem + ".input_scale")) used_.insert(input->name);
    if (scale == nullptr) {
      weight.reader = std::move(values);
      return {};
    }
    used_.insert(scale->name);
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
      block_rows = block_.empty() ? 128 : block_[0];
      block_columns = block_.empty() ? 128 : block_[1];
      scale_rows = (rows + block_rows - 1) / block_rows;
      scale_columns = (columns + block_columns - 1) / block_columns;
      if (scale->shape != std::vector<int64_t>{scale_rows, scale_columns}) {
        return misfit(*scale, fmt::format("does not hold blocks of [{}, {}] of {}", block_rows,
                                          block_columns, shape_string(weight.shape)));
      }
    }
    if (scale->num_elements() != scale_rows * scale_columns) return misfit(*scale, "is odd");
    weight.reader = std::make_shared<ScaledReader>(std::move(values), columns, all_floats(*scale),
                                                   scale_columns, std::max<int64_t>(block_rows, 1),
                                                   std::max<int64_t>(block_columns, 1));
    return {};
  }

  Status add_packed(const std::string& stem) {
    const std::string name = stem + ".qweight";
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* weight, part(name, name));
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* zeros, part(stem + ".qzeros", name));
    ESP_ASSIGN_OR_RETURN(const CheckpointTensor* scales, part(stem + ".scales", name));
    for (const CheckpointTensor* tensor : {weight, zeros}) {
      if (tensor->dtype_name != "I32" || tensor->shape.size() != 2) {
        return misfit(*tensor, "should be a matrix of I32");
      }
    }
    if (!scales->dtype || scales->shape.size() != 2) {
      return misfit(*scales, "should be a matrix of F16, BF16 or F32");
    }
    PackedShape shape{
        .out_features = scales->shape[1], .num_groups = scales->shape[0], .bits = bits_};
    const int64_t per_word = 32 / bits_;
    const bool is_awq =
        method_.empty() ? weight->shape[1] * per_word == shape.out_features : method_ == "awq";
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
    if (find(out.name) != nullptr) return misfit(*weight, "stands beside a '.weight'");
    if (is_awq) {
      out.reader = std::make_shared<AwqReader>(shape, weight->bytes.data(), zeros->bytes.data(),
                                               all_floats(*scales));
    } else {
      ESP_ASSIGN_OR_RETURN(std::vector<int32_t> groups, read_groups(stem, shape));
      out.reader =
          std::make_shared<GptqReader>(shape, weight->bytes.data(), zeros->bytes.data(),
                                       all_floats(*scales), std::move(groups), zero_offset_);
    }
    tensors_.push_back(std::move(out));
    return {};
  }

  // g_idx, or groups of equal size in order.
  Result<std::vector<int32_t>> read_groups(const std::string& stem, const PackedShape& shape) {
    std::vector<int32_t> groups(static_cast<size_t>(shape.in_features));
    const CheckpointTensor* index = find(stem + ".g_idx");
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

  const std::optional<JsonObject>& config_;
  std::vector<CheckpointTensor>& tensors_;
  std::map<std::string, size_t> index_;
  std::set<std::string> used_;  // parts, which are no tensors of their own any more
  std::string method_;
  int bits_ = 4, zero_offset_ = 1;
  std::vector<int64_t> block_;
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

Status combine_quantized(const std::optional<JsonObject>& config,
                         std::vector<CheckpointTensor>& tensors) {
  return Combiner(config, tensors).run();
}

}  // namespace espalier
