// Unigram: of all ways to cut a text into pieces, the one whose scores have the largest sum.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizer/piece_trie.h"
#include "text/tokenizer/vocabulary.h"
#include "text/tokenizer/word_cache.h"
#include "text/tokenizer/word_model.h"

namespace espalier {

// As Hugging Face's tokenizers compute it: sums in double precision, the first of equal ones kept.
// Source: tokenizers/src/models/unigram/model.rs. Immutable; thread-safe.
class UnigramModel final : public WordModel {
 public:
  // `scores`: [id]; `table` outlives the model. Text without a piece is `unk_id`, or the tokens
  // "<0x00>" of its bytes where `byte_fallback` has all of them, or is dropped.
  UnigramModel(const TokenTable& table, std::vector<double> scores, std::optional<TokenId> unk_id,
               bool byte_fallback);
  void encode_word(std::string_view word, std::vector<TokenId>& out) const override;

 private:
  void append_piece(std::string_view piece, std::vector<TokenId>& out) const;

  const TokenTable& table_;
  PieceTrie trie_;
  std::vector<double> scores_;
  std::optional<TokenId> unk_id_;
  bool byte_fallback_;
  double unk_score_ = 0;
  std::unique_ptr<WordCache> cache_;
};

}  // namespace espalier
