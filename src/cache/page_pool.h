// PagePool: which pages of the KV memory are free. It knows page numbers only; kv_pool.h has the
// memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "seams/kv_view.h"

namespace espalier {

// Allocates page ids [0, num_pages), in constant time for each page. Not thread-safe.
//
// Ownership: every allocated page has one owner, which frees it once. In this room an owner is a
// SequencePages (a running sequence), a DetachedPages (until the last step that reads its pages is
// done), or one node of the radix tree. Freeing a page that is free already aborts.
class PagePool {
 public:
  explicit PagePool(int32_t num_pages);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  int32_t num_pages() const { return static_cast<int32_t>(used_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }

  // Appends `count` pages to `out` and returns true; where fewer are free, appends nothing and
  // returns false. The page freed last comes first: its memory is the most likely to be in a
  // processor's cache, and the resident memory of the process grows no further than necessary.
  [[nodiscard]] bool allocate(int32_t count, std::vector<PageId>& out);
  void free(std::span<const PageId> pages);

  bool is_free(PageId page) const { return used_[static_cast<size_t>(page)] == 0; }

  // Aborts (ESP_CHECK) unless the free list and the marks agree.
  void check_invariants() const;

 private:
  std::vector<PageId> free_;   // a stack
  std::vector<uint8_t> used_;  // [num_pages]; 1: allocated. Catches pages that are freed twice
};

}  // namespace espalier
