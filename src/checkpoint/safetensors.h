// One file in the safetensors format: 8 bytes N (little endian), N bytes of JSON that give each
// tensor's name, type, shape and place, then the tensors' bytes.
// Source: https://github.com/huggingface/safetensors#format
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "checkpoint/tensor_reader.h"
#include "tensor/dtype.h"

namespace espalier {

// A tensor of a checkpoint. Its bytes are borrowed from the mapped file and may start anywhere:
// read it with copy_as_float (convert.h), not through a cast pointer.
struct CheckpointTensor {
  std::string name;
  std::string dtype_name;      // as the file writes it: "BF16", "I64", ...
  std::optional<DType> dtype;  // for the types that weights are read from
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // row-major
  // Computes the elements where the bytes are no plain array of `dtype`; null otherwise, and for
  // types that are not read at all. Shared by the tensor's copies.
  std::shared_ptr<const TensorReader> reader;

  bool readable() const { return dtype.has_value() || reader != nullptr; }

  int64_t num_elements() const;
};

// "[2, 3]"
std::string shape_string(std::span<const int64_t> shape);

// Move-only; thread-safe to read.
class SafetensorsFile {
 public:
  // Maps the file and checks its header to the last byte: the header's length and JSON, no name
  // twice, known types, sizes that agree with shapes, and tensors that fill the rest of the file
  // without gap or overlap. What does not hold is kDataLoss with the file's and the tensor's name.
  static Result<SafetensorsFile> open(const std::filesystem::path& path);

  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }  // in the file's order
  const std::filesystem::path& path() const { return file_.path(); }
  // Where in the file these bytes of it (of a tensor) begin.
  int64_t offset_of(std::span<const std::byte> bytes) const {
    return bytes.data() - file_.bytes().data();
  }

  // Gives the memory of this tensor's mapped pages back; they are read again if touched.
  void release(const CheckpointTensor& tensor) const { file_.release(tensor.bytes); }

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}
  Status read_header();
  MappedFile file_;
  std::vector<CheckpointTensor> tensors_;
};

}  // namespace espalier
