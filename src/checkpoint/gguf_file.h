// One file in the GGUF format, version 2 or 3, little endian: metadata by key, then tensors.
// Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "checkpoint/block_types.h"

namespace espalier {

// A metadata value. Integers of all widths are one kind, as are numbers.
struct GgufValue {
  using Strings = std::vector<std::string_view>;  // into the mapped file
  using Integers = std::vector<int64_t>;          // booleans too
  using Numbers = std::vector<double>;
  std::variant<int64_t, double, bool, std::string_view, Strings, Integers, Numbers> value;
};

// A key of the metadata with its type and value as the file has them.
struct GgufEntry {
  std::string_view key;
  std::span<const std::byte> bytes;
};

struct GgufTensor {
  std::string_view name;
  const BlockType* type = nullptr;
  std::vector<int64_t>
      shape;  // rows first, as everywhere here; the file has it the other way round
  std::span<const std::byte> bytes;
  int64_t num_elements() const;
};

// Move-only; thread-safe to read.
class GgufFile {
 public:
  // Maps the file and checks it to the last byte: magic, version, counts, lengths, types, names
  // that stand once, tensors that are aligned, inside the file and do not overlap. What does not
  // hold is kDataLoss with the file's and the key's or tensor's name.
  static Result<GgufFile> open(const std::filesystem::path& path);

  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in the file's order
  const std::filesystem::path& path() const { return file_.path(); }
  void release(std::span<const std::byte> part) const { file_.release(part); }

  const std::vector<GgufEntry>& entries() const { return entries_; }  // in the file's order
  // Null when there is no such key.
  const GgufValue* find(std::string_view key) const;
  // The value; nothing when it is absent, or of another kind.
  std::optional<int64_t> integer(std::string_view key) const;
  std::optional<double> number(std::string_view key) const;  // integers too
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string_view> string(std::string_view key) const;
  const GgufValue::Strings* strings(std::string_view key) const;
  std::vector<double> numbers(std::string_view key) const;  // integers too; empty when absent

 private:
  class Reader;
  explicit GgufFile(MappedFile file) : file_(std::move(file)) {}
  Status read_header();
  Status read_tensors(Reader& reader, uint64_t num_tensors, uint64_t alignment);
  // The entry behind a tensor's name and number of dimensions.
  static Status read_entry(Reader& reader, uint32_t num_dimensions, uint64_t alignment,
                           GgufTensor& tensor, uint64_t& offset);
  // Gives each tensor its bytes. offsets: of each tensor, in the data that begins at data_begin.
  Status place_tensors(const std::vector<uint64_t>& offsets, uint64_t data_begin);
  Status check_names() const;

  MappedFile file_;
  std::map<std::string_view, GgufValue> metadata_;
  std::vector<GgufEntry> entries_;
  std::vector<GgufTensor> tensors_;
};

// The parts of a split model: "name-00001-of-00003.gguf" names its siblings. One path for any
// other.
Result<std::vector<std::filesystem::path>> gguf_parts(const std::filesystem::path& path);

}  // namespace espalier
