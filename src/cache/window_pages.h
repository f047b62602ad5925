// Window pages: the pages of layers that read a sliding window only. These layers have a second,
// smaller pool, for a window page that the window has passed is given back while the other layers
// keep their page.
//
// A page of the first pool (a "full" page here) has a window page or none. Its states:
//
//   none -> used (num_users sequences have it in their window) -> idle (cached, no users)
//            ^------------------------------------------------------/ \-> none (evicted)
//
// A cached prefix can be continued at a position if all pages in the window before that position
// have window pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_pool.h"
#include "seams/kv_view.h"

namespace espalier {

// Not thread-safe. Every operation is O(1) for each page. Idle pages are evicted in the order in
// which they became idle.
class WindowPages {
 public:
  static constexpr PageId kNone = -1;

  // window_tokens: the most positions that a token reads, its own included.
  WindowPages(int32_t num_full_pages, int32_t num_pages, int32_t window_tokens, int32_t page_size);

  PageId of(PageId full) const { return at(full).page; }
  bool has(PageId full) const { return at(full).page != kNone; }
  int32_t num_pages() const { return pool_.num_pages(); }
  int32_t num_available() const { return pool_.num_free() + num_idle_; }
  uint64_t version() const { return version_; }  // changes when usable() may give another result

  // The first page of a sequence that a token at `position` may read.
  int32_t first_needed(int32_t position) const;
  // The longest prefix of a cached sequence of pages that can be continued, in pages.
  int32_t usable(std::span<const PageId> full) const;
  // The most window pages that a sequence of `num_pages` pages uses while it decodes: its window
  // and the pages that two steps in flight have begun.
  int32_t max_resident(int32_t num_pages) const;

  // Gives the full page a window page with one user; evicts an idle one where none is free.
  // REQUIRES num_available() > 0.
  void take(PageId full);
  void add_user(PageId full);
  // Without users the window page becomes idle if the full page is cached, else free.
  void drop_user(PageId full, bool cached);
  // The full page has been freed: frees its window page, if it has one.
  void clear(PageId full);
  // Moves the window page of `from`, a duplicate, to the cached page `to`, which has none.
  void move(PageId from, PageId to);

  // Aborts (ESP_CHECK) unless the users are those of `uses` (each page once for each user), every
  // idle page is in the order of eviction, and every window page is used, idle or free.
  void check_invariants(std::span<const PageId> uses) const;

 private:
  struct Slot {
    PageId page = kNone;
    int32_t num_users = 0;
    PageId next = kNone, prev = kNone;  // in the list of idle pages, by full page
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
