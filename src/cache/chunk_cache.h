// The prefix cache that reuses nothing, for --disable-radix-cache. Not thread-safe; owns its pages.
#pragma once

#include "cache/prefix_cache.h"

namespace espalier {

class ChunkCache final : public PrefixCache {
 public:
  explicit ChunkCache(const PrefixCacheConfig& config) : PrefixCache(config) {}

  const RadixTree* radix_tree() const override { return nullptr; }
  int32_t match(std::string_view, std::span<const TokenId>) const override { return 0; }
  uint64_t version() const override { return 0; }
  SequencePages begin(std::string_view cache_namespace, std::span<const TokenId> tokens,
                      int32_t priority) override;
  void share(SequencePages&, std::span<const TokenId>, DetachedPages&) override {}
  void finish(SequencePages&& pages, std::span<const TokenId> tokens) override;
  void release(SequencePages& pages) override;
  void shared_nodes(const SequencePages&, std::vector<SharedNode>&) const override {}
  int32_t num_exclusive_pages(const SequencePages& pages) const override {
    return pages.num_pages();
  }
  int32_t evict(int32_t) override { return 0; }
  PrefixCacheSizes sizes() const override;
  void check_invariants(std::span<const SequencePages* const> sequences,
                        std::span<const PageId> detached) const override;
};

}  // namespace espalier
