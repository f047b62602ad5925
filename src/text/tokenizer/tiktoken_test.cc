#include "text/tokenizer/tiktoken.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// All bytes, then "ab", "abc" and " ab".
std::string small_vocabulary() {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t byte = 0; byte < 256; ++byte) {
    out += {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '='};
    out += " " + std::to_string(byte) + "\n";
  }
  return out + "YWI= 256\nYWJj 257\nIGFi 258\n";
}

TEST(Tiktoken, MergesByRankWithinWords) {
  const auto tokenizer = parse_tiktoken(small_vocabulary());
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  EXPECT_THAT((*tokenizer)->encode("abc abd"), ElementsAre(257, 258, 'd'));
  EXPECT_THAT((*tokenizer)->encode("a<|endoftext|>"), ElementsAre('a', 259));
  EXPECT_EQ((*tokenizer)->encode("<|endoftext|>", {.parse_special = false}).size(), 13u);
  EXPECT_THAT((*tokenizer)->vocab().eos_ids, ElementsAre(259));
  EXPECT_EQ((*tokenizer)->vocab().token_bytes[258], " ab");
  for (const char* text : {"abc abd", "π ≠ ab", "", "a\n\nab  "})
    EXPECT_EQ((*tokenizer)->decode((*tokenizer)->encode(text)), text);
}

TEST(Tiktoken, MalformedLinesAreNamed) {
  EXPECT_THAT(parse_tiktoken("YQ== 0\nYg==\n").error().message(), HasSubstr("line 2"));
  EXPECT_THAT(parse_tiktoken("YQ== 0\n??? 1\n").error().message(), HasSubstr("line 2"));
  EXPECT_TRUE(parse_tiktoken("YQ== 1\n"));  // real files leave ranks out
  EXPECT_FALSE(parse_tiktoken(""));
}

}  // namespace
}  // namespace espalier
