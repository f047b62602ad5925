#include "checkpoint/rounded_matrices.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tensor/float16.h"

namespace espalier {
namespace {

using Kind = CompressedFormat::Kind;

template <typename T>
void store_value(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

// Codes of 8 bits: of a row, or of the rows of a block.
void put_codes(const RoundedRows& matrix, int64_t first, std::byte* to) {
  const int64_t rows = std::min(step_grid(matrix.kind, matrix.columns).rows, matrix.rows - first);
  std::memcpy(to, matrix.codes.data() + first * matrix.columns,
              static_cast<size_t>(rows * matrix.columns));
}

void put_scales(const RoundedRows& matrix, int64_t first, std::byte* to) {
  const int64_t width = step_grid(matrix.kind, matrix.columns).columns;
  for (int64_t column = 0; column < matrix.columns; column += width, to += 2)
    store_value(to, to_bfloat16(matrix.steps_at(first, column).scale));
}

// Words of eight codes, low bits first.
void put_int4_codes(const RoundedRows& matrix, int64_t first, std::byte* to) {
  const uint8_t* codes = matrix.codes.data() + first * matrix.columns;
  for (int64_t i = 0; i < matrix.columns; i += 2)
    to[i / 2] = static_cast<std::byte>(codes[i] | codes[i + 1] << 4);
}

// The zero points of eight rows: a word for each group, the first row's in its low bits.
void put_zeros(const RoundedRows& matrix, int64_t first, std::byte* to) {
  const int64_t width = step_grid(matrix.kind, matrix.columns).columns;
  for (int64_t column = 0; column < matrix.columns; column += width, to += 4) {
    uint32_t word = 0;
    for (int64_t row = 0; row < 8; ++row)
      word |= static_cast<uint32_t>(matrix.steps_at(first + row, column).zero) << 4 * row;
    store_value(to, word);
  }
}

void put_input_scale(const RoundedRows& matrix, int64_t, std::byte* to) {
  store_value(to, matrix.input_scale);
}

}  // namespace

std::vector<RoundedPart> rounded_parts(Kind kind, int64_t rows, int64_t columns) {
  const StepGrid grid = step_grid(kind, columns);
  const int64_t lines = (rows + grid.rows - 1) / grid.rows;
  const int64_t groups = (columns + grid.columns - 1) / grid.columns;
  const RoundedPart scales{".weight_scale", "BF16",    {lines, groups}, 2 * groups,
                           lines,           grid.rows, put_scales};
  if (kind == Kind::kInt4 || kind == Kind::kInt4Zero) {
    std::vector<RoundedPart> out = {
        {".weight_packed", "I32", {rows, columns / 8}, columns / 2, rows, 1, put_int4_codes},
        scales,
        {".weight_shape", "I64", {2}, 16, 1, 0, nullptr}};
    if (kind == Kind::kInt4Zero)
      out.push_back(
          {".weight_zero_point", "I32", {rows / 8, groups}, 4 * groups, rows / 8, 8, put_zeros});
    return out;
  }
  std::vector<RoundedPart> out = {{".weight",
                                   kind == Kind::kInt8 ? "I8" : "F8_E4M3",
                                   {rows, columns},
                                   grid.rows * columns,
                                   lines,
                                   grid.rows,
                                   put_codes},
                                  scales};
  if (kind == Kind::kFp8Static)
    out.push_back({".input_scale", "F32", {1}, 4, 1, rows, put_input_scale});
  return out;
}

Result<RoundedMatrices> RoundedMatrices::create(const std::filesystem::path& path) {
  ESP_ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path));
  return RoundedMatrices(path, std::move(file));
}

RoundedMatrices::~RoundedMatrices() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove(path_, ignored);
}

Status RoundedMatrices::add(const std::string& name, const RoundedRows& matrix) {
  std::vector<Place>& places = places_[name];
  std::vector<std::byte> bytes;
  for (const RoundedPart& part : rounded_parts(matrix.kind, matrix.rows, matrix.columns)) {
    bytes.clear();
    if (part.put != nullptr) bytes.resize(static_cast<size_t>(part.line_count * part.line_bytes));
    std::byte* to = bytes.data();
    for (int64_t line = 0; part.put != nullptr && line < part.line_count; ++line) {
      part.put(matrix, line * part.rows, to);
      to += part.line_bytes;
    }
    ESP_RETURN_IF_ERROR(file_->write(std::span<const std::byte>(bytes)));
    places.push_back({size_, bytes.size()});
    size_ += bytes.size();
  }
  return Status();
}

Status RoundedMatrices::finish() {
  ESP_RETURN_IF_ERROR(file_->finish());
  ESP_ASSIGN_OR_RETURN(mapped_, MappedFile::open(path_));
  return Status();
}

std::span<const std::byte> RoundedMatrices::bytes(const std::string& name, size_t part) const {
  const Place& place = places_.at(name)[part];
  return mapped_->bytes().subspan(place.begin, place.size);
}

}  // namespace espalier
