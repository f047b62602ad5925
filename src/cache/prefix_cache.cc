#include "cache/prefix_cache.h"

#include <utility>

#include "base/check.h"
#include "cache/chunk_cache.h"
#include "cache/radix_cache.h"

namespace espalier {

SequencePages& SequencePages::operator=(SequencePages&& other) noexcept {
  if (this == &other) return *this;
  reset();
  cache_ = std::exchange(other.cache_, nullptr);
  lock_ = std::exchange(other.lock_, nullptr);
  num_shared_ = std::exchange(other.num_shared_, 0);
  priority_ = other.priority_;
  table_ = std::exchange(other.table_, {});
  return *this;
}

void SequencePages::reset() {
  if (cache_ != nullptr) cache_->release(*this);
}

DetachedPages& DetachedPages::operator=(DetachedPages&& other) noexcept {
  if (this == &other) return *this;
  reset();
  pool_ = std::exchange(other.pool_, nullptr);
  pages_ = std::exchange(other.pages_, {});
  return *this;
}

void DetachedPages::reset() {
  if (pool_ != nullptr) pool_->free(pages_);
  pool_ = nullptr;
  pages_.clear();
}

bool PrefixCache::grow(SequencePages& pages, int32_t num_tokens) {
  const int32_t missing = num_pages_for(num_tokens) - pages.num_pages();
  if (missing <= 0) return true;
  const PrefixCacheSizes now = sizes();
  if (missing > now.available()) return false;
  if (missing > now.free) evict(missing - now.free);
  ESP_CHECK(pool_.allocate(missing, pages.table_), "eviction gave less than it said");
  return true;
}

void PrefixCache::check_ownership(std::span<const SequencePages* const> sequences,
                                  std::span<const PageId> detached,
                                  std::span<const PageId> cached) const {
  pool_.check_invariants();
  enum Owner : uint8_t { kNone, kSequence, kDetached, kNode };
  std::vector<Owner> owners(static_cast<size_t>(num_pages()), kNone);
  const auto claim = [&](PageId page, Owner owner) {
    ESP_CHECK(page >= 0 && page < num_pages() && !pool_.is_free(page), "page {} is free", page);
    Owner& now = owners[static_cast<size_t>(page)];
    ESP_CHECK(now == kNone, "page {} has two owners: {} and {}", page, int{now}, int{owner});
    now = owner;
  };
  for (const PageId page : cached) claim(page, kNode);
  for (const PageId page : detached) claim(page, kDetached);
  size_t num_owned = cached.size() + detached.size();
  for (const SequencePages* sequence : sequences) {
    for (const PageId page : sequence->own()) claim(page, kSequence);
    num_owned += sequence->own().size();
    for (const PageId page : sequence->table().first(static_cast<size_t>(sequence->num_shared_)))
      ESP_CHECK(owners[static_cast<size_t>(page)] == kNode, "shared page {} is not cached", page);
  }
  ESP_CHECK(num_owned + static_cast<size_t>(pool_.num_free()) == owners.size(),
            "{} pages have lost their owner",
            owners.size() - num_owned - static_cast<size_t>(pool_.num_free()));
}

Result<std::unique_ptr<PrefixCache>> make_prefix_cache(const PrefixCacheConfig& config) {
  if (config.page_size < 1)
    return fail(invalid_argument("page_size is {}; it must be at least 1 token", config.page_size));
  if (config.num_pages < 1)
    return fail(
        invalid_argument("the KV pool has {} pages; it needs at least 1", config.num_pages));
  if (config.disable_radix_cache) return std::make_unique<ChunkCache>(config);
  return std::make_unique<RadixCache>(config);
}

}  // namespace espalier
