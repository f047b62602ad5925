// The weights of a model seen as one list of tensors: a folder's model.safetensors, or the shards
// that model.safetensors.index.json names; a GGUF file, or the parts that its name counts.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/json_object.h"
#include "checkpoint/safetensors.h"
#include "seams/stored_vocabulary.h"

namespace espalier {

// Move-only; thread-safe to read. Tensors' bytes live as long as it does.
class Checkpoint {
 public:
  // Maps all files and checks them and the index against each other: every shard is there, holds
  // the tensors that the index gives it and no others. Tensors of a GGUF have Hugging Face's names;
  // matrices that are spread over several tensors (FP8, GPTQ, AWQ) are one. kNotFound where there
  // are no weights, kUnimplemented, with advice, for PyTorch's pickles.
  static Result<Checkpoint> open(const std::filesystem::path& path);

  // The tensors of one safetensors file.
  static Result<Checkpoint> open_file(const std::filesystem::path& path);

  // Takes this file's tensors in place of those of the same names. Fails by name, and changes
  // nothing, where there is none, it has another shape, or it is computed from several.
  Status replace_some(SafetensorsFile file);

  // Sorted by name.
  std::span<const CheckpointTensor> tensors() const { return tensors_; }
  const CheckpointTensor* find(std::string_view name) const;  // null when there is none

  // The tensor, checked: it is there, has this shape, and is readable(). The failure says what was
  // found instead, or which tensors have a similar name.
  Result<const CheckpointTensor*> require(std::string_view name,
                                          std::span<const int64_t> shape) const;

  // The safetensors file that has this tensor's bytes, for loaders that read the file themselves.
  // Null for a tensor of a GGUF, and for one that is computed from several tensors.
  const SafetensorsFile* find_file(const CheckpointTensor& tensor) const;

  // Gives the memory of this tensor's mapped pages back once it has been copied.
  void release(const CheckpointTensor& tensor) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  Status open_folder();
  Status open_gguf(const std::filesystem::path& path);
  Status add_file(const std::filesystem::path& path);
  Status read_index(const std::filesystem::path& path);

  std::filesystem::path folder_;
  std::vector<SafetensorsFile> files_;
  std::vector<GgufFile> gguf_files_;
  std::vector<CheckpointTensor> tensors_;
};

// The configuration of a model's path: a folder's config.json, or what a GGUF's metadata say in its
// terms. kNotFound where there is neither.
Result<JsonObject> read_model_config(const std::filesystem::path& path);

// The vocabulary inside a GGUF; nothing where the path means no GGUF.
Result<std::optional<StoredVocabulary>> read_stored_vocabulary(const std::filesystem::path& path);

}  // namespace espalier
