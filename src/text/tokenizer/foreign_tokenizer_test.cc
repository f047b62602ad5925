// SentencePiece models and tiktoken's rank files against their own libraries' answers
// (tests/compat/text/make_tokenizer_fixtures.py), and what happens to files that are broken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <optional>

#include "base/mapped_file.h"
#include "base/rng.h"
#include "text/detokenizer.h"
#include "text/testing/random_text.h"
#include "text/tokenizer/sentencepiece_tokenizer.h"
#include "text/tokenizer/tiktoken.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

const std::filesystem::path kFixtures = "tests/golden/tokenizers";
constexpr const char* kModels[] = {"unigram",    "unigram_bytes", "bpe", "bpe_bytes",
                                   "bpe_suffix", "char",          "word"};
constexpr const char* kRankKinds[] = {"cl100k", "o200k", "llama", "qwen", "gpt2"};

std::string read(const std::filesystem::path& path) { return read_text_file(path).value(); }

std::unique_ptr<Tokenizer> load_model(const std::string& name) {
  auto tokenizer = load_tokenizer(kFixtures / "sentencepiece" / (name + ".model"));
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string();
  return std::move(tokenizer).value();
}

std::unique_ptr<Tokenizer> load_ranks(const std::string& kind) {
  auto tokenizer = parse_tiktoken(read(kFixtures / "tiktoken" / "ranks.tiktoken"), kind);
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string();
  return std::move(tokenizer).value();
}

void expect_goldens(const Tokenizer& tokenizer, const std::filesystem::path& path) {
  const json::value goldens = json::parse(read(path));
  ASSERT_GT(goldens.at("cases").as_array().size(), 30u);
  for (const json::value& entry : goldens.at("cases").as_array()) {
    const std::string text(entry.at("text").as_string());
    EXPECT_EQ(tokenizer.encode(text, {.add_special_tokens = false}),
              json::value_to<Ids>(entry.at("ids")))
        << path << ": " << text;
  }
  for (const json::value& entry : goldens.at("decodes").as_array()) {
    EXPECT_EQ(tokenizer.decode(json::value_to<Ids>(entry.at("ids")),
                               {.skip_special_tokens = entry.at("skip").as_bool()}),
              entry.at("text").as_string())
        << path << ": " << json::serialize(entry.at("ids"));
  }
}

void expect_stream_equals_decode(const Tokenizer& tokenizer, uint64_t seed) {
  Rng rng(seed);
  for (int round = 0; round < 200; ++round) {
    const DecodeOptions options{.skip_special_tokens = round % 2 == 0};
    Ids ids;
    for (uint64_t n = rng.below(30); n > 0; --n) {
      ids.push_back(static_cast<TokenId>(rng.between(-1, tokenizer.vocab_size())));
    }
    Detokenizer detokenizer(tokenizer, options);
    std::string text, forked;
    std::optional<Detokenizer> fork;
    const size_t fork_at = rng.below(ids.size() + 1);
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i == fork_at) fork.emplace(detokenizer), forked = text;
      const std::string piece = detokenizer.push(ids[i]);
      ASSERT_TRUE(is_valid_utf8(piece));
      text += piece;
      if (fork) forked += fork->push(ids[i]);
    }
    const std::string decoded = tokenizer.decode(ids, options);
    EXPECT_EQ(text + detokenizer.flush(), decoded) << "seed " << seed << " round " << round;
    if (fork) {
      EXPECT_EQ(forked + fork->flush(), decoded) << "seed " << seed << " round " << round;
    }
  }
}

TEST(SentencePiece, EncodesAndDecodesAsTheLibrary) {
  for (const char* name : kModels) {
    const auto tokenizer = load_model(name);
    expect_goldens(*tokenizer, kFixtures / "sentencepiece" / (std::string(name) + ".json"));
    expect_stream_equals_decode(*tokenizer, 6);
  }
}

// A model of two cuts of each word whose scores differ by less than a long text's sum can hold: the
// library's sums begin anew now and then, and these are its choices for 100,000 words.
TEST(SentencePiece, NearlyEqualCutsOfALongTextAreTheLibrarys) {
  const auto tokenizer = load_model("ties");
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += i == 0 ? "abc" : " abc";
  const Ids ids = tokenizer->encode(text, {.add_special_tokens = false});
  ASSERT_EQ(ids.size(), 200'000u);
  std::vector<int> runs;  // of words that are cut alike
  for (size_t i = 0; i < ids.size(); i += 2) {
    if (i == 0 || ids[i] != ids[i - 2]) runs.push_back(0);
    ++runs.back();
  }
  ASSERT_EQ(runs.size(), 29u);
  EXPECT_THAT(std::vector<int>(runs.begin(), runs.begin() + 5),
              testing::ElementsAre(2384, 2383, 4894, 2383, 4893));
  EXPECT_EQ(runs.back(), 644);
}

TEST(Tiktoken, EncodesAndDecodesAsTheLibrary) {
  for (const char* kind : kRankKinds) {
    const auto tokenizer = load_ranks(kind);
    expect_goldens(*tokenizer, kFixtures / "tiktoken" / (std::string(kind) + ".json"));
    expect_stream_equals_decode(*tokenizer, 7);
  }
}

TEST(SentencePiece, SpecialTokensAreAddedAndFoundWhereTransformersDoes) {
  const std::string bytes = read(kFixtures / "sentencepiece/bpe_bytes.model");
  const auto plain = parse_sentencepiece_tokenizer(bytes).value();
  EXPECT_EQ(plain->encode("foo").front(), plain->bos_id());
  EXPECT_EQ(plain->encode("</s>", {.add_special_tokens = false}).size(), 5u);  // mark and text
  const auto configured =
      parse_sentencepiece_tokenizer(bytes, R"({"add_bos_token": false, "add_eos_token": true})")
          .value();
  EXPECT_EQ(configured->encode("</s>"), (Ids{2, 2}));
  EXPECT_EQ(configured->encode("</s>", {.parse_special = false}).size(), 6u);
  EXPECT_TRUE(configured->is_special(2));
  EXPECT_EQ(configured->vocab().eos_ids, Ids{2});
  EXPECT_EQ(configured->vocab().token_bytes[2], "");
  EXPECT_EQ(configured->id_to_token(2), "</s>");
  EXPECT_EQ(configured->vocab().token_bytes[*configured->token_to_id("<0x41>")], "A");
}

// Whoever writes a control piece, or a byte's name, into a text gets no such token for it.
TEST(SentencePiece, WordsAndCharactersAreNoControlPiecesAndNoBytes) {
  using Type = SentencePieceModel::Type;
  using PieceType = SentencePieceModel::PieceType;
  for (const Type type : {Type::kWord, Type::kChar}) {
    SentencePieceModel model;
    model.type = type;
    model.pieces = {{"<unk>", 0, PieceType::kUnknown}, {"Q", 0, PieceType::kControl},
                    {"a", -1, PieceType::kNormal},     {"Z", 0, PieceType::kUserDefined},
                    {"B", 0, PieceType::kByte},        {"\xE2\x96\x81", -2, PieceType::kNormal}};
    model.add_dummy_prefix = false;
    const auto tokenizer = make_sentencepiece_tokenizer(std::move(model), {.add_bos = false});
    for (const auto& [text, ids] : {std::pair<const char*, Ids>{"Q", {0}},
                                    {"B", {0}},
                                    {"a", {2}},
                                    {"Z", {3}},
                                    {"<unk>", {0}}}) {
      EXPECT_EQ(tokenizer->encode(text), ids) << text << " of type " << static_cast<int>(type);
    }
    EXPECT_EQ(tokenizer->token_to_id("Q"), 1);
  }
  // In a model of the library's own making, beside words that it knows.
  EXPECT_EQ(load_model("word")->encode("</s> a", {.add_special_tokens = false}), (Ids{0, 50}));
}

TEST(Tiktoken, Llama3BeginsTextsWithItsToken) {
  const auto llama = load_ranks("Meta-Llama-3.tiktoken");
  const Ids ids = llama->encode("a<|eot_id|>");
  EXPECT_EQ(ids.front(), llama->bos_id());
  EXPECT_EQ(ids.back(), llama->token_to_id("<|eot_id|>"));
  EXPECT_EQ(llama->vocab().eos_ids.size(), 3u);
  const auto qwen = load_ranks("qwen");
  EXPECT_EQ(qwen->encode("a"), (Ids{static_cast<TokenId>('a')}));
}

TEST(Tiktoken, ErrorsNameTheirLine) {
  const auto message = [](std::string_view text, std::string_view name = "cl100k") {
    const auto result = parse_tiktoken(text, name);
    return result ? std::string("accepted") : result.error().to_string();
  };
  EXPECT_EQ(message("IQ== 0\nIg== 1\n"), "accepted");
  EXPECT_EQ(message("IQ== 0\r\nIg== 1"), "accepted");
  EXPECT_THAT(message("IQ== 0\nIg==\n"), HasSubstr("line 2"));
  EXPECT_THAT(message("IQ== x\n"), HasSubstr("line 1"));
  EXPECT_THAT(message("I! 0\n"), HasSubstr("line 1"));
  EXPECT_THAT(message("IQ== 0\nIQ== 1\n"), HasSubstr("a second time"));
  EXPECT_THAT(message("IQ== 0\nIg== 0\n"), HasSubstr("same id"));
  EXPECT_THAT(message("IQ== 99999999\n"), HasSubstr("99999999"));
  EXPECT_EQ(message("IQ== 0\n", "mine"), "accepted");
  EXPECT_THAT(message(""), HasSubstr("no token"));
}

// A file that is changed anywhere opens, and then encodes and decodes, or fails with a message.
TEST(SentencePiece, BrokenFilesAreRefusedOrHarmless) {
  constexpr uint64_t kSeed = 11;
  Rng rng(kSeed);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes =
        read(kFixtures / "sentencepiece" / (round % 2 ? "unigram.model" : "char.model"));
    for (uint64_t n = rng.below(4) + 1; n > 0; --n) {
      bytes[rng.below(bytes.size())] = static_cast<char>(rng.below(256));
    }
    if (rng.below(4) == 0) bytes.resize(rng.below(bytes.size()));
    const auto tokenizer = parse_sentencepiece_tokenizer(bytes);
    if (!tokenizer) {
      ++refused;
      EXPECT_FALSE(tokenizer.error().message().empty());
      continue;
    }
    const std::string text = random_text(rng, 8);
    const Ids ids = (*tokenizer)->encode(text);
    for (const TokenId id : ids) ASSERT_LT(id, (*tokenizer)->vocab_size()) << "seed " << kSeed;
    (void)(*tokenizer)->decode(ids);
  }
  EXPECT_GT(refused, 500);
}

TEST(LoadTokenizer, DetectsFormatsByTheirContent) {
  EXPECT_TRUE(looks_like_tiktoken("IQ== 0\nIg== 1\n"));
  EXPECT_FALSE(looks_like_tiktoken("hello world!\n"));
  EXPECT_FALSE(looks_like_tiktoken(read(kFixtures / "sentencepiece/bpe.model")));
  EXPECT_TRUE(looks_like_sentencepiece(read(kFixtures / "sentencepiece/bpe.model")));
  EXPECT_FALSE(looks_like_sentencepiece("IQ== 0\n"));
  const auto ranks = load_tokenizer(kFixtures / "tiktoken/ranks.tiktoken");
  ASSERT_TRUE(ranks.has_value());
  EXPECT_EQ((*ranks)->encode("a\n\n  "), load_ranks("cl100k")->encode("a\n\n  "));
}

TEST(Tokenizer, ThreadsDoNotChangeWhatALongTextIs) {
  Rng rng(12);
  std::string text;
  while (text.size() < 700'000) {
    text += random_text(rng, 20);
    text += rng.below(2) != 0 ? "\n" : "\nThe";
  }
  const auto byte_level = load_tokenizer(kFixtures / "byte_level").value();
  const auto ranks = load_ranks("o200k");
  for (const Tokenizer* tokenizer : {byte_level.get(), ranks.get()}) {
    const Ids alone = tokenizer->encode(text);
    for (const int threads : {2, 3, 8}) {
      EXPECT_EQ(tokenizer->encode(text, {.num_threads = threads}), alone) << threads;
    }
  }
}

}  // namespace
}  // namespace espalier
