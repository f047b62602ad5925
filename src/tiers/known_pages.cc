#include "tiers/known_pages.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace espalier {

KnownPages::KnownPages(size_t num_pages_max)
    : entries_(std::bit_ceil(std::max(num_pages_max, kWays))) {}

// Names are digests, so any of their bits are a hash.
KnownPages::Entry* KnownPages::bucket_of(const PageName& name) {
  return &entries_[name.prefix64() & (entries_.size() - 1) & ~(kWays - 1)];
}

void KnownPages::add(const PageName& name, TimePoint seen) {
  ESP_CHECK(!name.empty(), "a page without a name");
  Entry* const bucket = bucket_of(name);
  Entry* chosen = bucket;
  for (Entry* entry = bucket; entry < bucket + kWays; ++entry) {
    if (entry->name == name) {
      chosen = entry;
      break;
    }
    if (entry->seen < chosen->seen) chosen = entry;  // a free one was seen at the epoch
  }
  *chosen = {name, seen};
}

void KnownPages::remove(const PageName& name) {
  Entry* const bucket = bucket_of(name);
  for (Entry* entry = bucket; entry < bucket + kWays; ++entry)
    if (entry->name == name) *entry = {};
}

void KnownPages::clear() { std::ranges::fill(entries_, Entry{}); }

std::optional<TimePoint> KnownPages::find(const PageName& name) const {
  const Entry* const bucket = const_cast<KnownPages*>(this)->bucket_of(name);
  for (const Entry* entry = bucket; entry < bucket + kWays; ++entry)
    if (entry->name == name) return entry->seen;
  return {};
}

}  // namespace espalier
