// PrefixCache: the scheduler's view of the KV cache. It gives sequences their page tables and lets
// them share cached prefixes. Two implementations: RadixCache (prefixes are reused) and ChunkCache
// (nothing is reused), each with or without window pages (window_pages.h) for layers that read a
// sliding window. Not thread-safe; used from the scheduler's thread.
//
// The calls of a sequence, in order:
//   auto pages = cache.begin(ns, tokens, priority);  // finds and protects its cached prefix
//   cache.grow(pages, num_tokens)                    // pages for the tokens of the next step
//   cache.share(pages, tokens, replaced)             // makes its computed pages reusable
//   cache.finish(std::move(pages), tokens)           // or release(): gives the pages back
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cache/eviction.h"
#include "cache/page_name.h"
#include "cache/page_pool.h"
#include "cache/window_pages.h"
#include "seams/cache_nodes.h"
#include "seams/kv_view.h"
#include "seams/vocab_view.h"

namespace espalier {

class CacheEventLog;
class PageObserver;
class PrefixCache;
class RadixNode;
class RadixTree;

// The page table of one sequence: first pages that the cache owns, protected by this handle's lock,
// then pages of its own. Move-only; the destructor releases both.
//
//   table: | shared, owned by tree nodes | own                           |
//          0            num_shared_pages()                     num_pages()
class SequencePages {
 public:
  SequencePages() = default;
  SequencePages(SequencePages&& other) noexcept { *this = std::move(other); }
  SequencePages& operator=(SequencePages&& other) noexcept;
  ~SequencePages() { reset(); }

  std::span<const PageId> table() const { return table_; }
  std::span<const PageId> own() const { return table().subspan(static_cast<size_t>(num_shared_)); }
  int32_t num_pages() const { return static_cast<int32_t>(table_.size()); }
  int32_t num_shared_pages() const { return num_shared_; }
  bool holds() const { return cache_ != nullptr; }
  const RadixNode* lock() const { return lock_; }  // null where nothing is shared

  // [num_pages()]: the window page of each page of the table. Entries of pages that the window has
  // passed are undefined and never read. Empty without window pages.
  std::span<const PageId> window_table() const { return window_table_; }
  int32_t num_window_pages() const {  // that the window has not passed
    return window_table_.empty() ? 0 : num_pages() - window_begin_;
  }

  // Reserves room in the table, so that growing up to `num_pages` allocates no heap memory.
  void reserve(int32_t num_pages);
  void reset();

 private:
  friend class PrefixCache;
  friend class RadixCache;
  friend class ChunkCache;
  PrefixCache* cache_ = nullptr;  // null: holds nothing
  RadixNode* lock_ = nullptr;     // the deepest shared node
  int32_t num_shared_ = 0;
  int32_t priority_ = 0;   // of the pages that it leaves in the cache
  std::string namespace_;  // empty unless the cache names its pages
  std::vector<PageId> table_;
  std::vector<PageId> window_table_;
  int32_t window_begin_ = 0;  // index in the table of the first page with a window page in use
};

// Pages without a sequence that a launched step may still read. Move-only; the destructor gives
// them back to the pool, so the handle is kept until that step is done.
class DetachedPages {
 public:
  DetachedPages() = default;
  DetachedPages(DetachedPages&& other) noexcept { *this = std::move(other); }
  DetachedPages& operator=(DetachedPages&& other) noexcept;
  ~DetachedPages() { reset(); }

  std::span<const PageId> pages() const { return pages_; }
  bool empty() const { return pages_.empty(); }
  void reset();

 private:
  friend class PrefixCache;
  friend class RadixCache;
  PrefixCache* cache_ = nullptr;
  std::vector<PageId> pages_;
};

struct PrefixCacheConfig {
  int32_t num_pages = 0;
  int32_t page_size = 1;  // tokens
  bool disable_radix_cache = false;
  EvictionPolicy eviction_policy = EvictionPolicy::kLru;
  // Both outlive the cache; where both are null, no page is hashed.
  CacheEventLog* events = nullptr;
  PageObserver* observer = nullptr;
  PageNameScope name_scope;  // of the pages' names
  // The positions that a token reads in layers with a sliding window, its own included; these
  // layers have a pool of num_window_pages pages. 0: all layers have the same pages.
  int32_t sliding_window = 0;
  int32_t num_window_pages = 0;
};

// A node of the radix tree that several sequences have locked.
struct SharedNode {
  uint32_t number = 0;  // unique among live nodes, from 1; numbers are reused
  int32_t end = 0;      // tokens from the start of the sequence to the node's end
};

// Counts of pages. total = free + evictable + in use (protected by locks, or a sequence's own).
struct PrefixCacheSizes {
  int32_t total = 0;
  int32_t free = 0;
  int32_t evictable = 0;   // cached and unlocked
  int32_t protected_ = 0;  // cached and locked by sequences
  // Window pages that are free, or cached and unused; the maximum without window pages.
  int32_t window_available = std::numeric_limits<int32_t>::max();
  int32_t available() const { return free + evictable; }
  // A new page of a sequence takes a page and a window page.
  int32_t available_now() const { return std::min(available(), window_available); }
  int32_t in_use() const { return total - free - evictable; }
};

// Not thread-safe. REQUIRES that every SequencePages and DetachedPages is destroyed before the
// cache.
class PrefixCache {
 public:
  virtual ~PrefixCache() = default;
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  int32_t page_size() const { return page_size_; }
  int32_t num_pages() const { return pool_.num_pages(); }
  int32_t num_pages_for(int32_t num_tokens) const {
    return (num_tokens + page_size_ - 1) / page_size_;
  }

  // The tree of the prefixes that later sequences can reuse; null where nothing is reused.
  virtual const RadixTree* radix_tree() const = 0;
  bool has_window() const { return window_ != nullptr; }

  // How many leading tokens begin() would find, in whole pages. Changes nothing, not even the order
  // of eviction. The result is valid until version() changes.
  virtual int32_t match(std::string_view cache_namespace,
                        std::span<const TokenId> tokens) const = 0;
  virtual uint64_t version() const = 0;
  // An upper bound of match() that is monotonic: for a prefix P of `tokens`, match_bound(P) is the
  // smaller of P's length and match_bound(tokens). match() itself is not monotonic with a sliding
  // window, for a longer prefix may still have its window pages where a shorter one has lost them.
  virtual int32_t match_bound(std::string_view cache_namespace,
                              std::span<const TokenId> tokens) const {
    return match(cache_namespace, tokens);
  }

  // Starts a sequence: its table has the cached pages of the longest known prefix of `tokens`, in
  // whole pages, protected from eviction while the handle lives. Callers that need the logits of
  // the prompt's last token pass the prompt without it, so that a step computes it.
  virtual SequencePages begin(std::string_view cache_namespace, std::span<const TokenId> tokens,
                              int32_t priority = 0) = 0;

  // The first `num_tokens` are computed and committed: gives back the window pages that the window
  // has passed.
  void advance(SequencePages& pages, int32_t num_tokens);
  // How many pages advance() would give back.
  int32_t num_window_pages_passed(const SequencePages& pages, int32_t num_tokens) const;
  // The most window pages that a sequence of `num_pages` pages uses while it decodes (a prompt's
  // chunks in flight use more); 0 without window pages.
  int32_t num_window_pages_most(int32_t num_pages) const {
    return window_ == nullptr ? 0 : window_->max_resident(num_pages);
  }

  // Makes the table cover `num_tokens`, evicting what is needed; all or nothing.
  [[nodiscard]] bool grow(SequencePages& pages, int32_t num_tokens);

  // Makes the pages of `tokens` reusable up to the last whole page; they stay protected. REQUIRES
  // that all keys and values are computed. Where the cache had some of the pages already, the table
  // now names the cache's, and the sequence's own duplicates move to `replaced`, for a step in
  // flight may still read them.
  virtual void share(SequencePages& pages, std::span<const TokenId> tokens,
                     DetachedPages& replaced) = 0;

  // Both end a sequence; finish() first makes the pages of `tokens` reusable as share() does, and
  // release() caches nothing new. REQUIRES that no step in flight uses the pages.
  virtual void finish(SequencePages&& pages, std::span<const TokenId> tokens) = 0;
  virtual void release(SequencePages& pages) = 0;

  // Appends the nodes of the sequence's path that other sequences have locked too, the deepest
  // first; each ends where the one before it begins. Changes nothing.
  virtual void shared_nodes(const SequencePages& pages, std::vector<SharedNode>& out) const = 0;

  // How many pages become available when the sequence ends.
  virtual int32_t num_exclusive_pages(const SequencePages& pages) const = 0;

  // Evicts up to `count` unlocked pages in the policy's order and returns how many it evicted.
  virtual int32_t evict(int32_t count) = 0;
  // Evicts all unlocked pages because a user wants them gone: they are not kept elsewhere either.
  virtual int32_t flush() { return evict(num_pages()); }

  virtual PrefixCacheSizes sizes() const = 0;

  // The nodes of the tree of prefixes, for an observer; none where nothing is reused.
  virtual CacheNodes read_nodes(const CacheNodesQuery&) const { return {}; }

  // Aborts (ESP_CHECK) unless every page is free, owned by one of `sequences` (all that exist), by
  // `detached` (all that exist), or by one tree node, and the locks are exactly those of
  // `sequences`.
  virtual void check_invariants(std::span<const SequencePages* const> sequences,
                                std::span<const PageId> detached) const = 0;

 protected:
  explicit PrefixCache(const PrefixCacheConfig& config);

  friend class DetachedPages;
  void free_pages(std::span<const PageId> pages);
  // Take and give back the sequence's window pages when it begins and when it ends.
  void begin_window(SequencePages& pages);
  void end_window(SequencePages& pages);
  int32_t window_available() const {
    return window_ == nullptr ? std::numeric_limits<int32_t>::max() : window_->num_available();
  }

  // Aborts unless every page of the pool is exactly one of: free, in `cached`, in `detached`, or a
  // sequence's own.
  void check_ownership(std::span<const SequencePages* const> sequences,
                       std::span<const PageId> detached, std::span<const PageId> cached) const;

  const int32_t page_size_;
  PagePool pool_;
  std::unique_ptr<WindowPages> window_;  // null: all layers have the same pages
};

// kInvalidArgument for a page size or a number of pages below 1, or for fewer window pages than one
// sequence needs.
Status check_prefix_cache(const PrefixCacheConfig& config);

// The cache that the configuration names, or the error of check_prefix_cache().
Result<std::unique_ptr<PrefixCache>> make_prefix_cache(const PrefixCacheConfig& config);
using MakePrefixCache =
    std::function<Result<std::unique_ptr<PrefixCache>>(const PrefixCacheConfig& config)>;

}  // namespace espalier
