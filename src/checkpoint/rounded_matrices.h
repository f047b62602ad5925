// Matrices that were rounded before a checkpoint is written, because calibration does so layer by
// layer: in a file beside the result, so that memory does not hold them. Used by one thread until
// finish(); then thread-safe to read.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "checkpoint/compressed_rounding.h"
#include "checkpoint/staged_output.h"

namespace espalier {

// A tensor that a rounded matrix becomes, in lines of some rows each.
struct RoundedPart {
  std::string_view suffix;  // of its name: ".weight_scale"
  std::string_view type;    // as safetensors name it
  std::vector<int64_t> shape;
  int64_t line_bytes = 0, line_count = 0;
  int64_t rows = 0;  // of the matrix, that a line is made of; 0: none
  // Writes the line of the rows from `first` on.
  void (*put)(const RoundedRows& matrix, int64_t first, std::byte* to) = nullptr;
};
// In the order in which a file has them.
std::vector<RoundedPart> rounded_parts(CompressedFormat::Kind kind, int64_t rows, int64_t columns);

class RoundedMatrices {
 public:
  // The file is made, and removed with the object.
  static Result<RoundedMatrices> create(const std::filesystem::path& path);
  RoundedMatrices(RoundedMatrices&&) = default;
  RoundedMatrices& operator=(RoundedMatrices&&) = delete;
  ~RoundedMatrices();

  // name: of the matrix's module, "model.layers.0.mlp.up_proj".
  Status add(const std::string& name, const RoundedRows& matrix);
  Status finish();

  bool has(const std::string& name) const { return places_.contains(name); }
  // The bytes of a part. REQUIRES: finish(), has(name).
  std::span<const std::byte> bytes(const std::string& name, size_t part) const;

 private:
  struct Place {
    size_t begin = 0, size = 0;
  };
  RoundedMatrices(std::filesystem::path path, OutputFile file)
      : path_(std::move(path)), file_(std::move(file)) {}

  std::filesystem::path path_;  // empty once moved from
  std::optional<OutputFile> file_;
  std::optional<MappedFile> mapped_;
  size_t size_ = 0;
  std::map<std::string, std::vector<Place>> places_;  // of each part
};

}  // namespace espalier
