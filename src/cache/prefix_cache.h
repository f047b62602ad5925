// What a sequence's keys and values are kept in, and how sequences share them: the scheduler's view
// of the cache. Two implementations: RadixCache (prefixes are reused) and ChunkCache (nothing is),
// each with or without a second map of pages for layers that see a sliding window (window_pages.h).
//
// A sequence's life:
//   auto pages = cache.begin(ns, tokens, most);   // finds and protects its cached prefix
//   cache.grow(pages, num_tokens)                 // pages for what the next step writes
//   cache.share(pages, tokens, replaced)          // what is computed so far, for others to reuse
//   cache.finish(std::move(pages), tokens)        // or release(): the end
#pragma once

#include <algorithm>
#include <cstdint>
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
#include "seams/kv_view.h"
#include "seams/vocab_view.h"

namespace espalier {

class CacheEventLog;
class PrefixCache;
class RadixNode;

// The page table of one sequence: first pages that the cache owns, protected by this handle's lock,
// then pages of its own. Move-only; what it still holds when destroyed is released.
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

  // With a sliding window: beside each page of the table that the window has not passed its window
  // page; what stands beside the others is never read. Empty without one.
  std::span<const PageId> window_table() const { return window_table_; }
  int32_t num_window_pages() const {  // held
    return window_table_.empty() ? 0 : num_pages() - window_begin_;
  }

  // Room in the table for this many pages, so that growing up to there allocates nothing.
  void reserve(int32_t num_pages);
  void reset();

 private:
  friend class PrefixCache;
  friend class RadixCache;
  friend class ChunkCache;
  PrefixCache* cache_ = nullptr;  // null: holds nothing
  RadixNode* lock_ = nullptr;     // the deepest shared node
  int32_t num_shared_ = 0;
  int32_t priority_ = 0;   // of what it leaves in the cache
  std::string namespace_;  // where the cache logs events
  std::vector<PageId> table_;
  std::vector<PageId> window_table_;
  int32_t window_begin_ = 0;  // pages of the table from here on it uses in the window's map, too
};

// Pages without a sequence, kept until the last launched step that may read them is done.
// Move-only; gives them back when destroyed.
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

// Of what the cache has, what a sequence may find: all, but for measurements.
struct CacheReuse {
  double match_share = 1;           // the first part of each match
  bool whole_prompts_only = false;  // a match that is not of the whole prompt counts as none
};

struct PrefixCacheConfig {
  int32_t num_pages = 0;
  int32_t page_size = 1;  // tokens
  bool disable_radix_cache = false;
  EvictionPolicy eviction_policy = EvictionPolicy::kLru;
  CacheReuse reuse;
  CacheEventLog* events = nullptr;  // outlives the cache; null: no page is hashed
  PageNameScope name_scope;         // of the pages' names in events
  // Layers that see a sliding window have so many pages of their own, for tokens that read no more
  // than the last `sliding_window` positions, their own included. 0: there is one map of pages.
  int32_t sliding_window = 0;
  int32_t num_window_pages = 0;
};

// A run of cached tokens that several sequences hold.
struct SharedNode {
  uint32_t number = 0;  // names it among those that live; small
  int32_t end = 0;      // tokens from the start of the sequence to its end
};

// In pages. total = free + evictable + in use (protected by locks, or a sequence's own).
struct PrefixCacheSizes {
  int32_t total = 0;
  int32_t free = 0;
  int32_t evictable = 0;   // cached, and used by nobody now
  int32_t protected_ = 0;  // cached, and used by running sequences
  // Of the window's map, where there is one: free, or cached and used by nobody now.
  int32_t window_available = std::numeric_limits<int32_t>::max();
  int32_t available() const { return free + evictable; }
  // A new page takes one of each map.
  int32_t available_now() const { return std::min(available(), window_available); }
  int32_t in_use() const { return total - free - evictable; }
};

// Not thread-safe. Every SequencePages and DetachedPages must be gone before the cache is.
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

  // Whether a later sequence can find what an earlier one computed.
  virtual bool reuses() const = 0;
  bool has_window() const { return window_ != nullptr; }

  // How many leading tokens begin() would find: whole pages only. Changes nothing, not even the
  // order of eviction. The answer holds while version() does.
  virtual int32_t match(std::string_view cache_namespace,
                        std::span<const TokenId> tokens) const = 0;
  virtual uint64_t version() const = 0;
  // No less than match(), and what it says of a prefix it says of all that begin with it, up to the
  // prefix's length: with a sliding window match() is not so, for a longer prefix may have its
  // window's tail where a shorter one has lost it.
  virtual int32_t match_bound(std::string_view cache_namespace,
                              std::span<const TokenId> tokens) const {
    return match(cache_namespace, tokens);
  }

  // Starts a sequence: its table holds the cached pages of the longest known prefix of `tokens`, in
  // whole pages, protected from eviction while the handle lives. Pass fewer tokens to match fewer:
  // the prompt's last one must stay out, for its logits are wanted.
  virtual SequencePages begin(std::string_view cache_namespace, std::span<const TokenId> tokens,
                              int32_t priority = 0) = 0;

  // The first `num_tokens` are computed and committed: with a sliding window, the window pages that
  // it has passed are given back.
  void advance(SequencePages& pages, int32_t num_tokens);
  // How many that will be when so many tokens are committed.
  int32_t num_window_pages_passed(const SequencePages& pages, int32_t num_tokens) const;
  // What a sequence of so many pages holds of the window's map at most, but for chunks of a prompt
  // in flight; 0 without one.
  int32_t num_window_pages_most(int32_t num_pages) const {
    return window_ == nullptr ? 0 : window_->max_resident(num_pages);
  }

  // Makes the table cover `num_tokens`, evicting what is needed; all or nothing.
  [[nodiscard]] bool grow(SequencePages& pages, int32_t num_tokens);

  // `tokens`, whose keys and values are all computed, become reusable up to their last whole page,
  // and stay protected. Where the cache had some of them already, the table now names the cache's
  // pages; the sequence's own duplicates move to `replaced`, for a step in flight may still read
  // them.
  virtual void share(SequencePages& pages, std::span<const TokenId> tokens,
                     DetachedPages& replaced) = 0;

  // The end of a sequence: keeps what is computed for later ones, gives the rest back. REQUIRES
  // that no step in flight uses its pages, as does release(), which keeps nothing new.
  virtual void finish(SequencePages&& pages, std::span<const TokenId> tokens) = 0;
  virtual void release(SequencePages& pages) = 0;

  // Appends the runs of its path that other sequences hold too, the deepest first; each ends where
  // the one before it begins. Changes nothing.
  virtual void shared_nodes(const SequencePages& pages, std::vector<SharedNode>& out) const = 0;

  // How many pages become available when it ends.
  virtual int32_t num_exclusive_pages(const SequencePages& pages) const = 0;

  // Drops up to `count` pages that nobody uses, the policy's choice first; how many it dropped.
  virtual int32_t evict(int32_t count) = 0;
  int32_t flush() { return evict(num_pages()); }  // all that nobody uses

  virtual PrefixCacheSizes sizes() const = 0;

  // Aborts (ESP_CHECK) unless every page is free, owned by one of `sequences` (all that live), by
  // `detached` (all that live), or by one tree node, and the locks are exactly those of
  // `sequences`.
  virtual void check_invariants(std::span<const SequencePages* const> sequences,
                                std::span<const PageId> detached) const = 0;

 protected:
  explicit PrefixCache(const PrefixCacheConfig& config);

  friend class DetachedPages;
  void free_pages(std::span<const PageId> pages);
  // The sequence's use of the window's map, from its first pages on and at its end.
  void begin_window(SequencePages& pages);
  void end_window(SequencePages& pages);
  int32_t window_available() const {
    return window_ == nullptr ? std::numeric_limits<int32_t>::max() : window_->num_available();
  }

  // That free pages, `cached`, `detached` and the sequences' own part the pool between them.
  void check_ownership(std::span<const SequencePages* const> sequences,
                       std::span<const PageId> detached, std::span<const PageId> cached) const;

  const int32_t page_size_;
  PagePool pool_;
  std::unique_ptr<WindowPages> window_;  // null: one map
};

// kInvalidArgument for a page size or a number of pages below 1, or too few for the window.
Result<std::unique_ptr<PrefixCache>> make_prefix_cache(const PrefixCacheConfig& config);

}  // namespace espalier
