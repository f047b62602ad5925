#include "models/calibration/input_squares.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/linear/op.h"
#include "models/calibration/packed_rows.h"

namespace espalier::calibration {
namespace {

constexpr int64_t kRowsOfFold = 512;
constexpr int64_t kColumnsOfBlock = 512;

// The transposed of [rows, columns].
std::vector<float> transposed(kernels::CpuBackend& backend, const std::vector<float>& x,
                              int64_t columns) {
  const int64_t rows = std::ssize(x) / columns;
  std::vector<float> out(x.size());
  backend.pool().parallel_for(columns, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = begin; column < end; ++column)
        out[static_cast<size_t>(column * rows + row)] =
            x[static_cast<size_t>(row * columns + column)];
  });
  return out;
}

}  // namespace

Status InputSquares::add(kernels::CpuBackend& backend, const float* x, int64_t stride,
                         int64_t rows) {
  for (int64_t row = 0; row < rows; ++row, x += stride) {
    for (int64_t i = 0; i < columns_; ++i) largest_ = std::max(largest_, std::abs(x[i]));
    pending_.insert(pending_.end(), x, x + columns_);
    ++rows_;
    if (std::ssize(pending_) == kRowsOfFold * columns_) ESP_RETURN_IF_ERROR(fold(backend));
  }
  return Status();
}

// Blocks of columns of H from the diagonal down.
Status InputSquares::fold(kernels::CpuBackend& backend) {
  squares_.resize(static_cast<size_t>(columns_ * columns_));
  const int64_t rows = std::ssize(pending_) / columns_;
  const std::vector<float> x = transposed(backend, pending_, columns_);
  pending_.clear();
  for (int64_t begin = 0; rows > 0 && begin < columns_; begin += kColumnsOfBlock) {
    const int64_t count = std::min(kColumnsOfBlock, columns_ - begin);
    const float* const block = x.data() + begin * rows;
    ESP_ASSIGN_OR_RETURN(const kernels::PackedMatrix packed,
                         pack_rows(backend, {block, count, rows, rows}));
    kernels::linear(backend, packed,
                    {.x = block,
                     .x_stride = rows,
                     .y = squares_.data() + begin * columns_ + begin,
                     .y_stride = columns_,
                     .rows = columns_ - begin,
                     .accumulate = true});
  }
  return Status();
}

Result<std::vector<float>> InputSquares::take(kernels::CpuBackend& backend) {
  ESP_RETURN_IF_ERROR(fold(backend));
  pending_.shrink_to_fit();
  return std::exchange(squares_, {});
}

}  // namespace espalier::calibration
