#include "text/unicode/char_class.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

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
  static const uint8_t* const kTable = make_table().release();  // as long as any thread runs
  return kTable;
}

}  // namespace espalier::internal

namespace espalier {

bool is_word_character(char32_t code) {
  if (CharClasses().is(code, kLetter | kMark | kDecimal)) return true;
  if (code < 0x80) return code == '_';
  // Letters by use: circled and squared ones (Other_Alphabetic), and numbers such as U+2167.
  static constexpr std::pair<char32_t, char32_t> kOtherAlphabetic[] = {
      {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
  for (const auto& [first, last] : kOtherAlphabetic) {
    if (code >= first && code <= last) return true;
  }
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_PC || code == 0x200C ||
         code == 0x200D;
}

}  // namespace espalier
