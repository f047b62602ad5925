#include "text/testing/random_text.h"

#include <iterator>
#include <string_view>

#include "text/unicode/utf8.h"

namespace espalier {

char32_t random_scalar(Rng& rng) {
  static constexpr struct {
    char32_t first, last;
  } kRanges[] = {{0, 0x7F},        {0, 0x7F},          {0xA0, 0x24F},      {0x300, 0x36F},
                 {0x370, 0x52F},   {0x590, 0x6FF},     {0x900, 0xD7F},     {0x1E00, 0x20FF},
                 {0x2100, 0x2BFF}, {0x3000, 0x30FF},   {0x4E00, 0x4FFF},   {0xAC00, 0xAFFF},
                 {0xFB00, 0xFFFD}, {0x10000, 0x1FFFF}, {0x20000, 0x3FFFF}, {0xE0000, 0x10FFFF}};
  const auto& range = kRanges[rng.below(std::size(kRanges))];
  return range.first + static_cast<char32_t>(rng.below(range.last - range.first + 1));
}

std::string random_text(Rng& rng, int num_pieces) {
  static constexpr std::string_view kPieces[] = {"a",
                                                 "B",
                                                 "the",
                                                 " the",
                                                 "The",
                                                 "HELLO",
                                                 "camelCase",
                                                 "s",
                                                 "'s",
                                                 "'S",
                                                 "'ll",
                                                 "'LL",
                                                 "'\xC5\xBF",
                                                 "'",
                                                 "1",
                                                 "12",
                                                 "1234",
                                                 " 9",
                                                 "\xC2\xBD",
                                                 " ",
                                                 "  ",
                                                 "   ",
                                                 "\n",
                                                 "\r\n",
                                                 "\n\n",
                                                 "\t",
                                                 "\xC2\xA0",
                                                 "\xE3\x80\x80",
                                                 "\xC2\x85",
                                                 "\xE2\x80\xA8",
                                                 "\xE1\xA0\x8E",
                                                 "!",
                                                 "?!",
                                                 "/",
                                                 "//\n",
                                                 "{}",
                                                 "...",
                                                 "<|",
                                                 "\xC3\xA9",
                                                 "e\xCC\x81",
                                                 "\xCC\x81",
                                                 "\xE4\xB8\xAD\xE6\x96\x87",
                                                 "\xE3\x81\x82",
                                                 "\xD8\xA7\xD9\x84",
                                                 "\xE0\xA4\x95\xE0\xA5\x8D\xE0\xA4\xB7",
                                                 "\xC7\x85",
                                                 "\xCA\xB0",
                                                 "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7",
                                                 "\xF0\x9F\x87\xAB\xF0\x9F\x87\xB7",
                                                 "\xEF\xB8\x8F",
                                                 "\xE2\x80\x8B",
                                                 "\xE2\x96\x81",
                                                 "<0x41>"};
  std::string text;
  for (int i = 0; i < num_pieces; ++i) {
    if (rng.below(5) == 0) {
      append_utf8(random_scalar(rng), text);
    } else {
      text += kPieces[rng.below(std::size(kPieces))];
    }
  }
  // Surrogates of the ranges above come out as bytes that are no UTF-8.
  return to_valid_utf8(text);
}

}  // namespace espalier
