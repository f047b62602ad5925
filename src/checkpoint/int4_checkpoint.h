// For tests: safetensors files with matrices of 4-bit codes, as the makers of such checkpoints
// store them. Not thread-safe.
#pragma once

#include <fmt/ranges.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "checkpoint/temp_folder.h"

namespace espalier::test {

// A file of tensors, one added after the other.
class SafetensorsBuilder {
 public:
  void add(const std::string& name, std::string_view type, const std::vector<int64_t>& shape,
           std::span<const std::byte> bytes) {
    header_ += fmt::format(R"({}"{}": {{"dtype": "{}", "shape": [{}], "data_offsets": [{}, {}]}})",
                           header_.empty() ? "{" : ", ", name, type, fmt::join(shape, ", "),
                           data_.size(), data_.size() + bytes.size());
    data_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string bytes() const { return safetensors_bytes(header_ + "}", data_); }

 private:
  std::string header_, data_;
};

struct Int4Method {
  std::string_view name;
  std::string_view config;  // config.json's quantization_config
  bool zeros;
  bool act_order = false;  // GPTQ's: each input names its group
};
inline constexpr Int4Method kInt4Methods[] = {
    {"gptq", R"({"quant_method": "gptq", "bits": 4})", true},
    {"awq", R"({"quant_method": "awq", "bits": 4})", true},
    {"symmetric", R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
                      "config_groups": {"group_0": {"weights": {"num_bits": 4}}}})",
     false},
    {"asymmetric", R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
                       "config_groups": {"group_0": {"weights": {"num_bits": 4}}}})",
     true}};
inline constexpr Int4Method kActOrderMethods[] = {
    {"gptq", R"({"quant_method": "gptq", "bits": 4, "desc_act": true})", true, true},
    {"asymmetric", R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
                       "config_groups": {"group_0": {"weights": {"num_bits": 4}}}})",
     true, true}};

// The same of NVFP4, whose groups are of 16.
inline constexpr Int4Method kNvfp4Methods[] = {
    {"modelopt", R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})", false},
    {"nvfp4-pack-quantized",
     R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized",
         "config_groups": {"group_0": {"weights": {"num_bits": 4}}}})",
     false}};

// The group of each of `in` inputs in an order that follows from their number alone, as matrices
// that read the same inputs have.
inline std::vector<int32_t> act_order(int64_t in, int64_t group) {
  std::vector<int32_t> groups;
  for (int64_t i = 0; i < in; ++i) groups.push_back(static_cast<int32_t>(i / group));
  Rng rng(static_cast<uint64_t>(in));
  for (size_t i = groups.size() - 1; i > 0; --i) std::swap(groups[i], groups[rng.below(i + 1)]);
  return groups;
}

// The tensors of a matrix STEM.weight [out, in] of random NVFP4. REQUIRES: multiples of 16.
inline void add_nvfp4(const Int4Method& method, const std::string& stem, int64_t out, int64_t in,
                      Rng& rng, SafetensorsBuilder& to) {
  const bool modelopt = method.name == "modelopt";
  std::vector<uint8_t> codes, scales;
  for (int64_t i = 0; i < out * in / 2; ++i) codes.push_back(static_cast<uint8_t>(rng.below(256)));
  // 0.25 to 4, some 0 and some subnormal.
  for (int64_t i = 0; i < out * in / 16; ++i)
    scales.push_back(static_cast<uint8_t>(i % 37 == 0 ? rng.below(8) : 0x28 + rng.below(0x20)));
  to.add(stem + (modelopt ? ".weight" : ".weight_packed"), "U8", {out, in / 2},
         std::as_bytes(std::span(codes)));
  to.add(stem + ".weight_scale", "F8_E4M3", {out, in / 16}, std::as_bytes(std::span(scales)));
  const float all = modelopt ? 0x1.8p-9f : 0x1p9f;
  to.add(stem + (modelopt ? ".weight_scale_2" : ".weight_global_scale"), "F32", {1},
         std::as_bytes(std::span(&all, 1)));
}

// The tensors of a matrix STEM.weight [out, in] of random codes. REQUIRES: multiples of 8 and of
// `group`.
inline void add_int4(const Int4Method& method, const std::string& stem, int64_t out, int64_t in,
                     int64_t group, Rng& rng, SafetensorsBuilder& to) {
  const int64_t groups = in / group;
  const auto words = [&](const std::string& name, int64_t rows, int64_t columns) {
    std::vector<uint32_t> all;
    for (int64_t i = 0; i < rows * columns; ++i)
      all.push_back(static_cast<uint32_t>(rng.below(uint64_t{1} << 32)));
    to.add(stem + name, "I32", {rows, columns}, std::as_bytes(std::span(all)));
  };
  // Numbers that float16 has.
  const auto scales = [&](const std::string& name, int64_t rows, int64_t columns) {
    std::vector<float> all;
    for (int64_t i = 0; i < rows * columns; ++i)
      all.push_back(static_cast<float>(1024 + rng.below(1024)) * 0x1p-17f);
    to.add(stem + name, "F32", {rows, columns}, std::as_bytes(std::span(all)));
  };
  const bool gptq = method.name == "gptq";
  if (method.act_order) {
    const std::vector<int32_t> groups_of = act_order(in, group);
    to.add(stem + (gptq ? ".g_idx" : ".weight_g_idx"), "I32", {in},
           std::as_bytes(std::span(groups_of)));
  }
  if (gptq || method.name == "awq") {
    words(".qweight", gptq ? in / 8 : in, gptq ? out : out / 8);
    words(".qzeros", groups, out / 8);
    return scales(".scales", groups, out);
  }
  words(".weight_packed", out, in / 8);
  scales(".weight_scale", out, groups);
  const int64_t shape[] = {out, in};
  to.add(stem + ".weight_shape", "I64", {2}, std::as_bytes(std::span(shape)));
  if (method.zeros) words(".weight_zero_point", out / 8, groups);
}

}  // namespace espalier::test
