// Cuts text into the pieces of a SentencePiece model, as its library does: BPE, Unigram, words or
// characters.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "seams/vocab_view.h"
#include "text/tokenizer/piece_trie.h"
#include "text/tokenizer/rank_bpe.h"
#include "text/tokenizer/sentencepiece_model.h"
#include "text/tokenizer/vocabulary.h"

namespace espalier {

// An index of the model's pieces and the algorithm of the model's type over it. Control pieces and
// the unknown piece are not in the index, so a text that spells them is text. Immutable after the
// constructor; thread-safe. `model` outlives it.
class SentencePieceEncoder {
 public:
  explicit SentencePieceEncoder(const SentencePieceModel& model);

  // Normalises `text` and appends its ids.
  void encode(std::string_view text, std::vector<TokenId>& ids) const;

 private:
  void index_pieces();
  void prepare_bpe();
  SentencePieceModel::PieceType type_of(TokenId id) const { return model_.pieces[id].type; }
  void encode_bpe(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_bpe_with_unused(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_unigram(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_words(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_characters(std::string_view text, std::vector<TokenId>& ids) const;
  void append_piece(std::string_view piece, std::vector<TokenId>& ids) const;
  void append_unknown(std::string_view piece, std::vector<TokenId>& ids) const;

  const SentencePieceModel& model_;
  TokenTable pieces_;     // normal, user-defined and unused pieces, by text
  PieceTrie piece_trie_;  // the same, for Unigram
  PieceTrie user_defined_;
  std::vector<float> scores_;    // by id
  std::vector<uint32_t> ranks_;  // by id, for BPE: 0 is the highest score
  float unk_score_ = 0;
  TokenId unk_id_ = -1;
  std::array<TokenId, 256> byte_ids_{};  // -1: the model has no piece for this byte
  bool has_unused_ = false;
  bool cuts_at_marks_ = false;  // no piece extends over a character and a space behind it
  std::unique_ptr<RankBpe> bpe_;
};

}  // namespace espalier
