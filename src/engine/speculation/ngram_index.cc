#include "engine/speculation/ngram_index.h"

#include <algorithm>
#include <bit>

#include "base/rng.h"

namespace espalier {

NgramIndex::NgramIndex(size_t capacity)
    : tokens_(std::bit_ceil(std::max<size_t>(capacity, 32))), entries_(4 * tokens_.size()) {
  recent_.reserve(size_t{4} * kMatchMax);
}

// From the last token backwards, so that a longer n-gram's hash goes on from a shorter one's.
NgramIndex::Hashes NgramIndex::hashes_of(uint64_t scope, std::span<const TokenId> last) {
  Hashes out;
  uint64_t hash = mix64(scope);
  int32_t length = 0;
  for (const int32_t order : kOrders) {
    if (std::ssize(last) < order) break;
    for (; length < order; ++length)
      hash = mix64(hash ^ static_cast<uint64_t>(last.end()[-1 - length]));
    out.values[out.count++] = hash;
  }
  return out;
}

std::span<const TokenId> NgramIndex::recent() const {
  return std::span(recent_).last(std::min(recent_.size(), size_t{kMatchMax}));
}

void NgramIndex::push(TokenId token) {
  tokens_[static_cast<size_t>(size_) & (tokens_.size() - 1)] = token;
  ++size_;
  if (token < 0) return recent_.clear();
  if (recent_.size() == size_t{4} * kMatchMax)
    recent_.erase(recent_.begin(), recent_.end() - (kMatchMax - 1));
  recent_.push_back(token);
}

// The n-grams that end before the token are entered with it, so that find() of the text's own end
// gives an earlier occurrence.
void NgramIndex::append(uint64_t scope, TokenId token) {
  const Hashes hashes = hashes_of(scope, recent_);
  for (const uint64_t hash : std::span(hashes.values).first(hashes.count)) {
    entries_[hash & (entries_.size() - 1)] = {.check = static_cast<uint32_t>(hash >> 32),
                                              .next = static_cast<uint32_t>(size_)};
  }
  push(token);
}

TokenId NgramIndex::at(int64_t position) const {
  if (position < 0 || position >= size_ || position + std::ssize(tokens_) < size_) return -1;
  return tokens_[static_cast<size_t>(position) & (tokens_.size() - 1)];
}

NgramIndex::Match NgramIndex::match_at(uint64_t hash, int32_t order,
                                       std::span<const TokenId> context) const {
  const Entry& entry = entries_[hash & (entries_.size() - 1)];
  if (entry.check != static_cast<uint32_t>(hash >> 32)) return {};
  const int64_t behind = static_cast<uint32_t>(static_cast<uint32_t>(size_) - entry.next);
  Match match{.next = size_ - behind};
  const auto longest = std::min<int64_t>(kMatchMax, std::ssize(context));
  while (match.length < longest &&
         at(match.next - 1 - match.length) == context.end()[-1 - match.length])
    ++match.length;
  return match.length >= order && at(match.next) >= 0 ? match : Match{};
}

NgramIndex::Match NgramIndex::find(uint64_t scope, std::span<const TokenId> context) const {
  const Hashes hashes = hashes_of(scope, context);
  for (size_t i = hashes.count; i-- > 0;) {
    const Match match = match_at(hashes.values[i], kOrders[i], context);
    if (match.next >= 0) return match;
  }
  return {};
}

}  // namespace espalier
