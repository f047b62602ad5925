// Control vectors: directions that are added to a model's hidden states behind its layers, as
// llama.cpp and repeng write them: a tensor `direction.N` for each layer N, of as many numbers as a
// hidden state has, in a GGUF or safetensors file.
// Source: Zou et al., Representation Engineering, arXiv 2310.01405; llama.cpp's control vectors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace espalier {

struct NamedPath {
  std::string name;
  std::filesystem::path path;
};

// The vectors of a model that are stated at its start. Immutable; shared by what runs the model.
class ControlVectors {
 public:
  // Of a model with so many layers and numbers in a hidden state. Layers are counted from 0; the
  // vector is added to what layer N leaves. kInvalidArgument names the tensor that does not fit and
  // what does; kNotFound, kDataLoss: the file cannot be read.
  static Result<std::shared_ptr<const ControlVectors>> load(const std::vector<NamedPath>& paths,
                                                            int32_t num_layers,
                                                            int32_t hidden_size);

  const std::vector<std::string>& names() const { return names_; }
  int32_t num_layers() const { return num_layers_; }
  int32_t hidden_size() const { return hidden_size_; }
  // [vectors, layers, hidden_size]; zeros where a file has no direction for the layer.
  std::span<const float> values() const { return values_; }
  std::span<const float> row(int32_t index, int32_t layer) const;

 private:
  ControlVectors(int32_t num_layers, int32_t hidden_size)
      : num_layers_(num_layers), hidden_size_(hidden_size) {}
  Status add(const NamedPath& stated);
  Status add_safetensors(const std::filesystem::path& path, std::span<float> out);
  Status add_gguf(const std::filesystem::path& path, std::span<float> out);
  // Where the numbers of a tensor go.
  Result<std::span<float>> place(std::string_view tensor, std::span<const int64_t> shape,
                                 std::span<float> out) const;

  const int32_t num_layers_, hidden_size_;
  std::vector<std::string> names_;
  std::vector<float> values_;
};

// "NAME=PATH". kInvalidArgument where either is empty, or a name comes twice.
Result<std::vector<NamedPath>> parse_named_paths(std::string_view flag,
                                                 const std::vector<std::string>& stated);

}  // namespace espalier
