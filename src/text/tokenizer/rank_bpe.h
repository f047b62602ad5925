// Byte-pair encoding without a list of merges: any two neighbours merge that together are a token,
// in the order of the tokens' ranks. That is how tiktoken and SentencePiece do it.
#pragma once

#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "text/tokenizer/merge.h"
#include "text/tokenizer/vocabulary.h"
#include "text/tokenizer/word_cache.h"
#include "text/tokenizer/word_model.h"

namespace espalier {

struct RankBpeOptions {
  bool by_bytes = true;           // words begin as bytes; else as characters of valid UTF-8
  bool whole_words_first = true;  // a word that is a token needs no merging
  std::vector<uint32_t> ranks;  // by id, the lowest first; MergeOf::kNoRank: never made by merging
  // What becomes of characters that are no token, by byte; else `unk_id`; else (-1) they are
  // dropped.
  std::array<TokenId, 256> fallback_ids{};
  bool byte_fallback = false;
  TokenId unk_id = -1;
};

// Immutable; thread-safe. `tokens` outlives it.
class RankBpe final : public WordModel {
 public:
  RankBpe(const TokenTable& tokens, RankBpeOptions options);
  // O(n log n) in the word's length.
  void encode_word(std::string_view word, std::vector<TokenId>& out) const override;

 private:
  void append_unknown(std::string_view characters, std::vector<TokenId>& out) const;

  const TokenTable& tokens_;
  const RankBpeOptions options_;
  std::array<TokenId, 256> byte_ids_{};
  std::unique_ptr<WordCache> cache_;
};

}  // namespace espalier
