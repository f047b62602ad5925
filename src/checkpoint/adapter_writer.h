// For tests: writes a LoRA adapter as PEFT saves one, from factors in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/rng.h"
#include "fmt/format.h"

namespace espalier {

struct AdapterFactors {
  std::string module;
  int64_t rank = 0, in_features = 0, out_features = 0;
  std::vector<float> a, b;  // [rank, in_features], [out_features, rank]
};

// Factors of normal elements, so large that B A is about as large as weights of this deviation.
inline AdapterFactors random_factors(Rng& rng, std::string module, int64_t rank,
                                     int64_t in_features, int64_t out_features, double deviation) {
  AdapterFactors out{std::move(module), rank, in_features, out_features, {}, {}};
  for (int64_t i = 0; i < rank * in_features; ++i)
    out.a.push_back(static_cast<float>(deviation * rng.normal()));
  for (int64_t i = 0; i < rank * out_features; ++i)
    out.b.push_back(static_cast<float>(rng.normal()));
  return out;
}

// `more`: members of adapter_config.json, each with a comma in front.
inline void write_adapter(const std::filesystem::path& folder,
                          const std::vector<AdapterFactors>& modules, int64_t rank, double alpha,
                          const std::string& more = "") {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "adapter_config.json") << fmt::format(
      R"({{"peft_type":"LORA","r":{},"lora_alpha":{},"bias":"none"{}}})", rank, alpha, more);
  std::string header = "{", data;
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns,
                       const std::vector<float>& values) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    header += fmt::format(
        R"({}"base_model.model.{}.weight":{{"dtype":"F32","shape":[{},{}],"data_offsets":[{},{}]}})",
        header.size() > 1 ? "," : "", name, rows, columns, begin, data.size());
  };
  for (const AdapterFactors& m : modules) {
    add(m.module + ".lora_A", m.rank, m.in_features, m.a);
    add(m.module + ".lora_B", m.out_features, m.rank, m.b);
  }
  header += "}";
  std::ofstream file(folder / "adapter_model.safetensors", std::ios::binary);
  for (int i = 0; i < 8; ++i) file.put(static_cast<char>(header.size() >> (8 * i)));
  file << header << data;
}

}  // namespace espalier
