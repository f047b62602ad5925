// The weights of a model's folder: model.safetensors, or the shards that
// model.safetensors.index.json names, seen as one list of tensors.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace espalier {

// Move-only; thread-safe to read. Tensors' bytes live as long as it does.
class Checkpoint {
 public:
  // Maps all files and checks them and the index against each other: every shard is there, holds
  // the tensors that the index gives it and no others. kNotFound where the folder has no weights.
  static Result<Checkpoint> open(const std::filesystem::path& folder);

  // Sorted by name.
  std::span<const CheckpointTensor> tensors() const { return tensors_; }
  const CheckpointTensor* find(std::string_view name) const;  // null when there is none

  // The tensor, checked: it is there, has this shape, and a type that weights are read from (F32,
  // BF16, F16). The failure says what was found instead, or which tensors have a similar name.
  Result<const CheckpointTensor*> require(std::string_view name,
                                          std::span<const int64_t> shape) const;

  // The file that holds this tensor's bytes, for those who read it themselves.
  const SafetensorsFile& file_of(const CheckpointTensor& tensor) const;

  // Gives the memory of this tensor's mapped pages back once it has been copied.
  void release(const CheckpointTensor& tensor) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  Status add_file(const std::filesystem::path& path);
  Status read_index(const std::filesystem::path& path);

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::vector<CheckpointTensor> tensors_;
};

}  // namespace espalier
