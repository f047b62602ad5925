// Vocabularies inside GGUF files: real ones against llama.cpp's own expectations where they are
// found, and a small one here.
#include "engine/text_io/open_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "base/mapped_file.h"
#include "text/tokenizer/stored_tokenizer.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

std::filesystem::path data_folder() {
  const char* stated = std::getenv("ESPALIER_DATA");
  return stated != nullptr ? stated : "../shared/data";
}

class RealVocabulary : public testing::TestWithParam<const char*> {};

TEST_P(RealVocabulary, GivesTheTokensThatItsMakersExpect) {
  const std::filesystem::path path = data_folder() / "vocab" / GetParam();
  if (!std::filesystem::exists(path)) {
    const char* required = std::getenv("ESPALIER_REQUIRE_DATA");
    ASSERT_TRUE(required == nullptr || std::string_view(required) != "1") << path;
    GTEST_SKIP() << "there is no " << path;
  }
  const auto tokenizer = open_tokenizer(path);
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  const std::string inputs = read_text_file(path.string() + ".inp").value();
  std::istringstream outputs(read_text_file(path.string() + ".out").value());
  constexpr std::string_view kBetween = "\n__ggml_vocab_test__\n";
  int compared = 0;
  for (size_t begin = 0; begin <= inputs.size();) {
    const size_t end = std::min(inputs.find(kBetween, begin), inputs.size());
    const std::string text = inputs.substr(begin, end - begin);
    std::string line;
    if (!std::getline(outputs, line)) break;
    Ids expected;
    std::istringstream numbers(line);
    for (TokenId id = 0; numbers >> id;) expected.push_back(id);
    EXPECT_EQ((*tokenizer)->encode(text, {.add_special_tokens = false, .parse_special = false}),
              expected)
        << text;
    ++compared;
    begin = end + kBetween.size();
  }
  EXPECT_GT(compared, 30);
}

INSTANTIATE_TEST_SUITE_P(Data, RealVocabulary,
                         testing::Values("ggml-vocab-llama-spm.gguf", "ggml-vocab-gpt-2.gguf"));

StoredVocabulary small_vocabulary() {
  StoredVocabulary stored;
  stored.model = "gpt2";
  stored.pre_tokenizer = "llama-bpe";
  stored.tokens = {"a", "b", "ab", "\u0120", "\u0120a", "<s>", "</s>"};
  stored.types = {1, 1, 1, 1, 1, 3, 3};
  stored.merges = {"a b", "\u0120 a"};
  stored.bos_id = 5;
  stored.eos_id = 6;
  stored.chat_template = "{{ messages }}";
  return stored;
}

TEST(StoredTokenizer, ByteLevelWithItsMergesAndSpecialTokens) {
  const auto tokenizer = make_stored_tokenizer(small_vocabulary()).value();
  EXPECT_THAT(tokenizer->encode("ab a</s>"), ElementsAre(5, 2, 4, 6));
  EXPECT_EQ(tokenizer->decode({5, 2, 4, 6}), "ab a");
  EXPECT_EQ(tokenizer->bos_id(), 5);
  EXPECT_THAT(tokenizer->vocab().eos_ids, ElementsAre(6));
  EXPECT_EQ(tokenizer->chat_template(), "{{ messages }}");
}

TEST(StoredTokenizer, WhatIsWrongIsReported) {
  const auto message = [](auto&& change) {
    StoredVocabulary stored = small_vocabulary();
    change(stored);
    const auto result = make_stored_tokenizer(std::move(stored));
    return result ? std::string("accepted") : result.error().message();
  };
  using Stored = StoredVocabulary&;
  EXPECT_THAT(message([](Stored s) { s.pre_tokenizer = "new"; }),
              HasSubstr("pre-tokeniser 'new' is not known; those that are: gpt-2"));
  EXPECT_THAT(message([](Stored s) { s.model = "rwkv"; }), HasSubstr("'rwkv'"));
  EXPECT_THAT(message([](Stored s) { s.merges.push_back("a x"); }), HasSubstr("merge 2 ('a x')"));
  EXPECT_THAT(message([](Stored s) { s.merges.push_back("a"); }), HasSubstr("merge 2 ('a')"));
  EXPECT_THAT(message([](Stored s) { s.types.pop_back(); }), HasSubstr("6 types for 7 tokens"));
  EXPECT_THAT(message([](Stored s) { s.eos_id = 7; }), HasSubstr("last token is 7"));
  EXPECT_THAT(message([](Stored s) { s.tokens.clear(); }), HasSubstr("empty"));
  EXPECT_THAT(message([](Stored s) {
                s.model = "llama";
                s.types[0] = 9;
              }),
              HasSubstr("type 9"));
  EXPECT_THAT(message([](Stored s) { s.model = "llama"; }), HasSubstr("no unknown token"));
}

}  // namespace
}  // namespace espalier
