// Prompts of fill in the middle, for each family of models with a small vocabulary of its kind.
#include "text/tokenizer/fill_in_the_middle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/tokenizer/byte_tokenizer.h"
#include "text/tokenizer/stored_tokenizer.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3;

// Byte-level BPE with the tokens a, b, ab, a space, <s> (5) and </s> (6), then `special` from 7.
StoredVocabulary byte_level(const std::vector<std::string>& special) {
  StoredVocabulary stored;
  stored.model = "gpt2";
  stored.pre_tokenizer = "qwen2";
  stored.tokens = {"a", "b", "ab", "\u0120", "<", "<s>", "</s>"};
  stored.types = {kNormal, kNormal, kNormal, kNormal, kNormal, kControl, kControl};
  stored.merges = {"a b"};
  stored.bos_id = 5;
  stored.eos_id = 6;
  for (const std::string& token : special) {
    stored.tokens.push_back(token);
    stored.types.push_back(kControl);
  }
  return stored;
}

// SentencePiece BPE, which puts a space before a text, with Code Llama's tokens from 7.
StoredVocabulary sentencepiece() {
  StoredVocabulary stored;
  stored.model = "llama";
  stored.tokens = {"<unk>", "<s>",    "</s>",   "▁",      "a",     "▁a",
                   "☺",     "▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"};
  stored.types = {kUnknown, kControl, kControl, kNormal,  kNormal, kNormal,
                  kNormal,  kControl, kControl, kControl, kControl};
  stored.scores.assign(stored.tokens.size(), -1.0f);
  stored.unk_id = 0;
  stored.bos_id = 1;
  stored.eos_id = 2;
  return stored;
}

FimPrompt prompt_of(StoredVocabulary stored, std::string_view before, std::string_view behind) {
  const auto tokenizer = make_stored_tokenizer(std::move(stored)).value();
  const auto tokens = find_fim_tokens(*tokenizer);
  EXPECT_TRUE(tokens.has_value());
  return tokens ? make_fim_prompt(*tokenizer, *tokens, before, behind) : FimPrompt{};
}

TEST(FillInTheMiddle, QwenCoderAndCodeGemma) {
  const FimPrompt prompt = prompt_of(byte_level({"<|fim_prefix|>", "<|fim_middle|>",
                                                 "<|fim_suffix|>", "<|fim_pad|>", "<|file_sep|>"}),
                                     "ab", "b a");
  EXPECT_THAT(prompt.ids, ElementsAre(7, 2, 9, 1, 3, 0, 8));
  EXPECT_THAT(prompt.end_ids, ElementsAre(10, 11));
}

TEST(FillInTheMiddle, StarCoder) {
  const FimPrompt prompt = prompt_of(
      byte_level({"<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<|endoftext|>"}), "a", "b");
  EXPECT_THAT(prompt.ids, ElementsAre(7, 0, 9, 1, 8));
  EXPECT_THAT(prompt.end_ids, ElementsAre(10));
}

TEST(FillInTheMiddle, DeepSeekCoderBeginsWithItsFirstToken) {
  StoredVocabulary stored = byte_level({"<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"});
  stored.add_bos = true;
  const FimPrompt prompt = prompt_of(std::move(stored), "a", "b");
  EXPECT_THAT(prompt.ids, ElementsAre(5, 8, 0, 7, 1, 9));
  EXPECT_THAT(prompt.end_ids, IsEmpty());
}

// The text before the gap begins with SentencePiece's space, the text behind it does not.
TEST(FillInTheMiddle, CodeLlama) {
  const FimPrompt prompt = prompt_of(sentencepiece(), "a", "a");
  EXPECT_THAT(prompt.ids, ElementsAre(1, 7, 5, 9, 4, 8));
  EXPECT_THAT(prompt.end_ids, ElementsAre(10));
}

TEST(FillInTheMiddle, TokensThatAFileNamesByIdGoFirst) {
  StoredVocabulary stored =
      byte_level({"<fim_prefix>", "<fim_middle>", "<fim_suffix>", "[P]", "[M]", "[S]"});
  stored.fim_prefix_id = 10;
  stored.fim_middle_id = 11;
  stored.fim_suffix_id = 12;
  EXPECT_THAT(prompt_of(stored, "a", "b").ids, ElementsAre(10, 0, 12, 1, 11));
  stored.fim_suffix_id = 13;
  const auto beyond = make_stored_tokenizer(std::move(stored));
  ASSERT_FALSE(beyond);
  EXPECT_THAT(beyond.error().message(), ::testing::HasSubstr("fill-in-the-middle token is 13"));
}

TEST(FillInTheMiddle, TextThatSpellsASpecialTokenStaysText) {
  const FimPrompt prompt =
      prompt_of(byte_level({"<fim_prefix>", "<fim_middle>", "<fim_suffix>"}), "a<fim_middle>", "b");
  EXPECT_EQ(std::ranges::count(prompt.ids, 8), 1);
  EXPECT_EQ(prompt.ids.back(), 8);
}

TEST(FillInTheMiddle, AVocabularyWithoutItsTokensHasNone) {
  EXPECT_FALSE(find_fim_tokens(*make_byte_tokenizer(true)));
  const auto partial = make_stored_tokenizer(byte_level({"<fim_prefix>", "<fim_suffix>"})).value();
  EXPECT_FALSE(find_fim_tokens(*partial));
}

}  // namespace
}  // namespace espalier
