// For tests: safetensors files with matrices of 4-bit codes, as the makers of such checkpoints
// store them. Not thread-safe.
#pragma once

#include <fmt/ranges.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
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
  if (method.name == "gptq" || method.name == "awq") {
    const bool gptq = method.name == "gptq";
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
