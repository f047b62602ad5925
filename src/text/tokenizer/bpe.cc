#include "text/tokenizer/bpe.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>

#include "base/check.h"
#include "base/rng.h"
#include "text/unicode/utf8.h"

namespace espalier {

// ---- TokenTable ----

namespace {

constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();
// Up to here looking for the smallest rank in a row of ranks beats a heap.
constexpr size_t kShortWord = 48;

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
  if (find(token)) return;
  if ((num_slots_used_ + 1) * 4 > slots_.size() * 3) grow();
  insert(hash_bytes(token), id);
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

std::optional<TokenId> TokenTable::find(std::string_view token) const {
  const uint64_t hash = hash_bytes(token);
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash & mask; slots_[i].id >= 0; i = (i + 1) & mask) {
    if (slots_[i].tag == static_cast<uint32_t>(hash >> 32) && of(slots_[i].id) == token) {
      return slots_[i].id;
    }
  }
  return std::nullopt;
}

std::string_view TokenTable::of(TokenId id) const {
  if (!has(id)) return {};
  return std::string_view(bytes_).substr(spans_[id].begin, static_cast<size_t>(spans_[id].size));
}

bool TokenTable::has(TokenId id) const {
  return id >= 0 && static_cast<size_t>(id) < spans_.size() && spans_[id].size >= 0;
}

// ---- BpeModel ----

namespace {

uint64_t pair_of(TokenId left, TokenId right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

}  // namespace

BpeModel::BpeModel(BpeOptions options, const TokenTable& tokens, std::span<const Merge> merges)
    : options_(options),
      tokens_(tokens),
      merges_(std::bit_ceil(std::max<size_t>(16, merges.size() * 2))),
      cache_(std::make_unique<WordCache>()) {
  const size_t mask = merges_.size() - 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = pair_of(merges[rank].left, merges[rank].right);
    size_t i = mix64(pair) & mask;
    while (merges_[i].pair != kNoPair && merges_[i].pair != pair) i = (i + 1) & mask;
    // A pair that comes twice has its last rank, as in a dictionary that is filled in order.
    merges_[i] = {pair, static_cast<uint32_t>(rank), merges[rank].merged};
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const std::optional<TokenId> id =
        options_.byte_level ? tokens_.find({&c, 1}) : tokens_.find(fmt::format("<0x{:02X}>", byte));
    byte_ids_[byte] = id.value_or(-1);
  }
}

const BpeModel::MergeSlot* BpeModel::find_merge(TokenId left, TokenId right) const {
  const uint64_t pair = pair_of(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t i = mix64(pair) & mask; merges_[i].pair != kNoPair; i = (i + 1) & mask) {
    if (merges_[i].pair == pair) return &merges_[i];
  }
  return nullptr;
}

void BpeModel::encode_word(std::string_view word, std::vector<TokenId>& out) const {
  if (word.empty()) return;
  const bool cached = word.size() <= WordCache::kWordBytesMax;
  const uint64_t hash = cached ? WordCache::hash_of(word) : 0;
  if (cached && cache_->find(word, hash, out)) return;
  if (options_.ignore_merges) {
    if (const std::optional<TokenId> id = tokens_.find(word)) {
      out.push_back(*id);
      if (cached) cache_->insert(word, hash, &*id, 1);
      return;
    }
  }
  std::vector<TokenId> symbols;
  symbols.reserve(word.size());
  append_symbols(word, symbols);
  if (symbols.size() <= kShortWord) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
  if (cached) cache_->insert(word, hash, symbols.data(), symbols.size());
  out.insert(out.end(), symbols.begin(), symbols.end());
}

void BpeModel::append_symbols(std::string_view word, std::vector<TokenId>& symbols) const {
  bool after_unk = false;  // the last symbol is an unknown one, which the next may join
  const auto add_unk = [&] {
    if (!options_.unk_id) return;
    if (!(after_unk && options_.fuse_unk)) symbols.push_back(*options_.unk_id);
    after_unk = true;
  };
  if (options_.byte_level) {
    for (const char byte : word) {
      const TokenId id = byte_ids_[static_cast<uint8_t>(byte)];
      if (id < 0) {
        add_unk();
        continue;
      }
      symbols.push_back(id);
      after_unk = false;
    }
    return;
  }
  for (size_t i = 0; i < word.size();) {
    const std::string_view character = word.substr(i, decode_utf8(word, i).size);
    i += character.size();
    if (const std::optional<TokenId> id = tokens_.find(character)) {
      symbols.push_back(*id);
      after_unk = false;
    } else if (!append_fallback(character, symbols)) {
      add_unk();
    }
  }
}

bool BpeModel::append_fallback(std::string_view character, std::vector<TokenId>& symbols) const {
  if (!options_.byte_fallback) return false;
  const auto id_of = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
  for (const char byte : character) {
    if (id_of(byte) < 0) return false;
  }
  for (const char byte : character) symbols.push_back(id_of(byte));
  return true;
}

void BpeModel::merge_short(std::vector<TokenId>& symbols) const {
  size_t count = symbols.size();
  if (count < 2) return;
  // merges[i] is what joins symbols[i] and symbols[i + 1], or null.
  std::array<const MergeSlot*, kShortWord> merges;
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = find_merge(symbols[i], symbols[i + 1]);
  while (count >= 2) {
    size_t best = count;
    uint32_t best_rank = kNoRank;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (merges[i] != nullptr && merges[i]->rank < best_rank) {
        best = i;
        best_rank = merges[i]->rank;
      }
    }
    if (best == count) break;
    symbols[best] = merges[best]->merged;
    std::copy(symbols.begin() + best + 2, symbols.begin() + count, symbols.begin() + best + 1);
    std::copy(merges.begin() + best + 1, merges.begin() + count - 1, merges.begin() + best);
    --count;
    if (best > 0) merges[best - 1] = find_merge(symbols[best - 1], symbols[best]);
    if (best + 1 < count) merges[best] = find_merge(symbols[best], symbols[best + 1]);
  }
  symbols.resize(count);
}

// A doubly linked list of symbols and a heap of the pairs that can merge. A heap entry is out of
// date when its place no longer starts a pair of that rank; it is then passed over.
void BpeModel::merge_long(std::vector<TokenId>& symbols) const {
  constexpr uint32_t kGone = std::numeric_limits<uint32_t>::max();
  const auto count = static_cast<uint32_t>(symbols.size());
  struct Link {
    uint32_t previous, next;  // `count` where there is none
    uint32_t rank;            // of the pair that starts here
    TokenId merged;
  };
  std::vector<Link> links(count);
  std::vector<uint64_t> entries;  // rank above place: the smallest rank first, then the leftmost
  const auto entry_of = [&](uint32_t i) {
    return (static_cast<uint64_t>(links[i].rank) << 32) | i;
  };
  const auto look_up = [&](uint32_t i) {
    const MergeSlot* merge =
        links[i].next < count ? find_merge(symbols[i], symbols[links[i].next]) : nullptr;
    links[i].rank = merge != nullptr ? merge->rank : kNoRank;
    links[i].merged = merge != nullptr ? merge->merged : -1;
  };
  for (uint32_t i = 0; i < count; ++i) {
    links[i] = {i == 0 ? count : i - 1, i + 1, kNoRank, -1};
  }
  for (uint32_t i = 0; i < count; ++i) {
    look_up(i);
    if (links[i].rank != kNoRank) entries.push_back(entry_of(i));
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>{},
                                                                             std::move(entries));
  while (!queue.empty()) {
    const uint64_t entry = queue.top();
    queue.pop();
    const auto i = static_cast<uint32_t>(entry);
    if (links[i].previous == kGone || links[i].rank != entry >> 32) continue;
    const uint32_t right = links[i].next;
    symbols[i] = links[i].merged;
    links[i].next = links[right].next;
    if (links[i].next < count) links[links[i].next].previous = i;
    links[right] = {kGone, kGone, kNoRank, -1};
    for (const uint32_t place : {links[i].previous, i}) {
      if (place >= count) continue;
      look_up(place);
      if (links[place].rank != kNoRank) queue.push(entry_of(place));
    }
  }
  size_t out = 0;
  for (uint32_t i = 0; i < count; i = links[i].next) symbols[out++] = symbols[i];
  symbols.resize(out);
}

}  // namespace espalier
