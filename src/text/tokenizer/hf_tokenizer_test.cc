// tokenizer.json files against what Hugging Face's tokenizers makes of them
// (tests/compat/text/make_tokenizer_fixtures.py).
#include "text/tokenizer/hf_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <optional>

#include "base/mapped_file.h"
#include "base/rng.h"
#include "text/detokenizer.h"
#include "text/testing/random_text.h"
#include "text/unicode/utf8.h"

namespace espalier {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;
using Ids = std::vector<TokenId>;

const std::filesystem::path kHfFixtures = "tests/golden/tokenizers";
constexpr const char* kNames[] = {"byte_level", "metaspace", "unigram", "word_piece"};

std::unique_ptr<Tokenizer> load(const std::string& name) {
  auto tokenizer = load_tokenizer(kHfFixtures / name);
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().to_string();
  return std::move(tokenizer).value();
}

json::value parse_file(const std::filesystem::path& path) {
  return json::parse(read_text_file(path).value());
}

TEST(HfTokenizer, EncodesAndDecodesAsTheReference) {
  for (const char* name : kNames) {
    const auto tokenizer = load(name);
    const json::value goldens = parse_file(kHfFixtures / name / "goldens.json");
    for (const json::value& entry : goldens.at("cases").as_array()) {
      const std::string text(entry.at("text").as_string());
      const auto expected = json::value_to<Ids>(entry.at("ids"));
      const bool special = entry.at("special").as_bool();
      EXPECT_EQ(tokenizer->encode(text, {.add_special_tokens = special}), expected)
          << name << ": " << text;
    }
    for (const json::value& entry : goldens.at("decodes").as_array()) {
      const auto ids = json::value_to<Ids>(entry.at("ids"));
      EXPECT_EQ(tokenizer->decode(ids, {.skip_special_tokens = entry.at("skip").as_bool()}),
                entry.at("text").as_string())
          << name << ": " << json::serialize(entry.at("ids"));
    }
  }
}

// Types, and what is left of both texts where there are too many tokens.
TEST(HfTokenizer, JoinsAndCutsPairsAsTheReference) {
  for (const char* name : kNames) {
    const auto tokenizer = load(name);
    const json::value cases = parse_file(kHfFixtures / name / "pairs.json");
    ASSERT_EQ(cases.as_array().size(), 150u);
    for (const json::value& entry : cases.as_array()) {
      std::optional<std::string> pair;
      if (!entry.at("pair").is_null()) pair.emplace(entry.at("pair").as_string());
      const TypedIds typed =
          tokenizer->encode_typed(entry.at("text").as_string(), pair ? &*pair : nullptr,
                                  static_cast<size_t>(entry.at("max").as_int64()));
      EXPECT_EQ(typed.ids, json::value_to<Ids>(entry.at("ids")))
          << name << ": " << json::serialize(entry);
      EXPECT_EQ(typed.types, json::value_to<std::vector<int32_t>>(entry.at("types")))
          << name << ": " << json::serialize(entry);
    }
  }
}

TEST(HfTokenizer, StreamEqualsDecodeAndShowsWholeCharacters) {
  for (const char* name : kNames) {
    const auto tokenizer = load(name);
    Rng rng(4);
    for (int round = 0; round < 400; ++round) {
      const DecodeOptions options{.skip_special_tokens = round % 2 == 0};
      Ids ids;
      for (uint64_t n = rng.below(30); n > 0; --n) {
        ids.push_back(static_cast<TokenId>(rng.between(-1, tokenizer->vocab_size())));
      }
      Detokenizer detokenizer(*tokenizer, options);
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
      const std::string decoded = tokenizer->decode(ids, options);
      EXPECT_EQ(text + detokenizer.flush(), decoded) << "round " << round;
      if (fork) {
        EXPECT_EQ(forked + fork->flush(), decoded) << "round " << round;
      }
    }
  }
}

TEST(HfTokenizer, RandomTextSurvivesEncodeAndDecode) {
  const auto tokenizer = load("byte_level");
  Rng rng(6);
  for (int round = 0; round < 500; ++round) {
    const std::string text = random_text(rng, 20);
    const Ids ids = tokenizer->encode(text, {.add_special_tokens = false, .parse_special = false});
    EXPECT_EQ(tokenizer->decode(ids, {.skip_special_tokens = false}), text) << "round " << round;
  }
}

TEST(HfTokenizer, InvalidUtf8GoesByteForByteOrAsReplacement) {
  const auto bytes = load("byte_level");
  const std::string_view invalid = "the \xFF\xE4\xBD water";
  std::string joined;
  for (const TokenId id : bytes->encode(invalid, {.add_special_tokens = false})) {
    joined += bytes->vocab().token_bytes[static_cast<size_t>(id)];
  }
  EXPECT_EQ(joined, invalid);
  const auto metaspace = load("metaspace");
  EXPECT_EQ(metaspace->encode(invalid), metaspace->encode(to_valid_utf8(invalid)));
}

TEST(HfTokenizer, SpecialTokens) {
  const auto tokenizer = load("byte_level");
  const TokenId end = tokenizer->token_to_id("<|end|>").value();
  EXPECT_TRUE(tokenizer->is_special(end));
  EXPECT_FALSE(tokenizer->is_special(tokenizer->token_to_id("<tool call>").value()));
  EXPECT_EQ(tokenizer->id_to_token(end), "<|end|>");
  EXPECT_EQ(tokenizer->vocab().eos_ids, Ids{end});
  EXPECT_EQ(tokenizer->bos_id(), tokenizer->token_to_id("<|begin|>"));
  EXPECT_EQ(tokenizer->vocab().token_bytes[static_cast<size_t>(end)], "");
  const Ids plain =
      tokenizer->encode("<|end|>", {.add_special_tokens = false, .parse_special = false});
  EXPECT_GT(plain.size(), 1u);
  EXPECT_EQ(tokenizer->decode(plain), "<|end|>");
  EXPECT_EQ(tokenizer->encode("<|end|>", {.add_special_tokens = false}), Ids{end});
  EXPECT_EQ(tokenizer->decode({-5, 1 << 30}), "");
}

// A tokenizer.json of a few characters with `changes` laid over it.
std::string small_tokenizer(const json::object& changes, const json::object& model_changes = {}) {
  json::object model = {{"type", "BPE"},
                        {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}, {"\u2581", 3}, {"c", 4}}},
                        {"merges", {"a b"}}};
  for (const auto& [key, value] : model_changes) model[key] = value;
  json::object file = {{"model", model}, {"decoder", {{"type", "Fuse"}}}};
  for (const auto& [key, value] : changes) file[key] = value;
  return json::serialize(file);
}

TEST(HfTokenizer, WhatIsNotSupportedIsRefusedByName) {
  const auto message = [](const std::string& text) {
    const auto result = parse_hf_tokenizer(text);
    return result ? std::string("accepted") : result.error().to_string();
  };
  EXPECT_EQ(message(small_tokenizer({})), "accepted");
  EXPECT_THAT(message(small_tokenizer({{"normalizer", {{"type", "Odd"}}}})), HasSubstr("'Odd'"));
  EXPECT_THAT(message(small_tokenizer({{"pre_tokenizer", {{"type", "Bert"}}}})),
              HasSubstr("'pre_tokenizer' is of type 'Bert'"));
  EXPECT_THAT(message(small_tokenizer({{"decoder", {{"type", "CTC"}}}})), HasSubstr("'CTC'"));
  EXPECT_THAT(message(small_tokenizer({{"post_processor", {{"type", "Other"}}}})),
              HasSubstr("'Other'"));
  EXPECT_THAT(message(small_tokenizer({}, {{"type", "Bigram"}})), HasSubstr("'Bigram'"));
  EXPECT_THAT(message(small_tokenizer({}, {{"dropout", 0.1}})), HasSubstr("dropout"));
  EXPECT_THAT(message(small_tokenizer({}, {{"merges", {"a x"}}})), HasSubstr("model.merges[0]"));
  EXPECT_THAT(message(small_tokenizer({}, {{"vocab", {{"a", -1}}}})), HasSubstr("vocab[\"a\"]"));
  EXPECT_THAT(message(small_tokenizer({}, {{"vocab", {{"a", 1}, {"b", 1}}}})),
              HasSubstr("same id"));
  EXPECT_THAT(message("{}"), HasSubstr("'model' is missing"));
  EXPECT_THAT(message("{"), HasSubstr("no JSON"));
  EXPECT_THAT(load_tokenizer("tests/golden/no_such").error().message(), HasSubstr("no_such"));
}

TEST(HfTokenizer, MetaspaceAndMergesAsPairs) {
  const auto parsed = parse_hf_tokenizer(
      small_tokenizer({{"pre_tokenizer", {{"type", "Metaspace"}, {"prepend_scheme", "first"}}},
                       {"added_tokens", {{{"id", 9}, {"content", "<x>"}, {"special", true}}}},
                       {"decoder", {{"type", "Metaspace"}, {"prepend_scheme", "first"}}}},
                      {{"merges", {json::array{"a", "b"}}}}));
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message();
  const Tokenizer& tokenizer = **parsed;
  EXPECT_EQ(tokenizer.encode("ab c"), (Ids{3, 2, 3, 4}));
  EXPECT_EQ(tokenizer.encode("<x>ab"), (Ids{9, 2}));
  EXPECT_EQ(tokenizer.decode({3, 2, 3, 4}), "ab c");
  EXPECT_EQ(tokenizer.vocab().token_bytes[3], " ");
  EXPECT_EQ(tokenizer.vocab_size(), 10);
}

TEST(HfTokenizer, TwoTokensWithoutADecoderAreJoinedBySpaces) {
  const auto parsed = parse_hf_tokenizer(small_tokenizer({{"decoder", nullptr}}));
  ASSERT_TRUE(parsed.has_value());
  EXPECT_EQ((*parsed)->decode({2, 4, 0}), "ab c a");
}

// Whatever the file holds, loading ends in a tokenizer or an error, and encoding in tokens.
TEST(HfTokenizer, MutatedFilesNeverCrash) {
  constexpr uint64_t kSeed = 8;
  Rng rng(kSeed);
  int num_loaded = 0;
  for (const char* name : kNames) {
    const std::string original = read_text_file(kHfFixtures / name / "tokenizer.json").value();
    const std::string_view alphabet = "{}[]\",:0123456789aeintruflsp\\\xFF \xE2";
    for (int round = 0; round < 300; ++round) {
      std::string text = original;
      // Mostly at the front and back, where the settings are.
      for (uint64_t n = 1 + rng.below(3); n > 0; --n) {
        const size_t at = rng.below(3) == 0 ? rng.below(text.size()) : rng.below(3000);
        const char c = alphabet[rng.below(alphabet.size())];
        if (rng.below(4) == 0) {
          text.erase(at, rng.below(40));
        } else {
          text[at % text.size()] = c;
        }
      }
      const auto tokenizer = parse_hf_tokenizer(text);
      if (!tokenizer) continue;
      ++num_loaded;
      const Ids ids = (*tokenizer)->encode("The heron's <|end|> \xFF 12345\n\n water");
      EXPECT_TRUE(is_valid_utf8((*tokenizer)->decode(ids)));
    }
  }
  EXPECT_GT(num_loaded, 50) << "the mutations should not all be syntax errors";
}

}  // namespace
}  // namespace espalier
