// Vocabularies as a GGUF's arrays and as tokenizer.json: there and back, with the same tokens.
#include "text/tokenizer/stored_vocabulary_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "text/tokenizer/hf_tokenizer.h"
#include "text/tokenizer/named_splits.h"
#include "text/tokenizer/stored_tokenizer.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// Byte-level BPE of some letters, with two control tokens and one of a user's.
StoredVocabulary letters(std::string_view split) {
  StoredVocabulary out;
  out.model = "gpt2";
  out.pre_tokenizer = split;
  out.tokens = {"<s>", "</s>"};
  for (const char* letter : {"a", "b", "c", "1", "2", "!", "'", "\u0120", "\u010a"})
    out.tokens.emplace_back(letter);
  out.tokens.insert(out.tokens.end(), {"ab", "abc", "\u0120a", "12", "<tool>", "\u0120ab"});
  out.merges = {"a b", "ab c", "\u0120 a", "1 2", "\u0120a b"};
  out.types.assign(out.tokens.size(), 1);
  out.types[0] = out.types[1] = 3;
  out.types[out.tokens.size() - 2] = 4;
  out.bos_id = 0;
  out.eos_id = 1;
  out.add_bos = true;
  out.add_eos = false;
  out.chat_template = "{{ bos_token }}\u00e9\"";
  return out;
}

std::vector<TokenId> ids(const Tokenizer& tokenizer, std::string_view text, bool special) {
  EncodeOptions options;
  options.add_special_tokens = options.parse_special = special;
  return tokenizer.encode(text, options);
}

void expect_same(const Tokenizer& a, const Tokenizer& b, std::string_view what) {
  constexpr uint64_t kSeed = 3;
  Rng rng(kSeed);
  constexpr std::string_view kPieces[] = {"a", "b",  "c",    "ab", "abc", " ",      "\n",
                                          "1", "12", "1122", "!",  "<s>", "<tool>", "'"};
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (uint64_t n = rng.below(12); n > 0; --n) text += kPieces[rng.below(std::size(kPieces))];
    for (const bool special : {false, true})
      ASSERT_EQ(ids(a, text, special), ids(b, text, special))
          << what << " seed " << kSeed << ": " << text;
  }
}

size_t count_of(std::string_view word, std::string_view text) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(word, at)) != text.npos; at += word.size()) ++count;
  return count;
}

TEST(StoredVocabularyFiles, ThereAndBackIsTheSame) {
  for (const NamedSplit& split : named_splits()) {
    const std::string name(split.names.front());
    const StoredVocabulary before = letters(name);
    const auto files = make_vocabulary_files(before);
    ASSERT_TRUE(files) << files.error().message();
    EXPECT_EQ(count_of("\"ByteLevel\"", files->tokenizer), 3u) << "before, behind, decoder";
    EXPECT_EQ(count_of("\"trim_offsets\"", files->tokenizer), 3u) << "which it may not lack";
    const auto tokenizer = parse_hf_tokenizer(files->tokenizer, files->config);
    ASSERT_TRUE(tokenizer) << tokenizer.error().message();
    expect_same(*make_stored_tokenizer(before).value(), **tokenizer, name);
    const auto after = store_vocabulary(*files, before.tokens.size());
    ASSERT_TRUE(after) << after.error().message();
    EXPECT_EQ(after->pre_tokenizer, name);
    EXPECT_EQ(after->tokens, before.tokens);
    EXPECT_EQ(after->types, before.types);
    EXPECT_EQ(after->merges, before.merges);
    EXPECT_EQ(after->bos_id, before.bos_id);
    EXPECT_EQ(after->eos_id, before.eos_id);
    EXPECT_EQ(after->add_bos, true);
    EXPECT_EQ(after->add_eos, false);
    EXPECT_EQ(after->chat_template, before.chat_template);
  }
}

TEST(StoredVocabularyFiles, WhatAddsNothingAndWhatAddsBothEnds) {
  for (const bool add : {false, true}) {
    StoredVocabulary before = letters("qwen2");
    before.add_bos = before.add_eos = add;
    const auto files = make_vocabulary_files(before);
    const auto after = store_vocabulary(*files, 0);
    ASSERT_TRUE(after) << after.error().message();
    EXPECT_EQ(after->add_bos, add);
    EXPECT_EQ(after->add_eos, add);
    expect_same(*make_stored_tokenizer(before).value(),
                **parse_hf_tokenizer(files->tokenizer, files->config), add ? "both" : "none");
  }
}

TEST(StoredVocabularyFiles, IdsWithoutATokenGetNames) {
  const auto files = make_vocabulary_files(letters("qwen2"));
  const size_t size = letters("qwen2").tokens.size();
  const auto after = store_vocabulary(*files, size + 2);
  ASSERT_TRUE(after);
  EXPECT_EQ(after->tokens.size(), size + 2);
  EXPECT_EQ(after->tokens.back(), fmt::format("[PAD{}]", size + 1));
  EXPECT_EQ(after->types.back(), 5);
  EXPECT_TRUE(make_stored_tokenizer(*after));
}

TEST(StoredVocabularyFiles, WhatAGgufCannotSayIsRefused) {
  const VocabularyFiles good = make_vocabulary_files(letters("qwen2")).value();
  const auto refusal = [&](std::string_view from, std::string_view to) {
    VocabularyFiles files = good;
    const size_t at = files.tokenizer.find(from);
    if (at == std::string::npos) return std::string("not there: ") + std::string(from);
    files.tokenizer.replace(at, from.size(), to);
    const auto made = store_vocabulary(files, 0);
    return made ? std::string("taken") : std::string(made.error().message());
  };
  EXPECT_EQ(refusal(R"("version":"1.0")", R"("version":"1.1")"), "taken");
  EXPECT_EQ(refusal(R"("normalizer":null)", R"("normalizer":{"type":"NFC"})"), "taken");
  EXPECT_THAT(refusal(R"("normalizer":null)", R"("normalizer":{"type":"Lowercase"})"),
              HasSubstr("normaliser {\"type\":\"Lowercase\"}"));
  EXPECT_THAT(refusal(R"("type":"BPE")", R"("type":"Unigram")"), HasSubstr("only byte-level BPE"));
  EXPECT_THAT(refusal("ignore_merges\":false", "ignore_merges\":true"), HasSubstr("no name for"));
  EXPECT_THAT(refusal(R"("behavior":"Isolated")", R"("behavior":"Removed")"), HasSubstr("Removed"));
  EXPECT_THAT(refusal(R"("lstrip":false)", R"("lstrip":true)"), HasSubstr("white space beside it"));
  EXPECT_THAT(refusal(R"({"id":"<s>","type_id":0})", R"({"id":"</s>","type_id":0})"),
              HasSubstr("'</s>' stands beside every text"));
  EXPECT_THAT(refusal(R"("a":2)", R"("a":3)"), HasSubstr("is taken or no id"));
  EXPECT_THAT(refusal(R"(["a","b"])", R"(["a"])"), HasSubstr("merge 0 is no pair"));
  EXPECT_THAT(refusal("{", "["), HasSubstr("no JSON object"));
  StoredVocabulary other = letters("qwen2");
  other.model = "llama";
  EXPECT_THAT(make_vocabulary_files(other).error().message(), HasSubstr("only byte-level BPE"));
}

}  // namespace
}  // namespace espalier
