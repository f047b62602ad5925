#include "checkpoint/control_vectors.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "checkpoint/convert.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/safetensors.h"

namespace espalier {
namespace {

constexpr std::string_view kPrefix = "direction.";

// The layer in "direction.N"; -1: it is another name.
int32_t layer_of(std::string_view tensor) {
  if (!tensor.starts_with(kPrefix)) return -1;
  const std::string_view digits = tensor.substr(kPrefix.size());
  int32_t layer = -1;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), layer);
  return failed == std::errc() && end == digits.data() + digits.size() ? layer : -1;
}

Status dequantize(const GgufTensor& tensor, std::span<float> out) {
  const BlockType& type = *tensor.type;
  if (type.dequantize == nullptr || out.size() % type.elements != 0)
    return error(StatusCode::kUnimplemented, "{} is of type {}, which is not read: write F32",
                 tensor.name, type.name);
  for (size_t i = 0; i < out.size() / type.elements; ++i)
    type.dequantize(tensor.bytes.data() + i * type.bytes, out.data() + i * type.elements);
  return Status();
}

}  // namespace

std::span<const float> ControlVectors::row(int32_t index, int32_t layer) const {
  const auto width = static_cast<size_t>(hidden_size_);
  const auto at = static_cast<size_t>(index * num_layers_ + layer);
  return std::span(values_).subspan(at * width, width);
}

Result<std::span<float>> ControlVectors::place(std::string_view tensor,
                                               std::span<const int64_t> shape,
                                               std::span<float> out) const {
  const int32_t layer = layer_of(tensor);
  if (layer < 0)
    return fail(invalid_argument(
        "it holds the tensor '{}', but a control vector has tensors direction.N alone", tensor));
  if (layer >= num_layers_)
    return fail(invalid_argument("{} is of layer {}, but the model has the layers 0 to {}", tensor,
                                 layer, num_layers_ - 1));
  if (shape.size() != 1 || shape[0] != hidden_size_)
    return fail(
        invalid_argument("{} has the shape {}, but a hidden state of the model has {} "
                         "numbers: the vector is of another model",
                         tensor, shape_string(shape), hidden_size_));
  const auto width = static_cast<size_t>(hidden_size_);
  return out.subspan(static_cast<size_t>(layer) * width, width);
}

Status ControlVectors::add_safetensors(const std::filesystem::path& path, std::span<float> out) {
  ESP_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
  if (file.tensors().empty()) return invalid_argument("it holds no direction.N");
  for (const CheckpointTensor& tensor : file.tensors()) {
    ESP_ASSIGN_OR_RETURN(const std::span<float> to, place(tensor.name, tensor.shape, out));
    if (!tensor.readable())
      return error(StatusCode::kUnimplemented, "{} is of type {}, which is not read: write F32",
                   tensor.name, tensor.dtype_name);
    copy_as_float(tensor, 0, to);
  }
  return Status();
}

Status ControlVectors::add_gguf(const std::filesystem::path& path, std::span<float> out) {
  ESP_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(path));
  if (const auto architecture = file.string("general.architecture");
      architecture && *architecture != "controlvector")
    return invalid_argument("it is of the architecture '{}', not a control vector", *architecture);
  if (file.tensors().empty()) return invalid_argument("it holds no direction.N");
  for (const GgufTensor& tensor : file.tensors()) {
    ESP_ASSIGN_OR_RETURN(const std::span<float> to, place(tensor.name, tensor.shape, out));
    ESP_RETURN_IF_ERROR(dequantize(tensor, to));
  }
  return Status();
}

Status ControlVectors::add(const NamedPath& stated) {
  const size_t size = static_cast<size_t>(num_layers_) * static_cast<size_t>(hidden_size_);
  values_.resize(values_.size() + size);
  const std::span<float> out = std::span(values_).last(size);
  ESP_RETURN_IF_ERROR(stated.path.extension() == ".gguf" ? add_gguf(stated.path, out)
                                                         : add_safetensors(stated.path, out));
  if (!std::ranges::all_of(out, [](float value) { return std::isfinite(value); }))
    return invalid_argument("it holds a number that is not finite");
  names_.push_back(stated.name);
  return Status();
}

Result<std::shared_ptr<const ControlVectors>> ControlVectors::load(
    const std::vector<NamedPath>& paths, int32_t num_layers, int32_t hidden_size) {
  const std::shared_ptr<ControlVectors> out(new ControlVectors(num_layers, hidden_size));
  for (const NamedPath& stated : paths)
    if (const Status status = out->add(stated); !status.ok())
      return fail(status.with_context(
          fmt::format("control vector '{}' ({})", stated.name, stated.path.string())));
  return std::shared_ptr<const ControlVectors>(out);
}

Result<std::vector<NamedPath>> parse_named_paths(std::string_view flag,
                                                 const std::vector<std::string>& stated) {
  std::vector<NamedPath> out;
  for (const std::string& one : stated) {
    const size_t equals = one.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == one.size())
      return fail(invalid_argument("{} is '{}': write NAME=PATH", flag, one));
    NamedPath path{one.substr(0, equals), one.substr(equals + 1)};
    if (std::ranges::find(out, path.name, &NamedPath::name) != out.end())
      return fail(invalid_argument("{} has the name '{}' twice", flag, path.name));
    out.push_back(std::move(path));
  }
  return out;
}

}  // namespace espalier
