#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>

#include "base/rng.h"
#include "text/unicode/utf8.h"

namespace espalier {

namespace {

uint64_t pair_of(TokenId left, TokenId right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

constexpr std::string_view kSpaceMark = "\u2581";

// Where the next word begins after the one at `begin`: a mark that follows something else.
size_t next_marked_word(std::string_view text, size_t begin) {
  for (size_t at = text.find(kSpaceMark, begin + 1); at < text.size();
       at = text.find(kSpaceMark, at + 1)) {
    if (!text.substr(0, at).ends_with(kSpaceMark)) return at;
  }
  return text.size();
}

}  // namespace

BpeModel::BpeModel(BpeOptions options, const TokenTable& tokens, std::span<const Merge> merges)
    : options_(std::move(options)),
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
  cuts_at_marks_ = !options_.byte_level && !options_.ignore_merges && options_.end_suffix.empty() &&
                   options_.continuing_prefix.empty() && tokens_.find(kSpaceMark).has_value();
  for (TokenId id = 0; cuts_at_marks_ && id < tokens_.id_end(); ++id) {
    const std::string_view token = tokens_.of(id);
    if (next_marked_word(token, 0) < token.size()) cuts_at_marks_ = false;
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
  if (!cuts_at_marks_ || word.size() <= WordCache::kWordBytesMax) return encode_segment(word, out);
  for (size_t begin = 0; begin < word.size();) {
    const size_t end = next_marked_word(word, begin);
    encode_segment(word.substr(begin, end - begin), out);
    begin = end;
  }
}

void BpeModel::encode_segment(std::string_view word, std::vector<TokenId>& out) const {
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
  std::vector<MergeSymbol> symbols;
  symbols.reserve(word.size());
  append_symbols(word, symbols);
  merge_symbols(symbols, 0, [this](const MergeSymbol& left, const MergeSymbol& right, uint32_t) {
    const MergeSlot* merge = find_merge(left.id, right.id);
    return merge != nullptr ? MergeOf{merge->rank, merge->merged} : MergeOf();
  });
  const size_t size_before = out.size();
  for (const MergeSymbol& symbol : symbols) out.push_back(symbol.id);
  if (cached) cache_->insert(word, hash, out.data() + size_before, symbols.size());
}

// With affixes each character is looked up as the vocabulary writes it.
void BpeModel::append_spelled(std::string_view word, std::vector<MergeSymbol>& symbols) const {
  bool after_unk = false;
  for (size_t begin = 0; begin < word.size();) {
    const size_t size = options_.byte_level ? 1 : decode_utf8(word, begin).size;
    std::string spelled = begin > 0 ? options_.continuing_prefix : std::string();
    spelled += word.substr(begin, size);
    begin += size;
    if (begin == word.size()) spelled += options_.end_suffix;
    if (const std::optional<TokenId> id = tokens_.find(spelled)) {
      symbols.push_back({*id});
      after_unk = false;
    } else if (!append_fallback(spelled, symbols) && options_.unk_id) {
      if (!(after_unk && options_.fuse_unk)) symbols.push_back({*options_.unk_id});
      after_unk = true;
    }
  }
}

void BpeModel::append_symbols(std::string_view word, std::vector<MergeSymbol>& symbols) const {
  if (!options_.continuing_prefix.empty() || !options_.end_suffix.empty()) {
    return append_spelled(word, symbols);
  }
  bool after_unk = false;  // the last symbol is an unknown one, which the next may join
  const auto add_unk = [&] {
    if (!options_.unk_id) return;
    if (!(after_unk && options_.fuse_unk)) symbols.push_back({*options_.unk_id});
    after_unk = true;
  };
  if (options_.byte_level) {
    for (const char byte : word) {
      const TokenId id = byte_ids_[static_cast<uint8_t>(byte)];
      if (id < 0) {
        add_unk();
        continue;
      }
      symbols.push_back({id});
      after_unk = false;
    }
    return;
  }
  for (size_t i = 0; i < word.size();) {
    const std::string_view character = word.substr(i, decode_utf8(word, i).size);
    i += character.size();
    if (const std::optional<TokenId> id = tokens_.find(character)) {
      symbols.push_back({*id});
      after_unk = false;
    } else if (!append_fallback(character, symbols)) {
      add_unk();
    }
  }
}

bool BpeModel::append_fallback(std::string_view character,
                               std::vector<MergeSymbol>& symbols) const {
  if (!options_.byte_fallback) return false;
  const auto id_of = [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)]; };
  for (const char byte : character) {
    if (id_of(byte) < 0) return false;
  }
  for (const char byte : character) symbols.push_back({id_of(byte)});
  return true;
}

}  // namespace espalier
