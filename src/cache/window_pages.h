// The second page map of a model some of whose layers see a sliding window: those layers keep their
// keys and values in pages of their own, of which there are fewer, for a page that the window has
// passed is given back while the other layers keep theirs.
//
// A page of the pool (a "full" page here) bears the number of its window page, or none:
//
//   none -> used (by so many sequences whose window it is in) -> idle (cached, used by nobody)
//            ^------------------------------------------------------/ \-> none: dropped for want
//
// A cached prefix can be continued where the window's tail before that point is still there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "seams/kv_view.h"

namespace espalier {

// Not thread-safe. Every operation is O(1) a page; idle pages go in the order in which they fell
// idle.
class WindowPages {
 public:
  static constexpr PageId kNone = -1;

  // window_tokens: how many positions before its own, itself included, a token's layers may read.
  WindowPages(int32_t num_full_pages, int32_t num_pages, int32_t window_tokens, int32_t page_size);

  PageId of(PageId full) const { return at(full).page; }
  bool has(PageId full) const { return at(full).page != kNone; }
  int32_t num_pages() const { return pool_.num_pages(); }
  int32_t num_available() const { return pool_.num_free() + num_idle_; }
  uint64_t version() const { return version_; }  // moves when a continuation may be lost or found

  // The first page of a sequence that a token at `position` may read.
  int32_t first_needed(int32_t position) const;
  // The longest prefix of a cached run of pages that can be continued, in pages.
  int32_t usable(std::span<const PageId> full) const;
  // What a sequence of that many pages holds at most while it decodes: its window, and the pages
  // that two steps in flight have begun.
  int32_t max_resident(int32_t num_pages) const;

  // A new page, with one user; evicts an idle one where none is free. REQUIRES num_available() > 0.
  void take(PageId full);
  void add_user(PageId full);
  // The last user's leaving makes it idle if it is cached, and gives it back if not.
  void drop_user(PageId full, bool cached);
  // The full page is free now: what it has goes with it.
  void clear(PageId full);
  // The duplicate of a cached page has what the cache has lost.
  void move(PageId from, PageId to);

  // Aborts (ESP_CHECK) unless the users are those of `uses` (each page once for each user), every
  // idle page is in the order of eviction, and used, idle and free pages are all there are.
  void check_invariants(std::span<const PageId> uses) const;

 private:
  struct Slot {
    PageId page = kNone;
    int32_t num_users = 0;
    PageId next = kNone, prev = kNone;  // among the idle ones, by full page
  };
  Slot& at(PageId full) { return slots_[static_cast<size_t>(full)]; }
  const Slot& at(PageId full) const { return slots_[static_cast<size_t>(full)]; }
  void give_back(Slot& slot);
  void link_last(PageId full);
  void unlink(PageId full);

  const int32_t window_tokens_, page_size_;
  PagePool pool_;
  std::vector<Slot> slots_;  // [num_full_pages]
  PageId first_idle_ = kNone, last_idle_ = kNone;
  int32_t num_idle_ = 0;
  uint64_t version_ = 0;
  std::vector<PageId> taken_;  // kept for its capacity
};

}  // namespace espalier
