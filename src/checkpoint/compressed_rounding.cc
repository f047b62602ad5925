#include "checkpoint/compressed_rounding.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/small_floats.h"
#include "tensor/float16.h"

namespace espalier {
namespace {

using Kind = CompressedFormat::Kind;
using Values = std::span<const float>;

constexpr float kE4m3Max = 448;

// A scale as the file has it.
float rounded_scale(float scale) { return to_float(to_bfloat16(scale)); }

// The nearest e4m3, ties to even; beyond the range the largest.
uint8_t to_e4m3(float value) {
  const float size = std::abs(value);
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (!(size < kE4m3Max)) return std::isnan(size) ? 0x7f : sign | 0x7e;
  // Subnormal numbers have the exponent of the least normal ones.
  const int exponent = size == 0 ? -6 : std::max(std::ilogb(size), -6);
  const auto eighths = static_cast<int>(std::nearbyint(std::ldexp(size, 3 - exponent)));
  return sign | static_cast<uint8_t>(((exponent + 7) << 3) + eighths - 8);
}

float quotient(float value, float scale) { return scale == 0 ? 0.0f : value / scale; }

double square_error(const CodeSteps& steps, Values values) {
  double sum = 0;
  for (const float value : values) {
    const double off = value - static_cast<double>(steps.nearest(value));
    sum += off * off;
  }
  return sum;
}

// Clipping a few large numbers costs less than coarse steps for all others.
CodeSteps best_int4_steps(Kind kind, Values values) {
  CodeSteps best;
  double least = std::numeric_limits<double>::infinity();
  for (const float kept : kClippings) {
    const CodeSteps steps = int4_steps(kind, values, kept);
    const double error = square_error(steps, values);
    if (error < least) least = error, best = steps;
  }
  return best;
}

// Of the numbers of a cell of the grid.
class Cell {
 public:
  Cell(Values values, int64_t columns, StepGrid grid, int64_t row, int64_t column)
      : values_(values),
        columns_(columns),
        row_(row),
        last_row_(std::min(row + grid.rows, std::ssize(values) / columns)),
        column_(column),
        width_(std::min(grid.columns, columns - column)) {}

  int64_t first_row() const { return row_; }
  int64_t last_row() const { return last_row_; }
  size_t begin(int64_t row) const { return static_cast<size_t>(row * columns_ + column_); }
  Values row(int64_t row) const { return values_.subspan(begin(row), static_cast<size_t>(width_)); }
  float largest() const {
    float out = 0;
    for (int64_t at = row_; at < last_row_; ++at) out = std::max(out, largest_magnitude(row(at)));
    return out;
  }

 private:
  const Values values_;
  const int64_t columns_, row_, last_row_, column_, width_;
};

}  // namespace

float largest_magnitude(Values values) {
  float out = 0;
  for (const float value : values) out = std::max(out, std::abs(value));
  return out;
}

uint8_t CodeSteps::code(float value) const {
  const float number = quotient(value, scale);
  switch (kind) {
    case Kind::kInt4:
    case Kind::kInt4Zero:
      return static_cast<uint8_t>(
          std::clamp(std::nearbyint(number) + static_cast<float>(zero), 0.0f, 15.0f));
    case Kind::kInt8:
      return static_cast<uint8_t>(
          static_cast<int8_t>(std::clamp(std::nearbyint(number), -127.0f, 127.0f)));
    default:
      return to_e4m3(number);
  }
}

float CodeSteps::value(uint8_t code) const {
  switch (kind) {
    case Kind::kInt4:
    case Kind::kInt4Zero:
      return static_cast<float>(code - zero) * scale;
    case Kind::kInt8:
      return static_cast<float>(static_cast<int8_t>(code)) * scale;
    default:
      return decode_table<e4m3>()[code] * scale;
  }
}

CodeSteps steps_up_to(Kind kind, float largest) {
  return {.kind = kind,
          .scale = rounded_scale(largest / (kind == Kind::kInt8 ? 127.0f : kE4m3Max))};
}

CodeSteps int4_steps(Kind kind, Values values, float kept) {
  if (kind == Kind::kInt4)
    return {
        .kind = kind, .scale = rounded_scale(kept * largest_magnitude(values) / 7.5f), .zero = 8};
  // Zero is a number of each group, as in all of these formats.
  const auto [least, most] = std::ranges::minmax(values);
  const float low = kept * std::min(least, 0.0f), high = kept * std::max(most, 0.0f);
  CodeSteps steps{.kind = kind, .scale = rounded_scale((high - low) / 15.0f)};
  steps.zero =
      static_cast<int32_t>(std::clamp(std::nearbyint(-quotient(low, steps.scale)), 0.0f, 15.0f));
  return steps;
}

StepGrid step_grid(Kind kind, int64_t columns) {
  if (kind == Kind::kFp8Block) return {kE4m3Block, kE4m3Block};
  const bool int4 = kind == Kind::kInt4 || kind == Kind::kInt4Zero;
  return {1, int4 ? kInt4Inputs : columns};
}

RoundedRows::RoundedRows(Kind kind, int64_t rows, int64_t columns)
    : kind(kind), rows(rows), columns(columns), codes(static_cast<size_t>(rows * columns)) {
  const StepGrid grid = step_grid(kind, columns);
  steps.resize(static_cast<size_t>((rows + grid.rows - 1) / grid.rows * groups_of_row()));
}

size_t RoundedRows::steps_index(int64_t row, int64_t column) const {
  const StepGrid grid = step_grid(kind, columns);
  return static_cast<size_t>(row / grid.rows * groups_of_row() + column / grid.columns);
}

RoundedRows round_rows(Kind kind, Values values, int64_t columns) {
  RoundedRows out(kind, std::ssize(values) / columns, columns);
  const StepGrid grid = step_grid(kind, columns);
  const bool int4 = kind == Kind::kInt4 || kind == Kind::kInt4Zero;
  for (int64_t first = 0; first < out.rows; first += grid.rows) {
    for (int64_t column = 0; column < columns; column += grid.columns) {
      const Cell cell(values, columns, grid, first, column);
      CodeSteps& steps = out.steps[out.steps_index(first, column)];
      steps = int4 ? best_int4_steps(kind, cell.row(first)) : steps_up_to(kind, cell.largest());
      for (int64_t row = cell.first_row(); row < cell.last_row(); ++row)
        std::ranges::transform(cell.row(row),
                               out.codes.begin() + static_cast<int64_t>(cell.begin(row)),
                               [&](float value) { return steps.code(value); });
    }
  }
  return out;
}

}  // namespace espalier
