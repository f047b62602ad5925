#include "text/tokenizer/vocabulary.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "text/tokenizer/byte_alphabet.h"

namespace espalier {
namespace {

uint64_t hash_bytes(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace

TokenTable::TokenTable(size_t expected_count, size_t expected_bytes)
    : slots_(std::bit_ceil(std::max<size_t>(16, expected_count * 2))) {
  bytes_.reserve(expected_bytes);
  spans_.reserve(expected_count);
}

void TokenTable::add(std::string_view token, TokenId id) {
  ESP_CHECK(id >= 0);
  if (static_cast<size_t>(id) >= spans_.size()) spans_.resize(static_cast<size_t>(id) + 1);
  spans_[id] = {static_cast<uint32_t>(bytes_.size()), static_cast<int32_t>(token.size())};
  bytes_ += token;
  token_bytes_max_ = std::max(token_bytes_max_, token.size());
  const uint64_t hash = hash_bytes(token);
  if (find_hashed(token, hash) >= 0) return;
  if ((num_slots_used_ + 1) * 4 > slots_.size() * 3) grow();
  insert(hash, id);
}

void TokenTable::insert(uint64_t hash, TokenId id) {
  const size_t mask = slots_.size() - 1;
  size_t i = hash & mask;
  while (slots_[i].id >= 0) i = (i + 1) & mask;
  slots_[i] = {static_cast<uint32_t>(hash >> 32), id};
  ++num_slots_used_;
}

void TokenTable::grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  num_slots_used_ = 0;
  for (const Slot& slot : old) {
    if (slot.id >= 0) insert(hash_bytes(of(slot.id)), slot.id);
  }
}

TokenId TokenTable::find_hashed(std::string_view token, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask; slots_[i].id >= 0; i = (i + 1) & mask) {
    if (slots_[i].tag == static_cast<uint32_t>(hash >> 32) &&
        text_of(spans_[static_cast<size_t>(slots_[i].id)]) == token) {
      return slots_[i].id;
    }
  }
  return -1;
}

TokenId TokenTable::find_id(std::string_view token) const {
  return token.size() > token_bytes_max_ ? -1 : find_hashed(token, hash_bytes(token));
}

Vocabulary::Vocabulary(bool byte_level, size_t expected_count)
    : byte_level_(byte_level),
      tokens_(std::make_unique<TokenTable>(expected_count, expected_count * 8)) {}

Status Vocabulary::check_new(std::string_view token, TokenId id) const {
  if (id < 0 || id >= kVocabularyMax) {
    return error(StatusCode::kDataLoss, "the id {} of '{}' is not in [0, {})", id, token,
                 kVocabularyMax);
  }
  if (has(id)) {
    return error(StatusCode::kDataLoss, "the tokens '{}' and '{}' have the same id {}",
                 token_of(id), token, id);
  }
  return {};
}

Status Vocabulary::add(std::string_view token, TokenId id) {
  ESP_RETURN_IF_ERROR(check_new(token, id));
  id_end_ = std::max(id_end_, id + 1);
  std::string bytes;
  if (!byte_level_) {
    tokens_->add(token, id);
  } else if (append_spelled_bytes(token, bytes)) {
    tokens_->add(bytes, id);
  } else {
    odd_tokens_.emplace(id, token);
    odd_ids_.emplace(token, id);
  }
  return {};
}

Status Vocabulary::add_bytes(std::string_view bytes, TokenId id) {
  ESP_RETURN_IF_ERROR(check_new(bytes, id));
  id_end_ = std::max(id_end_, id + 1);
  tokens_->add(bytes, id);
  return {};
}

std::optional<TokenId> Vocabulary::find(std::string_view token) const {
  if (!byte_level_) return tokens_->find(token);
  std::string bytes;
  if (append_spelled_bytes(token, bytes)) return tokens_->find(bytes);
  const auto it = odd_ids_.find(std::string(token));
  if (it == odd_ids_.end()) return std::nullopt;
  return it->second;
}

std::string Vocabulary::token_of(TokenId id) const {
  if (const auto it = odd_tokens_.find(id); it != odd_tokens_.end()) return it->second;
  return byte_level_ ? spell_bytes(tokens_->of(id)) : std::string(tokens_->of(id));
}

std::string_view Vocabulary::bytes_of(TokenId id) const {
  if (const auto it = odd_tokens_.find(id); it != odd_tokens_.end()) return it->second;
  return tokens_->of(id);
}

}  // namespace espalier
