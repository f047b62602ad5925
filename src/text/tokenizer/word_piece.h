// WordPiece (the longest piece first) and WordLevel (the word or nothing).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/piece_trie.h"
#include "text/tokenizer/vocabulary.h"
#include "text/tokenizer/word_model.h"

namespace espalier {

// Source: tokenizers/src/models/wordpiece/mod.rs. Immutable; thread-safe.
class WordPieceModel final : public WordModel {
 public:
  struct Options {
    std::optional<TokenId> unk_id;         // of a word that cannot be cut; dropped without one
    std::string continuing_prefix = "##";  // of pieces within a word
    size_t characters_max = 100;           // longer words are unknown
  };
  WordPieceModel(const TokenTable& table, Options options);
  void encode_word(std::string_view word, std::vector<TokenId>& out) const override;

 private:
  const Options options_;
  PieceTrie trie_;
  uint32_t continuing_root_ = PieceTrie::kNone;
};

// Immutable; thread-safe. `table` outlives it.
class WordLevelModel final : public WordModel {
 public:
  WordLevelModel(const TokenTable& table, std::optional<TokenId> unk_id)
      : table_(table), unk_id_(unk_id) {}
  void encode_word(std::string_view word, std::vector<TokenId>& out) const override {
    const std::optional<TokenId> id = table_.find(word);
    if (id || unk_id_) out.push_back(id ? *id : *unk_id_);
  }

 private:
  const TokenTable& table_;
  const std::optional<TokenId> unk_id_;
};

}  // namespace espalier
