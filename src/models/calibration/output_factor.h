// H = C C^T of a matrix's inputs, with C lower triangular, so that the squared error of outputs is
// the squared length of e C: a sum of one square for each input, in which the error of weight i
// stands in those of the inputs up to i alone.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"
#include "kernels/linear/op.h"

namespace espalier::calibration {

inline constexpr int64_t kFactorBlock = 128;  // columns that are factored, or rounded, together

// Immutable; its functions use the back end they are given.
class OutputFactor {
 public:
  // The factor of H + damping * (mean of H's diagonal) * 1. squares: of InputSquares::take().
  // damping: above 0. Columns of H are scaled to a diagonal of 1 while they are factored; GEMMs
  // of blocks are float32, and what lies on the diagonal is factored in double.
  static Result<OutputFactor> create(kernels::CpuBackend& backend, std::vector<float> squares,
                                     int64_t columns, double damping);

  int64_t columns() const { return columns_; }
  float at(int64_t row, int64_t column) const {
    return values_[static_cast<size_t>(row * columns_ + column)];
  }

  // Adds, for each row e of errors (of weights [first, columns)), e C[first.., begin..end) to `to`:
  // [rows, end - begin], dense. errors: the rows' first weight, rows `columns` apart.
  Status add_matmul(kernels::CpuBackend& backend, const float* errors, int64_t rows, int64_t first,
                    int64_t begin, int64_t end, float* to) const;

  // The squared length of all rows of `matrix` C. matrix: [rows, columns].
  Result<double> square_length(kernels::CpuBackend& backend, std::span<const float> matrix) const;

 private:
  OutputFactor(std::vector<float> values, int64_t columns)
      : values_(std::move(values)), columns_(columns) {}
  Status factor(kernels::CpuBackend& backend, const std::vector<double>& least);
  void factor_diagonal(int64_t begin, int64_t end, const std::vector<double>& least);
  void solve_below(kernels::CpuBackend& backend, int64_t begin, int64_t end);

  std::vector<float> values_;  // [columns, columns]; what lies above the diagonal is undefined
  int64_t columns_ = 0;
};

}  // namespace espalier::calibration
