// The strings of a vocabulary by id, and back. Both tables are filled by one thread; after that any
// number of threads may read them. The string views that they return live as long as the table
// does and nothing is added to it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "seams/vocab_view.h"

namespace espalier {

// No real vocabulary reaches this bound, which keeps a wrong id from allocating all memory.
inline constexpr int64_t kVocabularyMax = 1 << 24;

// Strings and their ids, both ways. Strings lie in one buffer.
class TokenTable {
 public:
  // `expected_count` and `expected_bytes` size the table; it grows beyond them.
  TokenTable(size_t expected_count, size_t expected_bytes);

  // The first id of a string is the one that find() gives. id >= 0.
  void add(std::string_view token, TokenId id);
  std::optional<TokenId> find(std::string_view token) const {
    const TokenId id = find_id(token);
    return id < 0 ? std::nullopt : std::optional<TokenId>(id);
  }
  TokenId find_id(std::string_view token) const;  // -1: none
  // "" when there is none
  std::string_view of(TokenId id) const {
    return has(id) ? text_of(spans_[static_cast<size_t>(id)]) : std::string_view();
  }
  bool has(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < spans_.size() &&
           spans_[static_cast<size_t>(id)].size >= 0;
  }
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
  std::string_view text_of(const Span& span) const {
    return {bytes_.data() + span.begin, static_cast<size_t>(span.size)};
  }
  void grow();
  void insert(uint64_t hash, TokenId id);
  TokenId find_hashed(std::string_view token, uint64_t hash) const;

  std::string bytes_;
  std::vector<Span> spans_;  // by id
  std::vector<Slot> slots_;  // open addressing, a power of two
  size_t num_slots_used_ = 0;
  size_t token_bytes_max_ = 0;
};

// A byte-level vocabulary is kept as the bytes that its strings spell; those that spell none
// ("<|a token|>" with its space) are kept apart.
class Vocabulary {
 public:
  Vocabulary(bool byte_level, size_t expected_count);

  // A token as its file spells it. kDataLoss when the id is taken or out of bounds.
  Status add(std::string_view token, TokenId id);
  // Byte-level vocabularies: the token that stands for these bytes.
  Status add_bytes(std::string_view bytes, TokenId id);

  std::optional<TokenId> find(std::string_view token) const;
  std::string token_of(TokenId id) const;  // as the file spells it
  // Byte-level vocabularies: the bytes of a token as ByteLevel decodes it.
  std::string_view bytes_of(TokenId id) const;
  bool has(TokenId id) const { return tokens_->has(id) || odd_tokens_.contains(id); }
  TokenId id_end() const { return id_end_; }
  const TokenTable& table() const { return *tokens_; }

 private:
  Status check_new(std::string_view token, TokenId id) const;

  bool byte_level_ = false;
  TokenId id_end_ = 0;
  std::unique_ptr<TokenTable> tokens_;  // its address outlives a move: the model refers to it
  std::unordered_map<TokenId, std::string> odd_tokens_;
  std::unordered_map<std::string, TokenId> odd_ids_;
};

}  // namespace espalier
