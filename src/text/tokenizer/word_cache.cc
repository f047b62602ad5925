#include "text/tokenizer/word_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

namespace espalier {

// Written once before it is published, read-only after.
struct WordCache::Entry {
  uint64_t hash;
  uint8_t word_size, num_ids;
  char word[kWordBytesMax];
  TokenId ids[kTokensMax];
};

WordCache::WordCache()
    : slots_(std::make_unique<std::array<std::atomic<const Entry*>, kNumSlots>>()) {}

WordCache::~WordCache() {
  for (std::atomic<const Entry*>& slot : *slots_) delete slot.load(std::memory_order_relaxed);
}

uint64_t WordCache::hash_of(std::string_view word) { return XXH3_64bits(word.data(), word.size()); }

bool WordCache::find(std::string_view word, uint64_t hash, std::vector<TokenId>& out) const {
  for (size_t probe = 0; probe < kProbes; ++probe) {
    const Entry* entry = (*slots_)[(hash + probe) % kNumSlots].load(std::memory_order_acquire);
    if (entry == nullptr) return false;
    if (entry->hash != hash || entry->word_size != word.size() ||
        std::memcmp(entry->word, word.data(), word.size()) != 0) {
      continue;
    }
    out.insert(out.end(), entry->ids, entry->ids + entry->num_ids);
    return true;
  }
  return false;
}

void WordCache::insert(std::string_view word, uint64_t hash, const TokenId* ids, size_t num_ids) {
  if (word.size() > kWordBytesMax || num_ids > kTokensMax) return;
  for (size_t probe = 0; probe < kProbes; ++probe) {
    std::atomic<const Entry*>& slot = (*slots_)[(hash + probe) % kNumSlots];
    if (slot.load(std::memory_order_relaxed) != nullptr) continue;
    auto entry = std::make_unique<Entry>();
    entry->hash = hash;
    entry->word_size = static_cast<uint8_t>(word.size());
    entry->num_ids = static_cast<uint8_t>(num_ids);
    std::memcpy(entry->word, word.data(), word.size());
    std::memcpy(entry->ids, ids, num_ids * sizeof(TokenId));
    const Entry* expected = nullptr;
    if (slot.compare_exchange_strong(expected, entry.get(), std::memory_order_release,
                                     std::memory_order_relaxed)) {
      entry.release();  // the slot owns it now
      return;
    }
  }
}

}  // namespace espalier
