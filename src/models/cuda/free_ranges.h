// Ranges of one block of memory: taken first fit, given back in any order, joined with free
// neighbours. Knows no memory, so it is tested without a device. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace espalier {

class FreeRanges {
 public:
  explicit FreeRanges(int64_t size) : size_(size) {
    if (size > 0) free_[0] = size;
  }

  // Where `size` adjacent units begin that nobody has; nothing where there are none. REQUIRES: size
  // above 0.
  std::optional<int64_t> take(int64_t size);
  // REQUIRES: take() returned this range and it is not free.
  void give_back(int64_t begin, int64_t size);

  int64_t size() const { return size_; }
  int64_t num_free() const;
  int64_t largest() const;
  // Free ranges are disjoint, inside the block and have no neighbours.
  void check_invariants() const;

 private:
  int64_t size_ = 0;
  std::map<int64_t, int64_t> free_;  // begin to size
};

}  // namespace espalier
