#include "engine/images/video_times.h"

#include <gtest/gtest.h>

#include <string>

namespace espalier {
namespace {

constexpr EncodeOptions kText{.add_special_tokens = false};

std::unique_ptr<Tokenizer> byte_level() {
  auto tokenizer = load_tokenizer("tests/golden/tokenizers/byte_level");
  EXPECT_TRUE(tokenizer) << tokenizer.error().message();
  return tokenizer ? *std::move(tokenizer) : nullptr;
}

// The tokens are those of the whole text, whatever stands in front.
TEST(VideoTimes, HaveTheTokensOfTheWholeText) {
  const auto tokenizer = byte_level();
  ASSERT_NE(tokenizer, nullptr);
  const AppendTime append = time_appender(*tokenizer);
  std::string longer;
  for (int i = 0; i < 200; ++i) longer += "word " + std::to_string(i) + ", ";
  for (const std::string& before :
       {std::string(), std::string("What is it?"), std::string("x <"), std::string("\n"),
        std::string("It is <<"), std::string("\xc3\xa9t\xc3\xa9 "), longer}) {
    for (const auto& [seconds, text] :
         {std::pair(0.25, "<0.2 seconds>"), std::pair(12.0, "<12.0 seconds>")}) {
      std::vector<TokenId> prompt = tokenizer->encode(before, kText);
      append(seconds, prompt);
      EXPECT_EQ(prompt, tokenizer->encode(before + text, kText)) << before;
    }
  }
}

// Ids that the tokenizer would not make of their text stay as they are.
TEST(VideoTimes, OtherTokensStay) {
  const auto tokenizer = byte_level();
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<TokenId> whole = tokenizer->encode("the", kText);
  std::vector<TokenId> letters;
  for (const char* letter : {"t", "h", "e"})
    for (const TokenId id : tokenizer->encode(letter, kText)) letters.push_back(id);
  if (letters == whole) GTEST_SKIP() << "the vocabulary has no word of letters";
  std::vector<TokenId> prompt = letters;
  time_appender (*tokenizer)(1.5, prompt);
  ASSERT_GT(prompt.size(), letters.size());
  EXPECT_TRUE(std::equal(letters.begin(), letters.end(), prompt.begin()));
  EXPECT_EQ(std::vector(prompt.begin() + std::ssize(letters), prompt.end()),
            tokenizer->encode("<1.5 seconds>", kText));
}

}  // namespace
}  // namespace espalier
