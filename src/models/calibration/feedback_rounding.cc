#include "models/calibration/feedback_rounding.h"

#include <algorithm>
#include <limits>
#include <vector>

namespace espalier::calibration {
namespace {

using Kind = CompressedFormat::Kind;

static_assert(kFactorBlock == kInt4Inputs && kFactorBlock == kE4m3Block);

// Beyond those of rounding without calibration: where outliers meet small inputs, most of the range
// is not worth its steps.
constexpr float kFurtherClippings[] = {0.62f, 0.55f, 0.48f, 0.41f, 0.35f,
                                       0.3f,  0.25f, 0.2f,  0.16f, 0.13f};

// A block of columns of the factor on its diagonal.
class DiagonalBlock {
 public:
  DiagonalBlock(const OutputFactor& factor, int64_t begin, int64_t end)
      : width_(end - begin), values_(static_cast<size_t>(width_ * width_)) {
    for (int64_t row = 0; row < width_; ++row)
      for (int64_t column = 0; column <= row; ++column)
        values_[static_cast<size_t>(row * width_ + column)] =
            factor.at(begin + row, begin + column);
  }

  int64_t width() const { return width_; }
  const float* row(int64_t row) const { return values_.data() + row * width_; }
  float diagonal(int64_t i) const { return row(i)[i]; }

 private:
  const int64_t width_;
  std::vector<float> values_;  // zero above the diagonal
};

// The weights of a row in a block while they are rounded, from the last to the first.
class BlockRow {
 public:
  explicit BlockRow(const DiagonalBlock& block)
      : block_(block),
        parts_(static_cast<size_t>(block.width())),
        targets_(static_cast<size_t>(block.width())) {}

  // weights: the row's; before: their parts of e C due to the weights behind the block.
  void begin(const float* weights, const float* before) { weights_ = weights, before_ = before; }

  // The weights that would make up for all errors behind the block, if they need not be rounded.
  std::span<const float> targets() {
    std::copy_n(before_, block_.width(), parts_.begin());
    for (int64_t i = block_.width() - 1; i >= 0; --i) {
      const float made_up = parts_[static_cast<size_t>(i)] / block_.diagonal(i);
      targets_[static_cast<size_t>(i)] = weights_[i] + made_up;
      add(i, -made_up);
    }
    return targets_;
  }

  // Rounds the weights; returns the squared error, or some that is above `limit`. errors: of the
  // weights; null: not wanted, nor are the codes.
  double round(const CodeSteps& steps, double limit, uint8_t* codes, float* errors) {
    std::copy_n(before_, block_.width(), parts_.begin());
    double sum = 0;
    for (int64_t i = block_.width() - 1; i >= 0 && sum <= limit; --i) {
      const float diagonal = block_.diagonal(i);
      const float target = weights_[i] + parts_[static_cast<size_t>(i)] / diagonal;
      const uint8_t code = steps.code(target);
      const float value = steps.value(code);
      const double off = double{diagonal} * (target - value);
      sum += off * off;
      add(i, weights_[i] - value);
      if (errors == nullptr) continue;
      codes[i] = code;
      errors[i] = weights_[i] - value;
    }
    return sum;
  }

  CodeSteps best_steps(Kind kind) {
    targets();
    CodeSteps best;
    double least = std::numeric_limits<double>::infinity();
    const auto take = [&](float kept) {
      const CodeSteps steps = int4_steps(kind, targets_, kept);
      const double error = round(steps, least, nullptr, nullptr);
      if (error < least) least = error, best = steps;
    };
    for (const float kept : kClippings) take(kept);
    for (const float kept : kFurtherClippings) take(kept);
    return best;
  }

 private:
  // The error of weight i stands in the parts of the inputs before it.
  void add(int64_t i, float error) {
    const float* const factors = block_.row(i);
    for (int64_t k = 0; k < i; ++k) parts_[static_cast<size_t>(k)] += error * factors[k];
  }

  const DiagonalBlock& block_;
  const float* weights_ = nullptr;
  const float* before_ = nullptr;
  std::vector<float> parts_, targets_;
};

// Values before minus values after.
std::vector<float> differences(kernels::CpuBackend& backend, std::span<const float> weights,
                               const RoundedRows& rounded) {
  std::vector<float> out(weights.size());
  backend.pool().parallel_for(rounded.rows, 16, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      for (int64_t column = 0; column < rounded.columns; ++column) {
        const auto at = static_cast<size_t>(row * rounded.columns + column);
        out[at] = weights[at] - rounded.value(row, column);
      }
  });
  return out;
}

}  // namespace

RoundedRows round_plainly(kernels::CpuBackend& backend, Kind kind, std::span<const float> weights,
                          int64_t columns) {
  RoundedRows out(kind, std::ssize(weights) / columns, columns);
  // Whole blocks of rows, which may share scales.
  backend.pool().parallel_for(out.rows, kFactorBlock, [&](int64_t first, int64_t last) {
    const auto begin = static_cast<size_t>(first * columns);
    const auto count = static_cast<size_t>((last - first) * columns);
    const RoundedRows part = round_rows(kind, weights.subspan(begin, count), columns);
    std::ranges::copy(part.codes, out.codes.begin() + first * columns);
    std::ranges::copy(part.steps,
                      out.steps.begin() + static_cast<int64_t>(out.steps_index(first, 0)));
  });
  return out;
}

Result<CalibratedMatrix> round_with_feedback(kernels::CpuBackend& backend,
                                             const OutputFactor& factor, Kind kind,
                                             std::span<const float> weights) {
  const int64_t columns = factor.columns(), rows = std::ssize(weights) / columns;
  CalibratedMatrix out{.rounded = round_plainly(backend, kind, weights, columns)};
  std::vector<float> errors = differences(backend, weights, out.rounded);
  ESP_ASSIGN_OR_RETURN(out.squares.plain, factor.square_length(backend, errors));
  ESP_ASSIGN_OR_RETURN(out.squares.all, factor.square_length(backend, weights));
  const bool searches = kind == Kind::kInt4 || kind == Kind::kInt4Zero;
  std::vector<float> before;
  for (int64_t begin = (columns - 1) / kFactorBlock * kFactorBlock; begin >= 0;
       begin -= kFactorBlock) {
    const int64_t end = std::min(begin + kFactorBlock, columns), width = end - begin;
    const DiagonalBlock block(factor, begin, end);
    before.assign(static_cast<size_t>(rows * width), 0.0f);
    ESP_RETURN_IF_ERROR(
        factor.add_matmul(backend, errors.data() + end, rows, end, begin, end, before.data()));
    backend.pool().parallel_for(rows, 8, [&](int64_t first, int64_t last) {
      BlockRow row(block);
      for (int64_t i = first; i < last; ++i) {
        const int64_t at = i * columns + begin;
        row.begin(weights.data() + at, before.data() + i * width);
        CodeSteps& steps = out.rounded.steps[out.rounded.steps_index(i, begin)];
        if (searches) steps = row.best_steps(kind);
        row.round(steps, std::numeric_limits<double>::infinity(), out.rounded.codes.data() + at,
                  errors.data() + at);
      }
    });
  }
  ESP_ASSIGN_OR_RETURN(out.squares.calibrated, factor.square_length(backend, errors));
  return out;
}

}  // namespace espalier::calibration
