#include "models/calibration/output_factor.h"

#include <algorithm>
#include <cmath>

#include "models/calibration/packed_rows.h"

namespace espalier::calibration {

Result<OutputFactor> OutputFactor::create(kernels::CpuBackend& backend, std::vector<float> squares,
                                          int64_t columns, double damping) {
  OutputFactor out(std::move(squares), columns);
  const auto diagonal = [&](int64_t i) -> float& {
    return out.values_[static_cast<size_t>(i * columns + i)];
  };
  double mean = 0;
  for (int64_t i = 0; i < columns; ++i) mean += double{diagonal(i)} / static_cast<double>(columns);
  // Inputs that were all zero leave a matrix that every rounding suits.
  const double added = mean > 0 ? damping * mean : 1;
  std::vector<double> roots, least;
  for (int64_t i = 0; i < columns; ++i) {
    roots.push_back(std::sqrt(diagonal(i) + added));
    // What is left of the diagonal in a factorisation is at least what was added to it.
    least.push_back(added / (roots.back() * roots.back()));
  }
  backend.pool().parallel_for(columns, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* const values = out.values_.data() + row * columns;
      for (int64_t i = 0; i < row; ++i)
        values[i] = static_cast<float>(
            values[i] / (roots[static_cast<size_t>(row)] * roots[static_cast<size_t>(i)]));
      values[row] = 1;
    }
  });
  ESP_RETURN_IF_ERROR(out.factor(backend, least));
  backend.pool().parallel_for(columns, 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t i = 0; i <= row; ++i)
        out.values_[static_cast<size_t>(row * columns + i)] *=
            static_cast<float>(roots[static_cast<size_t>(row)]);
  });
  return out;
}

// Left-looking: each block of columns first loses what the columns before it make of it.
Status OutputFactor::factor(kernels::CpuBackend& backend, const std::vector<double>& least) {
  std::vector<float> negative;
  for (int64_t begin = 0; begin < columns_; begin += kFactorBlock) {
    const int64_t end = std::min(begin + kFactorBlock, columns_);
    float* const rows = values_.data() + begin * columns_;
    if (begin > 0) {
      negative.clear();
      for (int64_t row = 0; row < end - begin; ++row)
        for (int64_t i = 0; i < begin; ++i) negative.push_back(-rows[row * columns_ + i]);
      ESP_ASSIGN_OR_RETURN(const kernels::PackedMatrix packed,
                           pack_rows(backend, {negative.data(), end - begin, begin, begin}));
      kernels::linear(backend, packed,
                      {.x = rows,
                       .x_stride = columns_,
                       .y = rows + begin,
                       .y_stride = columns_,
                       .rows = columns_ - begin,
                       .accumulate = true});
    }
    factor_diagonal(begin, end, least);
    solve_below(backend, begin, end);
  }
  return Status();
}

void OutputFactor::factor_diagonal(int64_t begin, int64_t end, const std::vector<double>& least) {
  const int64_t width = end - begin;
  std::vector<double> block(static_cast<size_t>(width * width));
  const auto in = [&](int64_t row, int64_t column) -> double& {
    return block[static_cast<size_t>(row * width + column)];
  };
  for (int64_t row = 0; row < width; ++row) {
    for (int64_t column = 0; column <= row; ++column) {
      double sum = at(begin + row, begin + column);
      for (int64_t i = 0; i < column; ++i) sum -= in(row, i) * in(column, i);
      in(row, column) = row == column
                            ? std::sqrt(std::max(sum, least[static_cast<size_t>(begin + row)]))
                            : sum / in(column, column);
      values_[static_cast<size_t>((begin + row) * columns_ + begin + column)] =
          static_cast<float>(in(row, column));
    }
  }
}

// The rows below the block: x of x B^T = row, in double.
void OutputFactor::solve_below(kernels::CpuBackend& backend, int64_t begin, int64_t end) {
  const int64_t width = end - begin;
  backend.pool().parallel_for(columns_ - end, 8, [&](int64_t first, int64_t last) {
    std::vector<double> x(static_cast<size_t>(width));
    for (int64_t row = end + first; row < end + last; ++row) {
      float* const values = values_.data() + row * columns_ + begin;
      for (int64_t column = 0; column < width; ++column) {
        const float* const factor = values_.data() + (begin + column) * columns_ + begin;
        double sum = values[column];
        for (int64_t i = 0; i < column; ++i) sum -= x[static_cast<size_t>(i)] * factor[i];
        x[static_cast<size_t>(column)] = sum / factor[column];
      }
      for (int64_t column = 0; column < width; ++column)
        values[column] = static_cast<float>(x[static_cast<size_t>(column)]);
    }
  });
}

Status OutputFactor::add_matmul(kernels::CpuBackend& backend, const float* errors, int64_t rows,
                                int64_t first, int64_t begin, int64_t end, float* to) const {
  const int64_t count = columns_ - first;
  if (count == 0) return Status();
  std::vector<float> panel(static_cast<size_t>((end - begin) * count));
  backend.pool().parallel_for(count, 64, [&](int64_t from, int64_t until) {
    for (int64_t column = begin; column < end; ++column) {
      float* const line = panel.data() + (column - begin) * count;
      for (int64_t i = from; i < until; ++i)
        line[i] = first + i >= column ? at(first + i, column) : 0.0f;
    }
  });
  ESP_ASSIGN_OR_RETURN(const kernels::PackedMatrix packed,
                       pack_rows(backend, {panel.data(), end - begin, count, count}));
  kernels::linear(backend, packed,
                  {.x = errors,
                   .x_stride = columns_,
                   .y = to,
                   .y_stride = end - begin,
                   .rows = rows,
                   .accumulate = true});
  return Status();
}

Result<double> OutputFactor::square_length(kernels::CpuBackend& backend,
                                           std::span<const float> matrix) const {
  const int64_t rows = std::ssize(matrix) / columns_;
  double sum = 0;
  std::vector<float> sums;
  for (int64_t begin = 0; begin < columns_; begin += kFactorBlock) {
    const int64_t end = std::min(begin + kFactorBlock, columns_);
    sums.assign(static_cast<size_t>(rows * (end - begin)), 0.0f);
    ESP_RETURN_IF_ERROR(
        add_matmul(backend, matrix.data() + begin, rows, begin, begin, end, sums.data()));
    for (const float dot : sums) sum += double{dot} * dot;
  }
  return sum;
}

}  // namespace espalier::calibration
