// Models written to files: GGUF, and Hugging Face's safetensors. Tensors are read and written some
// rows at a time, so a model of any size takes a few MiB of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/block_encoder.h"
#include "checkpoint/gguf_file.h"

namespace espalier {

// The bytes of a tensor of a type that safetensors alone have, in equal lines.
struct LinesToWrite {
  std::string_view type;  // as safetensors name it
  int64_t line_bytes = 0;
  int64_t count = 0;
  std::function<void(int64_t line, std::byte* to)> write;
};

// A tensor of the result, and where its elements come from.
struct TensorToWrite {
  std::string name;
  std::vector<int64_t> shape;  // rows first; the last dimension is whole blocks of the encoder's
  const BlockEncoder* encoder = nullptr;  // null where there are lines
  // Elements [first, first + out.size()) in row-major order. What it borrows outlives the tensor.
  std::function<void(int64_t first, std::span<float> out)> read;
  // Its bytes in the encoder's type, where the source has them already; then read() is not called.
  std::span<const std::byte> stored;
  std::optional<LinesToWrite> lines;  // instead of all of these
  std::function<void()> done;         // called once it has been written; may be null
  int64_t num_elements() const;
  int64_t num_bytes() const;  // in the file
};

// Called with the bytes of tensors written so far.
using WriteProgress = std::function<void(int64_t bytes)>;

int64_t total_bytes(std::span<const TensorToWrite> tensors);

// The metadata of a GGUF file, in the order in which they are added. A key stands once: what is
// added again takes the place of the old value.
class GgufMetadata {
 public:
  void integer(std::string_view key, uint32_t value);
  void integers(std::string_view key, std::span<const int32_t> values);
  void number(std::string_view key, float value);
  void boolean(std::string_view key, bool value);
  void text(std::string_view key, std::string_view value);
  void texts(std::string_view key, std::span<const std::string> values);
  // `bytes`: the value's type and the value, as a file has them.
  void raw(std::string_view key, std::span<const std::byte> bytes);
  void remove(std::string_view key);

  size_t size() const { return entries_.size(); }
  std::string bytes() const;  // as they stand in a file

 private:
  struct Entry {
    std::string key, value;  // value: behind its type
  };
  std::string& at(std::string_view key);
  std::vector<Entry> entries_;
};

// Version 3, with tensors in the order that they have here. Returns once the file is on the disk.
Status write_gguf(const std::filesystem::path& path, const GgufMetadata& metadata,
                  std::span<const TensorToWrite> tensors, const WriteProgress& progress);

// model.safetensors, or shards of `shard_bytes` at most (unless a tensor is larger) with their
// index. REQUIRES: tensors are F32, F16 or BF16, or have lines; the folder is there.
Status write_safetensors(const std::filesystem::path& folder,
                         std::span<const TensorToWrite> tensors, int64_t shard_bytes,
                         const WriteProgress& progress);

}  // namespace espalier
