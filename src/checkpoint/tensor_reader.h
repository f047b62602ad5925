// Elements that have to be computed: blocks of a quantised format, integers with scales in another
// tensor, rows in another order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tensor/block_format.h"

namespace espalier {

// A matrix as blocks that kernels read themselves.
struct StoredBlocks {
  BlockFormat format{};
  const std::byte* data = nullptr;  // row after row, whole blocks each
  std::span<const int64_t> order;   // which row of `data` each row is; empty for their own order
};

// A matrix of e4m3 whose rows have one scale each, or all the same, or whose blocks of 128 x 128
// have.
struct StoredE4m3 {
  const std::byte* data = nullptr;  // row-major
  // [rows] or [1], or of blocks [.., block_columns]; an element is its code times the scale.
  std::span<const float> scales;
  int64_t block_columns = 0;  // 0: of rows

  // REQUIRES: block_columns is 0.
  float scale(int64_t row) const {
    return scales[scales.size() == 1 ? 0 : static_cast<size_t>(row)];
  }
};

// A matrix of codes of 4 bits; an element is (code - zero) * scale, with a scale and a zero point
// for each row and group of inputs, which are neighbours in the order of `columns`.
struct StoredInt4 {
  // Lines of little-endian words of eight codes, low bits first.
  enum class Order : uint8_t {
    kRows,     // a line a row: [input / 8] (compressed-tensors)
    kColumns,  // a line eight inputs: [row], words of one row's inputs (GPTQ)
    kAwq,      // a line an input: [row / 8], words of eight rows as 0, 2, 4, 6, 1, 3, 5, 7
    kQ4_0,     // a line a row: [input / 32] blocks of a float16 scale and 16 bytes (GGUF)
  };
  Order order{};
  const std::byte* data = nullptr;
  int64_t line_bytes = 0;
  std::span<const int64_t> rows;  // which line each row is; empty for their own order
  // Which column each input is, [in]; null for their own order. kRows and kColumns alone.
  std::shared_ptr<const std::vector<int32_t>> columns;
  int32_t group = 128;  // inputs: 32 or 128; several may have the same scale
  bool zeros = false;   // zero points of their own; all are 8 otherwise
  // Of NVFP4, whose group is 16: an element is its E2M1 number x e4m3 x scale_of_all.
  const std::byte* e4m3_scales = nullptr;  // [rows][columns / 16]
  float scale_of_all = 1;
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
  // hold for other parts of the matrix.
  virtual std::optional<StoredE4m3> e4m3() const { return std::nullopt; }
  // The codes that the elements are computed from; nothing where they are none, or their groups are
  // of other sizes.
  virtual std::optional<StoredInt4> int4() const { return std::nullopt; }
  // The scale and zero point (0 to 16) of an element. REQUIRES: int4().
  virtual float int4_scale(int64_t /*row*/, int64_t /*column*/) const { return 0; }
  virtual uint8_t int4_zero(int64_t /*row*/, int64_t /*column*/) const { return 8; }
};

}  // namespace espalier
