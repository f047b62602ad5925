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
#include "text/tokenizer/word_cache.h"

namespace espalier {

// The strings of a vocabulary and their ids, both ways. Strings lie in one buffer.
class TokenTable {
 public:
  // `expected_count` and `expected_bytes` size the table; it grows beyond them.
  TokenTable(size_t expected_count, size_t expected_bytes);

  // The first id of a string is the one that find() gives. id >= 0.
  void add(std::string_view token, TokenId id);
  std::optional<TokenId> find(std::string_view token) const;
  std::string_view of(TokenId id) const;  // "" when there is none
  bool has(TokenId id) const;
  TokenId id_end() const { return static_cast<TokenId>(spans_.size()); }  // largest id + 1

 private:
  struct Span {
    uint32_t begin = 0;
    int32_t size = -1;  // -1: no such id
  };
  struct Slot {
    uint32_t tag = 0;
    TokenId id = -1;
  };
  void grow();
  void insert(uint64_t hash, TokenId id);

  std::string bytes_;
  std::vector<Span> spans_;  // by id
  std::vector<Slot> slots_;  // open addressing, a power of two
  size_t num_slots_used_ = 0;
};

struct BpeOptions {
  // Words are bytes and tokens are bytes; else words are UTF-8 and their characters are looked up.
  bool byte_level = false;
  bool byte_fallback = false;  // an unknown character becomes the tokens "<0x00>" of its bytes
  bool fuse_unk = false;
  bool ignore_merges = false;  // a word that is a token needs no merges
  std::optional<TokenId> unk_id;
};

// Immutable; thread-safe (the cache of words is lock-free).
class BpeModel {
 public:
  // A merge of two tokens makes a third; merges come in the order in which they were learned.
  struct Merge {
    TokenId left, right, merged;
  };
  BpeModel(BpeOptions options, const TokenTable& tokens, std::span<const Merge> merges);

  // Appends the tokens of `word`. O(n log n) in its length. A character that is unknown is dropped
  // where there is no unknown token.
  void encode_word(std::string_view word, std::vector<TokenId>& out) const;

 private:
  struct MergeSlot {
    uint64_t pair = kNoPair;
    uint32_t rank = 0;
    TokenId merged = -1;
  };
  static constexpr uint64_t kNoPair = ~0ull;

  const MergeSlot* find_merge(TokenId left, TokenId right) const;
  void append_symbols(std::string_view word, std::vector<TokenId>& symbols) const;
  bool append_fallback(std::string_view character, std::vector<TokenId>& symbols) const;
  void merge_short(std::vector<TokenId>& symbols) const;
  void merge_long(std::vector<TokenId>& symbols) const;

  const BpeOptions options_;
  const TokenTable& tokens_;
  std::vector<MergeSlot> merges_;        // open addressing, a power of two
  std::array<TokenId, 256> byte_ids_{};  // of a byte alone, or of "<0x00>"; -1 where there is none
  std::unique_ptr<WordCache> cache_;
};

}  // namespace espalier
