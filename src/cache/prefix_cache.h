// What a sequence's keys and values are kept in, and how sequences share them: the scheduler's view
// of the cache. Two implementations: RadixCache (prefixes are reused) and ChunkCache (nothing is).
//
// A sequence's life:
//   auto pages = cache.begin(ns, tokens, most);   // finds and protects its cached prefix
//   cache.grow(pages, num_tokens)                 // pages for what the next step writes
//   cache.share(pages, tokens, replaced)          // what is computed so far, for others to reuse
//   cache.finish(std::move(pages), tokens)        // or release(): the end
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cache/eviction.h"
#include "cache/page_pool.h"
#include "seams/kv_view.h"
#include "seams/vocab_view.h"

namespace espalier {

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

  // Room in the table for this many pages, so that growing up to there allocates nothing.
  void reserve(int32_t num_pages) { table_.reserve(static_cast<size_t>(num_pages)); }
  void reset();

 private:
  friend class PrefixCache;
  friend class RadixCache;
  friend class ChunkCache;
  PrefixCache* cache_ = nullptr;  // null: holds nothing
  RadixNode* lock_ = nullptr;     // the deepest shared node
  int32_t num_shared_ = 0;
  int32_t priority_ = 0;  // of what it leaves in the cache
  std::vector<PageId> table_;
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
  PagePool* pool_ = nullptr;
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
  int32_t available() const { return free + evictable; }
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

  virtual bool reuses()
      const = 0;  // whether a later sequence can find what an earlier one computed

  // How many leading tokens begin() would find: whole pages only. Changes nothing, not even the
  // order of eviction. The answer holds while version() does.
  virtual int32_t match(std::string_view cache_namespace,
                        std::span<const TokenId> tokens) const = 0;
  virtual uint64_t version() const = 0;

  // Starts a sequence: its table holds the cached pages of the longest known prefix of `tokens`, in
  // whole pages, protected from eviction while the handle lives. Pass fewer tokens to match fewer:
  // the prompt's last one must stay out, for its logits are wanted.
  virtual SequencePages begin(std::string_view cache_namespace, std::span<const TokenId> tokens,
                              int32_t priority = 0) = 0;

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
  virtual int32_t num_pages_held_alone(const SequencePages& pages) const = 0;

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
  explicit PrefixCache(const PrefixCacheConfig& config)
      : page_size_(config.page_size), pool_(config.num_pages) {}

  // That free pages, `cached`, `detached` and the sequences' own part the pool between them.
  void check_ownership(std::span<const SequencePages* const> sequences,
                       std::span<const PageId> detached, std::span<const PageId> cached) const;

  const int32_t page_size_;
  PagePool pool_;
};

// kInvalidArgument for a page size or a number of pages below 1.
Result<std::unique_ptr<PrefixCache>> make_prefix_cache(const PrefixCacheConfig& config);

}  // namespace espalier
