// What calibration keeps of a matrix's inputs: H = X^T X over all rows x of its inputs, whose
// quadratic form e H e^T is the squared error of an output whose weights are off by e.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kernels/cpu/backend.h"

namespace espalier::calibration {

// Sums are float32, over rows in the order in which they come: the same for any number of threads.
// Used from one thread.
class InputSquares {
 public:
  explicit InputSquares(int64_t columns) : columns_(columns) {}

  // x: [rows, columns], rows `stride` elements apart. Rows are kept until there are some hundreds
  // of them, so an expert that sees few costs little.
  Status add(kernels::CpuBackend& backend, const float* x, int64_t stride, int64_t rows);

  int64_t columns() const { return columns_; }
  int64_t rows() const { return rows_; }
  float largest() const { return largest_; }  // in magnitude

  // H, [columns, columns]; what lies above its diagonal is undefined. Empties the sums.
  Result<std::vector<float>> take(kernels::CpuBackend& backend);

 private:
  Status fold(kernels::CpuBackend& backend);

  const int64_t columns_;
  int64_t rows_ = 0;
  float largest_ = 0;
  std::vector<float> pending_;  // [some rows, columns]
  std::vector<float> squares_;  // empty before the first fold()
};

}  // namespace espalier::calibration
