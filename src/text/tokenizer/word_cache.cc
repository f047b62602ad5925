#include "text/tokenizer/word_cache.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <new>

namespace espalier {

namespace {

uint64_t load8(const char* p) {
  uint64_t value = 0;
  std::memcpy(&value, p, sizeof(value));
  return value;
}
uint32_t load4(const char* p) {
  uint32_t value = 0;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// Most words have 2 to 16 bytes, for which a call of memcmp costs more than the comparison.
bool equal_bytes(const char* a, const char* b, size_t size) {
  if (size > 16) return std::memcmp(a, b, size) == 0;
  if (size >= 8) return load8(a) == load8(b) && load8(a + size - 8) == load8(b + size - 8);
  if (size >= 4) return load4(a) == load4(b) && load4(a + size - 4) == load4(b + size - 4);
  for (size_t i = 0; i < size; ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

}  // namespace

// Written once before it is published, read-only after. The ids follow it, then the word: most
// entries are within one line of the processor's cache.
struct WordCache::Entry {
  uint64_t hash;
  uint8_t word_size, num_ids;

  const TokenId* ids() const { return reinterpret_cast<const TokenId*>(this + 1); }
  const char* word() const { return reinterpret_cast<const char*>(ids() + num_ids); }

  static Entry* make(std::string_view word, uint64_t hash, const TokenId* ids, size_t num_ids) {
    const size_t ids_bytes = num_ids * sizeof(TokenId);
    char* const memory =
        static_cast<char*>(::operator new(sizeof(Entry) + ids_bytes + word.size()));
    auto* const entry =
        new (memory) Entry{hash, static_cast<uint8_t>(word.size()), static_cast<uint8_t>(num_ids)};
    std::memcpy(memory + sizeof(Entry), ids, ids_bytes);
    std::memcpy(memory + sizeof(Entry) + ids_bytes, word.data(), word.size());
    return entry;
  }
  struct Free {
    void operator()(const Entry* entry) const { ::operator delete(const_cast<Entry*>(entry)); }
  };
};

WordCache::WordCache()
    : slots_(std::make_unique<std::array<std::atomic<const Entry*>, kNumSlots>>()) {}

WordCache::~WordCache() {
  for (std::atomic<const Entry*>& slot : *slots_) {
    Entry::Free()(slot.load(std::memory_order_relaxed));
  }
}

uint64_t WordCache::hash_of(std::string_view word) { return XXH3_64bits(word.data(), word.size()); }

bool WordCache::find(std::string_view word, uint64_t hash, std::vector<TokenId>& out) const {
  for (size_t probe = 0; probe < kProbes; ++probe) {
    const Entry* entry = (*slots_)[(hash + probe) % kNumSlots].load(std::memory_order_acquire);
    if (entry == nullptr) return false;
    if (entry->hash != hash || entry->word_size != word.size() ||
        !equal_bytes(entry->word(), word.data(), word.size())) {
      continue;
    }
    const TokenId* const ids = entry->ids();
    for (size_t i = 0; i < entry->num_ids; ++i) out.push_back(ids[i]);
    return true;
  }
  return false;
}

void WordCache::insert(std::string_view word, uint64_t hash, const TokenId* ids, size_t num_ids) {
  if (word.size() > kWordBytesMax || num_ids > kTokensMax) return;
  for (size_t probe = 0; probe < kProbes; ++probe) {
    std::atomic<const Entry*>& slot = (*slots_)[(hash + probe) % kNumSlots];
    if (slot.load(std::memory_order_relaxed) != nullptr) continue;
    std::unique_ptr<const Entry, Entry::Free> entry(Entry::make(word, hash, ids, num_ids));
    const Entry* expected = nullptr;
    if (slot.compare_exchange_strong(expected, entry.get(), std::memory_order_release,
                                     std::memory_order_relaxed)) {
      (void)entry.release();  // the slot owns it now
      return;
    }
  }
}

}  // namespace espalier
