#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/check.h"
#include "checkpoint/json_object.h"

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

Result<Checkpoint> Checkpoint::open(const std::filesystem::path& folder) {
  Checkpoint checkpoint;
  checkpoint.folder_ = folder;
  std::error_code ignored;
  if (std::filesystem::exists(folder / kSingleFile, ignored)) {
    ESP_RETURN_IF_ERROR(checkpoint.add_file(folder / kSingleFile));
  } else if (std::filesystem::exists(folder / kIndexFile, ignored)) {
    ESP_RETURN_IF_ERROR(checkpoint.read_index(folder / kIndexFile));
  } else {
    return fail(error(StatusCode::kNotFound,
                      "{} has no weights: neither {} nor {} is there (other formats are not read)",
                      folder.string(), kSingleFile, kIndexFile));
  }
  std::sort(checkpoint.tensors_.begin(), checkpoint.tensors_.end(),
            [](const CheckpointTensor& a, const CheckpointTensor& b) { return a.name < b.name; });
  return checkpoint;
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
  if (!std::equal(shape.begin(), shape.end(), tensor->shape.begin(), tensor->shape.end())) {
    return fail(error(StatusCode::kInvalidArgument,
                      "{}: the tensor '{}' has shape {} and config.json asks for {}",
                      folder_.string(), name, shape_string(tensor->shape), shape_string(shape)));
  }
  if (!tensor->dtype) {
    return fail(error(StatusCode::kUnimplemented,
                      "{}: the tensor '{}' is of type {}; weights are read from F32, BF16 and F16",
                      folder_.string(), name, tensor->dtype_name));
  }
  return tensor;
}

const SafetensorsFile& Checkpoint::file_of(const CheckpointTensor& tensor) const {
  for (const SafetensorsFile& file : files_) {
    for (const CheckpointTensor& held : file.tensors()) {
      if (held.name == tensor.name && held.bytes.data() == tensor.bytes.data()) return file;
    }
  }
  ESP_CHECK(false, "the tensor '{}' is of another checkpoint", tensor.name);
}

void Checkpoint::release(const CheckpointTensor& tensor) const { file_of(tensor).release(tensor); }

}  // namespace espalier
