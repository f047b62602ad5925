// The encoder's algorithms against trivial ones, over small random vocabularies. The goldens of
// foreign_tokenizer_test.cc compare it with the library.
#include "text/tokenizer/sentencepiece_encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "base/rng.h"

namespace espalier {
namespace {

using PieceType = SentencePieceModel::PieceType;
using Type = SentencePieceModel::Type;

// A model whose normaliser changes nothing. Piece 0 is the unknown one.
SentencePieceModel plain_model(Type type) {
  SentencePieceModel model;
  model.type = type;
  model.add_dummy_prefix = false;
  model.remove_extra_whitespaces = false;
  model.escape_whitespaces = false;
  model.pieces.push_back({"<unk>", 0, PieceType::kUnknown});
  return model;
}

std::vector<TokenId> encode(const SentencePieceModel& model, std::string_view text) {
  std::vector<TokenId> ids;
  SentencePieceEncoder(model).encode(text, ids);
  return ids;
}

std::string random_abc(Rng& rng, size_t size_max) {
  std::string text;
  for (uint64_t i = 1 + rng.below(size_max); i > 0; --i) text += "abc"[rng.below(3)];
  return text;
}

// All characters and some longer pieces, with scores that are sums of distinct powers of two.
SentencePieceModel random_model(Rng& rng, Type type) {
  SentencePieceModel model = plain_model(type);
  float score = -1;
  std::vector<std::string> texts = {"a", "b", "c"};
  for (int i = 0; i < 8; ++i) texts.push_back(random_abc(rng, 4));
  for (const std::string& text : texts) {
    const bool known = std::any_of(model.pieces.begin(), model.pieces.end(),
                                   [&](const auto& piece) { return piece.text == text; });
    if (!known) model.pieces.push_back({text, score, PieceType::kNormal});
    score -= 0.25f + static_cast<float>(rng.below(8)) / 4;
  }
  return model;
}

// The best sum of scores over all ways to cut `text`.
float best_score(const SentencePieceModel& model, std::string_view text) {
  if (text.empty()) return 0;
  float best = -1e9f;
  for (const auto& piece : model.pieces) {
    if (piece.type != PieceType::kNormal || !text.starts_with(piece.text)) continue;
    best = std::max(best, piece.score + best_score(model, text.substr(piece.text.size())));
  }
  return best;
}

TEST(SentencePieceEncoder, UnigramFindsTheBestCut) {
  constexpr uint64_t kSeed = 7;
  Rng rng(kSeed);
  for (int round = 0; round < 200; ++round) {
    const SentencePieceModel model = random_model(rng, Type::kUnigram);
    const std::string text = random_abc(rng, 9);
    std::string joined;
    float score = 0;
    for (const TokenId id : encode(model, text)) {
      joined += model.pieces[id].text;
      score += model.pieces[id].score;
    }
    ASSERT_EQ(joined, text) << kSeed;
    ASSERT_FLOAT_EQ(score, best_score(model, text)) << kSeed << " " << text;
  }
}

// Merges the leftmost pair of the highest score until none is a piece.
std::vector<TokenId> merge_naively(const SentencePieceModel& model, std::string_view text) {
  std::vector<std::string> parts;
  for (const char c : text) parts.emplace_back(1, c);
  const auto id_of = [&](const std::string& part) {
    const auto at = std::find_if(model.pieces.begin(), model.pieces.end(),
                                 [&](const auto& piece) { return piece.text == part; });
    return at == model.pieces.end() ? -1 : static_cast<TokenId>(at - model.pieces.begin());
  };
  for (;;) {
    size_t best = parts.size();
    float score = -1e9f;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const TokenId id = id_of(parts[i] + parts[i + 1]);
      if (id < 0 || model.pieces[id].score <= score) continue;
      best = i;
      score = model.pieces[id].score;
    }
    if (best == parts.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  std::vector<TokenId> ids;
  for (const std::string& part : parts) ids.push_back(id_of(part));
  return ids;
}

TEST(SentencePieceEncoder, BpeMergesByScore) {
  constexpr uint64_t kSeed = 8;
  Rng rng(kSeed);
  for (int round = 0; round < 200; ++round) {
    const SentencePieceModel model = random_model(rng, Type::kBpe);
    const std::string text = random_abc(rng, 12);
    ASSERT_EQ(encode(model, text), merge_naively(model, text)) << kSeed << " " << text;
  }
}

TEST(SentencePieceEncoder, UnknownCharactersBecomeOneIdOrBytes) {
  SentencePieceModel model = plain_model(Type::kChar);
  model.pieces.push_back({"a", -1, PieceType::kNormal});
  EXPECT_EQ(encode(model, "azza"), (std::vector<TokenId>{1, 0, 1}));
  model.pieces.push_back({"<0x7A>", 0, PieceType::kByte});
  model.byte_fallback = true;
  EXPECT_EQ(encode(model, "azza"), (std::vector<TokenId>{1, 2, 2, 1}));
}

TEST(SentencePieceEncoder, ControlPiecesInATextAreText) {
  SentencePieceModel model = plain_model(Type::kWord);
  model.pieces.push_back({"<s>", 0, PieceType::kControl});
  EXPECT_EQ(encode(model, "<s>"), (std::vector<TokenId>{0}));
}

TEST(SentencePieceByte, ReadsUppercaseHex) {
  EXPECT_EQ(sentencepiece_byte("<0x41>"), 0x41);
  EXPECT_EQ(sentencepiece_byte("<0xfF>"), -1);
  EXPECT_EQ(sentencepiece_byte("<0x4>"), -1);
}

}  // namespace
}  // namespace espalier
