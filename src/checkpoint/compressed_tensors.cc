#include "checkpoint/compressed_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <functional>
#include <memory>
#include <span>

#include "checkpoint/convert.h"

namespace espalier {
namespace {

using Kind = CompressedFormat::Kind;

constexpr CompressedFormat kFormats[] = {{"FP8", Kind::kFp8},
                                         {"FP8_STATIC", Kind::kFp8Static},
                                         {"FP8_BLOCK", Kind::kFp8Block},
                                         {"INT8", Kind::kInt8},
                                         {"INT4", Kind::kInt4},
                                         {"INT4_ZP", Kind::kInt4Zero}};

// Of a matrix that is rounded number by number while it is written. Shared by the tensors that it
// becomes.
struct Matrix {
  const CheckpointTensor& tensor;
  const Kind kind;
  const int64_t rows, columns;

  // `count` rows, those beyond the matrix left out.
  RoundedRows round(int64_t first, int64_t count) const {
    std::vector<float> values(static_cast<size_t>(std::min(count, rows - first) * columns));
    copy_as_float(tensor, first * columns, values);
    return round_rows(kind, values, columns);
  }
};

void put_shape(int64_t rows, int64_t columns, std::byte* to) {
  std::memcpy(to, &rows, sizeof(rows));
  std::memcpy(to + sizeof(rows), &columns, sizeof(columns));
}

// What writes a line of a part, of a matrix that was rounded before or is now.
std::function<void(int64_t, std::byte*)> line_writer(
    const std::shared_ptr<const Matrix>& matrix, const RoundedPart& part,
    std::optional<std::span<const std::byte>> before) {
  if (part.put == nullptr)
    return [matrix](int64_t, std::byte* to) { put_shape(matrix->rows, matrix->columns, to); };
  if (before)
    return [from = *before, size = part.line_bytes](int64_t line, std::byte* to) {
      std::memcpy(to, from.data() + line * size, static_cast<size_t>(size));
    };
  return [matrix, part](int64_t line, std::byte* to) {
    part.put(matrix->round(line * part.rows, part.rows), 0, to);
  };
}

void add_matrix(const CheckpointTensor& tensor, const std::string& stem, Kind kind,
                const RoundedMatrices* rounded, std::vector<TensorToWrite>& out) {
  const auto matrix =
      std::make_shared<const Matrix>(tensor, kind, tensor.shape[0], tensor.shape[1]);
  const bool before = rounded != nullptr && rounded->has(stem);
  const std::vector<RoundedPart> parts = rounded_parts(kind, matrix->rows, matrix->columns);
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto bytes = before ? std::optional(rounded->bytes(stem, i))
                              : std::optional<std::span<const std::byte>>();
    out.push_back({.name = stem + std::string(parts[i].suffix),
                   .shape = parts[i].shape,
                   .lines = LinesToWrite{.type = parts[i].type,
                                         .line_bytes = parts[i].line_bytes,
                                         .count = parts[i].line_count,
                                         .write = line_writer(matrix, parts[i], bytes)}});
  }
}

// ---- the checkpoint ----

// The module of a matrix.
std::optional<std::string_view> module_of(const CheckpointTensor& tensor) {
  constexpr std::string_view kEnd = ".weight";
  const std::string_view name = tensor.name;
  if (tensor.shape.size() != 2 || !name.ends_with(kEnd)) return std::nullopt;
  return name.substr(0, name.size() - kEnd.size());
}

boost::json::object activations_of(Kind kind) {
  const bool fixed = kind == Kind::kFp8Static;
  return {{"num_bits", 8},
          {"type", kind == Kind::kInt8 ? "int" : "float"},
          {"symmetric", true},
          {"dynamic", !fixed},
          {"strategy", fixed ? "tensor" : "token"}};
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
  if (int4) weights["group_size"] = kInt4Inputs;
  if (kind == Kind::kFp8Block) weights["block_structure"] = {kE4m3Block, kE4m3Block};
  boost::json::object group{{"targets", {"Linear"}}, {"weights", std::move(weights)}};
  group["input_activations"] = nullptr;
  if (!int4) group["input_activations"] = activations_of(kind);
  if (kind == Kind::kFp8Block) {
    auto& activations = group["input_activations"].as_object();
    activations["strategy"] = "group";
    activations["group_size"] = kE4m3Block;
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

std::optional<std::string_view> rounded_module(const CheckpointTensor& tensor,
                                               const CompressedFormat& format) {
  const std::optional<std::string_view> module = module_of(tensor);
  if (!module || tensor.name.find("layers.") == std::string::npos || !module->ends_with("_proj"))
    return std::nullopt;
  const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
  bool fits = rows > 1 && columns > 1;
  if (format.kind == Kind::kFp8Block) fits = rows % kE4m3Block == 0 && columns % kE4m3Block == 0;
  if (format.is_int4()) fits = columns % kInt4Inputs == 0;
  if (format.kind == Kind::kInt4Zero) fits = fits && rows % 8 == 0;
  return fits ? module : std::nullopt;
}

Result<CompressedPlan> plan_compressed(const Checkpoint& checkpoint, const CompressedFormat& format,
                                       const RoundedMatrices* rounded) {
  CompressedPlan plan;
  std::vector<std::string> ignored;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const BlockEncoder* encoder = find_block_encoder(tensor.dtype_name);
    if (tensor.reader != nullptr || encoder == nullptr)
      return fail(error(StatusCode::kUnimplemented,
                        "the tensor '{}' is of the type {}: matrices are rounded from a folder of "
                        "F32, F16 or BF16",
                        tensor.name, tensor.dtype_name));
    const std::optional<std::string_view> module = rounded_module(tensor, format);
    // A scale of activations is known of what calibration has seen alone.
    const bool unseen = format.kind == Kind::kFp8Static && module &&
                        (rounded == nullptr || !rounded->has(std::string(*module)));
    if (module && !unseen) {
      add_matrix(tensor, std::string(*module), format.kind, rounded, plan.tensors);
      continue;
    }
    if (const auto other = module_of(tensor)) ignored.emplace_back(*other);
    plan.tensors.push_back({.name = tensor.name,
                            .shape = tensor.shape,
                            .encoder = encoder,
                            .stored = tensor.bytes,
                            .done = [&checkpoint, &tensor] { checkpoint.release(tensor); }});
  }
  if (std::ranges::none_of(plan.tensors,
                           [](const TensorToWrite& t) { return t.lines.has_value(); }))
    return fail(invalid_argument("{} has no matrix that {} takes: layers' modules named *_proj{}",
                                 checkpoint.folder().string(), format.name,
                                 format.has_row_scales() ? "" : ", of multiples of 128 inputs"));
  // Wide elements first, so that each tensor lies at a multiple of its elements' size.
  std::ranges::stable_sort(plan.tensors, std::greater(), element_bytes);
  plan.quantization_config = config_of(format.kind, ignored);
  return plan;
}

}  // namespace espalier
