#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <map>
#include <string>

#include "checkpoint/gguf_model.h"
#include "checkpoint/json_object.h"
#include "checkpoint/quantized_tensor.h"

namespace espalier {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

// How many characters two names share at their ends: "layers.3.mlp.up.weight" is closest to its
// namesake in another layer or under another prefix.
size_t common_suffix(std::string_view a, std::string_view b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[a.size() - 1 - n] == b[b.size() - 1 - n]) ++n;
  return n;
}

}  // namespace

namespace {

// What PyTorch pickles are called; they are programs, and are not run.
Status refuse_pickles(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string extension = entry.path().extension().string();
    const std::string name = entry.path().filename().string();
    if (extension != ".pt" && extension != ".pth" && extension != ".ckpt" &&
        !(extension == ".bin" && name.starts_with("pytorch_model"))) {
      continue;
    }
    return error(StatusCode::kUnimplemented,
                 "{} is a PyTorch pickle, which can run any code when it is read; convert it once: "
                 "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, "
                 "safe_serialization=True)",
                 entry.path().string());
  }
  return {};
}

Result<std::optional<JsonObject>> quantization_config(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder / "config.json", ignored)) return std::optional<JsonObject>();
  ESP_ASSIGN_OR_RETURN(const JsonObject config, JsonObject::read(folder / "config.json"));
  if (!config.has("quantization_config")) return std::optional<JsonObject>();
  ESP_ASSIGN_OR_RETURN(JsonObject quantization, config.object("quantization_config"));
  return std::optional<JsonObject>(std::move(quantization));
}

}  // namespace

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& path) {
  Checkpoint checkpoint;
  checkpoint.folder_ = path;
  if (const auto gguf = find_gguf(path)) {
    ESP_RETURN_IF_ERROR(checkpoint.open_gguf(*gguf));
  } else {
    ESP_RETURN_IF_ERROR(checkpoint.open_folder());
  }
  std::sort(checkpoint.tensors_.begin(), checkpoint.tensors_.end(),
            [](const CheckpointTensor& a, const CheckpointTensor& b) { return a.name < b.name; });
  return checkpoint;
}

Result<Checkpoint> Checkpoint::open_file(const std::filesystem::path& path) {
  Checkpoint checkpoint;
  checkpoint.folder_ = path;
  ESP_RETURN_IF_ERROR(checkpoint.add_file(path));
  std::ranges::sort(checkpoint.tensors_, {}, &CheckpointTensor::name);
  return checkpoint;
}

Status Checkpoint::open_folder() {
  std::error_code ignored;
  if (std::filesystem::exists(folder_ / kSingleFile, ignored)) {
    ESP_RETURN_IF_ERROR(add_file(folder_ / kSingleFile));
  } else if (std::filesystem::exists(folder_ / kIndexFile, ignored)) {
    ESP_RETURN_IF_ERROR(read_index(folder_ / kIndexFile));
  } else {
    ESP_RETURN_IF_ERROR(refuse_pickles(folder_));
    return error(StatusCode::kNotFound,
                 "{} has no weights: neither {} nor {} nor a .gguf file is there", folder_.string(),
                 kSingleFile, kIndexFile);
  }
  ESP_ASSIGN_OR_RETURN(const std::optional<JsonObject> quantization, quantization_config(folder_));
  return combine_quantized(quantization, tensors_).with_context(folder_.string());
}

Status Checkpoint::open_gguf(const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(const auto parts, gguf_parts(path));
  for (const std::filesystem::path& part : parts) {
    ESP_ASSIGN_OR_RETURN(GgufFile file, GgufFile::open(part));
    gguf_files_.push_back(std::move(file));
  }
  ESP_ASSIGN_OR_RETURN(tensors_, gguf_tensors(gguf_files_));
  std::vector<std::string_view> names;
  for (const CheckpointTensor& tensor : tensors_) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return {};
  return error(StatusCode::kDataLoss, "{}: two tensors are '{}'", path.string(), *twice);
}

Status Checkpoint::add_file(const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  tensors_.insert(tensors_.end(), file.tensors().begin(), file.tensors().end());
  files_.push_back(std::move(file));
  return Status();
}

Status Checkpoint::read_index(const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  ESP_ASSIGN_OR_RETURN(const JsonObject index,
                       JsonObject::parse(text, path.string(), DuplicateKeys::kError));
  ESP_ASSIGN_OR_RETURN(const JsonObject map, index.object("weight_map"));
  std::map<std::string, std::vector<std::string>> names_by_file;
  for (const std::string_view name : map.keys()) {
    ESP_ASSIGN_OR_RETURN(std::string file, map.string(name));
    if (!is_plain_file_name(file)) {
      return map.field_error(name,
                             fmt::format("names '{}', which is no file of this folder", file));
    }
    names_by_file[std::move(file)].emplace_back(name);
  }
  for (auto& [file, names] : names_by_file) {
    if (Status status = add_file(folder_ / file); !status.ok()) {
      return status.with_context(fmt::format("{} names the shard {}", path.string(), file));
    }
    std::vector<std::string> held;
    for (const CheckpointTensor& tensor : files_.back().tensors()) held.push_back(tensor.name);
    std::sort(held.begin(), held.end());
    std::sort(names.begin(), names.end());
    if (const auto [h, n] = std::mismatch(held.begin(), held.end(), names.begin(), names.end());
        h != held.end() || n != names.end()) {
      const bool extra = n == names.end() || (h != held.end() && *h < *n);
      return error(StatusCode::kDataLoss, "{}: the shard {} {} tensor '{}'", path.string(), file,
                   extra ? "holds, and the index does not place there, the" : "lacks the",
                   extra ? *h : *n);
    }
  }
  return Status();
}

Status Checkpoint::replace_some(SafetensorsFile file) {
  for (const CheckpointTensor& tensor : file.tensors()) {
    const auto old = require(tensor.name, tensor.shape);
    if (!old) return old.error();
    if ((*old)->reader != nullptr || !tensor.readable()) {
      return error(StatusCode::kUnimplemented,
                   "the tensor '{}' is {} here and {} in the checkpoint: one that is stored in "
                   "codes is replaced with all others, from a whole checkpoint",
                   tensor.name, tensor.dtype_name, (*old)->dtype_name);
    }
  }
  for (const CheckpointTensor& tensor : file.tensors()) {
    *std::ranges::lower_bound(tensors_, tensor.name, {}, &CheckpointTensor::name) = tensor;
  }
  files_.push_back(std::move(file));
  return Status();
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto it = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const CheckpointTensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

Result<const CheckpointTensor*> Checkpoint::require(std::string_view name,
                                                    std::span<const int64_t> shape) const {
  const CheckpointTensor* tensor = find(name);
  if (tensor == nullptr) {
    const auto nearest =
        std::max_element(tensors_.begin(), tensors_.end(),
                         [&](const CheckpointTensor& a, const CheckpointTensor& b) {
                           return common_suffix(a.name, name) < common_suffix(b.name, name);
                         });
    return fail(error(
        StatusCode::kNotFound, "{}: the tensor '{}' is missing{}", folder_.string(), name,
        nearest == tensors_.end() ? ""
                                  : fmt::format(" (the nearest name is '{}')", nearest->name)));
  }
  // Dimensions of 1 in front change nothing: releases of one model differ in them.
  std::span<const int64_t> stored = tensor->shape;
  while (stored.size() > shape.size() && stored.front() == 1) stored = stored.subspan(1);
  if (!std::ranges::equal(shape, stored)) {
    return fail(error(StatusCode::kInvalidArgument,
                      "{}: the tensor '{}' has shape {} and config.json asks for {}",
                      folder_.string(), name, shape_string(tensor->shape), shape_string(shape)));
  }
  if (!tensor->readable()) {
    return fail(error(StatusCode::kUnimplemented,
                      "{}: the tensor '{}' is of type {}, which weights are not read from",
                      folder_.string(), name, tensor->dtype_name));
  }
  return tensor;
}

const SafetensorsFile* Checkpoint::find_file(const CheckpointTensor& tensor) const {
  for (const SafetensorsFile& file : files_) {
    for (const CheckpointTensor& held : file.tensors()) {
      if (held.name == tensor.name && held.bytes.data() == tensor.bytes.data()) return &file;
    }
  }
  return nullptr;
}

Result<JsonObject> read_model_config(const std::filesystem::path& path) {
  if (const auto gguf = find_gguf(path)) {
    ESP_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(*gguf));
    return gguf_config(file);
  }
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    return fail(error(StatusCode::kNotFound,
                      "{} is no folder; a model path names a folder with config.json, or a .gguf "
                      "file",
                      path.string()));
  }
  if (!std::filesystem::exists(path / "config.json", ignored)) {
    return fail(error(StatusCode::kNotFound,
                      "{} holds no config.json; a model path names a folder with config.json and "
                      "*.safetensors, or a .gguf file",
                      path.string()));
  }
  return JsonObject::read(path / "config.json");
}

Result<std::optional<StoredVocabulary>> read_stored_vocabulary(const std::filesystem::path& path) {
  const auto gguf = find_gguf(path);
  if (!gguf) return std::optional<StoredVocabulary>();
  ESP_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::open(*gguf));
  ESP_ASSIGN_OR_RETURN(StoredVocabulary vocabulary, gguf_vocabulary(file));
  return std::optional<StoredVocabulary>(std::move(vocabulary));
}

void Checkpoint::release(const CheckpointTensor& tensor) const {
  const auto holds = [&](const auto& file) {
    return std::any_of(file.tensors().begin(), file.tensors().end(),
                       [&](const auto& held) { return held.bytes.data() == tensor.bytes.data(); });
  };
  for (const SafetensorsFile& file : files_) {
    if (holds(file)) file.release(tensor);
  }
  for (const GgufFile& file : gguf_files_) {
    if (holds(file)) file.release(tensor.bytes);
  }
}

}  // namespace espalier
