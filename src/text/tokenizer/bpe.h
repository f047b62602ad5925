// Byte-pair encoding of one word: its characters (or bytes) are tokens, and the adjacent pair that
// was learned first is merged again and again.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "seams/vocab_view.h"
#include "text/tokenizer/merge.h"
#include "text/tokenizer/vocabulary.h"
#include "text/tokenizer/word_cache.h"
#include "text/tokenizer/word_model.h"

namespace espalier {

struct BpeOptions {
  // Words are bytes and tokens are bytes; else words are UTF-8 and their characters are looked up.
  bool byte_level = false;
  bool byte_fallback = false;  // an unknown character becomes the tokens "<0x00>" of its bytes
  bool fuse_unk = false;
  bool ignore_merges = false;  // a word that is a token needs no merges
  std::optional<TokenId> unk_id;
  // What the vocabulary writes before characters that do not begin a word, after the last one.
  std::string continuing_prefix, end_suffix;
};

// Immutable; thread-safe (the cache of words is lock-free).
class BpeModel final : public WordModel {
 public:
  // A merge of two tokens makes a third; merges come in the order in which they were learned.
  struct Merge {
    TokenId left, right, merged;
  };
  BpeModel(BpeOptions options, const TokenTable& tokens, std::span<const Merge> merges);

  // Appends the tokens of `word`. O(n log n) in its length, O(n) where it is cut. A character that
  // is unknown is dropped where there is no unknown token.
  void encode_word(std::string_view word, std::vector<TokenId>& out) const override;

 private:
  struct MergeSlot {
    uint64_t pair = kNoPair;
    uint32_t rank = 0;
    TokenId merged = -1;
  };
  static constexpr uint64_t kNoPair = ~0ull;

  const MergeSlot* find_merge(TokenId left, TokenId right) const;
  void encode_segment(std::string_view word, std::vector<TokenId>& out) const;
  void append_symbols(std::string_view word, std::vector<MergeSymbol>& symbols) const;
  void append_spelled(std::string_view word, std::vector<MergeSymbol>& symbols) const;
  bool append_fallback(std::string_view character, std::vector<MergeSymbol>& symbols) const;

  const BpeOptions options_;
  const TokenTable& tokens_;
  std::vector<MergeSlot> merges_;  // open addressing, a power of two
  // No token goes on after a character with U+2581 (what stands for a space), so that nothing is
  // merged across the beginning of a word, and a long text without a pre-tokeniser can be cut
  // there.
  bool cuts_at_marks_ = false;
  std::array<TokenId, 256> byte_ids_{};  // of a byte alone, or of "<0x00>"; -1 where there is none
  std::unique_ptr<WordCache> cache_;
};

}  // namespace espalier
