#include "text/unicode/char_class.h"

#include <algorithm>
#include <iterator>
#include <memory>

namespace espalier::internal {
namespace {

struct Row {
  uint32_t first;
  CharClass char_class;
};
constexpr Row kRows[] = {
#include "text/unicode/char_classes.inc"
};
constexpr size_t kNumCodePoints = 0x110000;

std::unique_ptr<uint8_t[]> make_table() {
  auto table = std::make_unique<uint8_t[]>(kNumCodePoints);
  for (size_t i = 0; i < std::size(kRows); ++i) {
    const size_t end = i + 1 < std::size(kRows) ? kRows[i + 1].first : kNumCodePoints;
    std::fill(table.get() + kRows[i].first, table.get() + end, kRows[i].char_class);
  }
  return table;
}

}  // namespace

const uint8_t* char_class_table() {
  static const std::unique_ptr<uint8_t[]> table = make_table();
  return table.get();
}

}  // namespace espalier::internal
