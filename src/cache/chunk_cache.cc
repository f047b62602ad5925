#include "cache/chunk_cache.h"

#include <utility>

namespace espalier {

SequencePages ChunkCache::begin(std::string_view, std::span<const TokenId>, int32_t) {
  SequencePages pages;
  pages.cache_ = this;
  return pages;
}

void ChunkCache::finish(SequencePages&& pages, std::span<const TokenId>) {
  const SequencePages ended = std::move(pages);
}

void ChunkCache::release(SequencePages& pages) {
  if (!pages.holds()) return;
  end_window(pages);
  free_pages(pages.own());
  pages.cache_ = nullptr;
  pages.table_.clear();
}

PrefixCacheSizes ChunkCache::sizes() const {
  return {.total = num_pages(), .free = pool_.num_free(), .window_available = window_available()};
}

void ChunkCache::check_invariants(std::span<const SequencePages* const> sequences,
                                  std::span<const PageId> detached) const {
  check_ownership(sequences, detached, {});
}

}  // namespace espalier
