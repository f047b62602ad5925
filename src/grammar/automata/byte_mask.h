// A set of bytes as four words, for set operations in a few instructions.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace espalier::grammar {

// A set of bytes; word w holds bytes 64 w to 64 w + 63.
struct ByteMask {
  std::array<uint64_t, 4> words{};
  void add(int low, int high) {  // both inclusive
    for (int w = low / 64; w <= high / 64; ++w) words[static_cast<size_t>(w)] |= part(w, low, high);
  }
  void remove(int low, int high) {
    for (int w = low / 64; w <= high / 64; ++w)
      words[static_cast<size_t>(w)] &= ~part(w, low, high);
  }
  bool has(uint8_t byte) const { return words[byte / 64] >> (byte % 64) & 1; }
  int count() const {
    int sum = 0;
    for (const uint64_t word : words) sum += std::popcount(word);
    return sum;
  }

 private:
  static uint64_t part(int word, int low, int high) {
    const int from = std::max(low - 64 * word, 0), to = std::min(high - 64 * word, 63);
    return ~uint64_t{0} >> (63 - (to - from)) << from;
  }
};

}  // namespace espalier::grammar
