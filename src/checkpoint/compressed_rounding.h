// Numbers of a matrix as codes of compressed-tensors' formats: the steps that numbers are rounded
// to, and matrices rounded number by number. Plain values and pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace espalier {

// How matrices are rounded. Each is symmetric around 0 but INT4_ZP.
//   FP8         e4m3, a scale for each row; activations e4m3, a scale for each token
//   FP8_STATIC  the same with one scale for all activations of a matrix, which calibration finds
//   FP8_BLOCK   e4m3, a scale for each 128 x 128
//   INT8        a scale for each row; activations of 8 bits, a scale for each token
//   INT4        a scale for 128 inputs of a row; of a few clippings that of the least square error
//   INT4_ZP     the same with a zero point beside each scale
struct CompressedFormat {
  std::string_view name;
  enum class Kind : uint8_t { kFp8, kFp8Static, kFp8Block, kInt8, kInt4, kInt4Zero } kind;

  bool is_int4() const { return kind == Kind::kInt4 || kind == Kind::kInt4Zero; }
  bool has_row_scales() const { return !is_int4() && kind != Kind::kFp8Block; }
};

// The codes of numbers that share a scale; a code of 4 bits stands for (code - zero) * scale.
struct CodeSteps {
  CompressedFormat::Kind kind{};
  float scale = 0;
  int32_t zero = 0;

  uint8_t code(float value) const;  // of the nearest number that has one
  float value(uint8_t code) const;
  float nearest(float of) const { return value(code(of)); }
};

// Scales are numbers of bfloat16, as files have them.
// Steps of 8 bits for numbers up to `largest` in magnitude.
CodeSteps steps_up_to(CompressedFormat::Kind kind, float largest);
// Steps of 4 bits for these numbers, of whose range the share `kept` is left.
CodeSteps int4_steps(CompressedFormat::Kind kind, std::span<const float> values, float kept);

// The clippings that are compared for a group of 4 bits.
inline constexpr float kClippings[] = {1.0f, 0.95f, 0.9f, 0.85f, 0.8f, 0.75f, 0.7f};

float largest_magnitude(std::span<const float> values);

inline constexpr int64_t kInt4Inputs = 128;  // of a row, that share a scale of 4 bits
inline constexpr int64_t kE4m3Block = 128;   // rows and inputs that share a scale of FP8_BLOCK

// Numbers of this many rows and columns share a scale.
struct StepGrid {
  int64_t rows = 1, columns = 1;
};
StepGrid step_grid(CompressedFormat::Kind kind, int64_t columns);

// A matrix, or some rows of it, as codes.
struct RoundedRows {
  CompressedFormat::Kind kind{};
  int64_t rows = 0, columns = 0;
  std::vector<uint8_t> codes;    // [rows, columns], one a byte
  std::vector<CodeSteps> steps;  // [rows / grid.rows, columns / grid.columns], rounded up
  float input_scale = 0;         // of FP8_STATIC

  RoundedRows() = default;
  // Room for codes and steps.
  RoundedRows(CompressedFormat::Kind kind, int64_t rows, int64_t columns);
  int64_t groups_of_row() const {
    const int64_t width = step_grid(kind, columns).columns;
    return (columns + width - 1) / width;
  }
  size_t steps_index(int64_t row, int64_t column) const;
  const CodeSteps& steps_at(int64_t row, int64_t column) const {
    return steps[steps_index(row, column)];
  }
  float value(int64_t row, int64_t column) const {
    return steps_at(row, column).value(codes[static_cast<size_t>(row * columns + column)]);
  }
};

// Each number becomes the nearest one that has a code. values: [rows, columns], row-major; whole
// cells of the grid, but for the matrix's last rows and columns.
RoundedRows round_rows(CompressedFormat::Kind kind, std::span<const float> values, int64_t columns);

}  // namespace espalier
