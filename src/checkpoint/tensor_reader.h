// Elements that have to be computed: blocks of a quantised format, integers with scales in another
// tensor, rows in another order.
#pragma once

#include <cstdint>
#include <span>

namespace espalier {

// Immutable; thread-safe. Borrows the checkpoint's files.
class TensorReader {
 public:
  virtual ~TensorReader() = default;
  // Elements [first, first + out.size()) in row-major order; the range lies inside the tensor.
  virtual void read(int64_t first, std::span<float> out) const = 0;
};

}  // namespace espalier
