// The prefix cache that reuses: the prefixes of finished and running sequences lie in one radix
// tree, and every page that no sequence uses can be evicted. Not thread-safe; owns tree and pages.
// Every page of the tree is on the device. Tiers of memory below it follow the tree through a
// PageObserver and find pages by name, so the tree keeps no nodes for what has left the device.
#pragma once

#include <vector>

#include "cache/page_name.h"
#include "cache/page_record.h"
#include "cache/prefix_cache.h"
#include "cache/radix_tree.h"

namespace espalier {

class RadixCache : public PrefixCache {
 public:
  explicit RadixCache(const PrefixCacheConfig& config);  // REQUIRES what make_prefix_cache checks

  const RadixTree* radix_tree() const override { return &tree_; }
  int32_t match(std::string_view cache_namespace, std::span<const TokenId> tokens) const override;
  int32_t match_bound(std::string_view cache_namespace,
                      std::span<const TokenId> tokens) const override;
  uint64_t version() const override {
    return tree_.version() + (window_ == nullptr ? 0 : window_->version());
  }
  SequencePages begin(std::string_view cache_namespace, std::span<const TokenId> tokens,
                      int32_t priority) override;
  void share(SequencePages& pages, std::span<const TokenId> tokens,
             DetachedPages& replaced) override;
  void finish(SequencePages&& pages, std::span<const TokenId> tokens) override;
  void release(SequencePages& pages) override;
  void shared_nodes(const SequencePages& pages, std::vector<SharedNode>& out) const override;
  int32_t num_exclusive_pages(const SequencePages& pages) const override;
  int32_t evict(int32_t count) override { return evict(count, true); }
  int32_t flush() override { return evict(num_pages(), false); }
  PrefixCacheSizes sizes() const override;
  void check_invariants(std::span<const SequencePages* const> sequences,
                        std::span<const PageId> detached) const override;

  CacheNodes read_nodes(const CacheNodesQuery& query) const override;
  const RadixTree& tree() const { return tree_; }

 private:
  // Moves the whole pages of `tokens` into the tree and the lock to their end. Pages that the tree
  // had already are duplicates: the sequence's own are appended to `duplicates`.
  void move_to_tree(SequencePages& pages, std::span<const TokenId> tokens,
                    std::vector<PageId>& duplicates);

  void replace_in_window(SequencePages& pages, size_t begin);

  int32_t evict(int32_t count, bool demote);
  bool names_pages() const { return !names_.empty(); }
  void name_pages(const SequencePages& pages, std::span<const TokenId> tokens, size_t begin);
  void report_stored(const SequencePages& pages, std::span<const TokenId> tokens, size_t begin);
  void log_stored(const SequencePages& pages, std::span<const TokenId> tokens, size_t begin);
  void log_removed(std::span<const PageId> pages);

  RadixTree tree_;
  CacheEventLog* const events_;
  PageObserver* const observer_;
  const PageNameScope name_scope_;
  // [num_pages], valid for pages of the tree; empty without events and observer.
  std::vector<PageName> names_;
  // Kept for their capacity; their contents do not outlive a call.
  std::vector<PageId> scratch_;
  std::vector<PageRecord> evicted_;
  std::vector<PageId> present_;
  std::vector<PageName> new_names_;
  mutable std::vector<PageId> match_pages_;
};

}  // namespace espalier
