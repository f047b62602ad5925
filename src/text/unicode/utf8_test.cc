#include "text/unicode/utf8.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace espalier {
namespace {

TEST(Utf8, EveryScalarValueRoundTrips) {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code >= 0xD800 && code <= 0xDFFF) continue;
    std::string bytes;
    append_utf8(code, bytes);
    const Utf8Char c = decode_utf8(bytes, 0);
    ASSERT_TRUE(c.valid);
    ASSERT_EQ(c.code, code);
    ASSERT_EQ(c.size, bytes.size());
    ASSERT_EQ(c.size, utf8_length(code));
  }
}

TEST(Utf8, InvalidBytesAreReplacedByMaximalSubparts) {
  // The examples of Unicode 15, tables 3-8 to 3-11.
  const std::string r(kReplacementUtf8);
  EXPECT_EQ(to_valid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(to_valid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(to_valid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(to_valid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  EXPECT_EQ(to_valid_utf8("\xE4\xBD"), r);
}

TEST(Utf8, AStreamEqualsTheWhole) {
  Rng rng(11);
  const std::string_view alphabet = "a\x80\xBF\xC3\xE4\xED\xF0\x9F\x98\x90\xF4\xFF";
  for (int round = 0; round < 5000; ++round) {
    std::string bytes, streamed;
    Utf8Stream stream;
    for (int piece = 0; piece < 6; ++piece) {
      std::string part;
      for (uint64_t n = rng.below(5); n > 0; --n) part += alphabet[rng.below(alphabet.size())];
      bytes += part;
      stream.push(part, streamed);
      ASSERT_TRUE(is_valid_utf8(streamed));
    }
    stream.flush(streamed);
    ASSERT_EQ(streamed, to_valid_utf8(bytes)) << "seed 11, round " << round;
  }
}

}  // namespace
}  // namespace espalier
