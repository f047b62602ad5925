// Elements that have to be computed: blocks of a quantised format, integers with scales in another
// tensor, rows in another order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "tensor/block_format.h"

namespace espalier {

// A matrix as blocks that kernels read themselves.
struct StoredBlocks {
  BlockFormat format{};
  const std::byte* data = nullptr;  // row after row, whole blocks each
  std::span<const int64_t> order;   // which row of `data` each row is; empty for their own order
};

// A matrix of e4m3 whose rows have one scale each, or all the same.
struct StoredE4m3 {
  const std::byte* data = nullptr;  // row-major
  std::span<const float> scales;    // [rows] or [1]; an element is its code times the scale

  float scale(int64_t row) const {
    return scales[scales.size() == 1 ? 0 : static_cast<size_t>(row)];
  }
};

// Immutable; thread-safe. Borrows the checkpoint's files.
class TensorReader {
 public:
  virtual ~TensorReader() = default;
  // Elements [first, first + out.size()) in row-major order; the range lies inside the tensor.
  virtual void read(int64_t first, std::span<float> out) const = 0;
  // The blocks that the elements are computed from; nothing where they are no such blocks.
  virtual std::optional<StoredBlocks> blocks() const { return std::nullopt; }
  // The codes that the elements are computed from; nothing where they are none, or their scales
  // hold for parts of a row.
  virtual std::optional<StoredE4m3> e4m3() const { return std::nullopt; }
};

}  // namespace espalier
