// The pages of KV memory by number: which are free, which are in use. Bytes are KvPool's business.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "seams/kv_view.h"

namespace espalier {

// Hands out page ids [0, num_pages), each a constant number of instructions. Not thread-safe.
//
// Discipline: whoever allocates a page owns it, and gives it back once. In this room an owner is a
// SequencePages (a running sequence), a DetachedPages (waiting for the last step that reads them),
// or one node of the radix tree. Giving back a page that is free already aborts.
class PagePool {
 public:
  explicit PagePool(int32_t num_pages);
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  int32_t num_pages() const { return static_cast<int32_t>(used_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }

  // Appends `count` pages to `out` and true; when there are fewer, nothing and false. The page
  // freed last comes first: its memory is the most likely to be in a processor's cache, and
  // resident memory grows only as far as it must.
  [[nodiscard]] bool allocate(int32_t count, std::vector<PageId>& out);
  void free(std::span<const PageId> pages);

  bool is_free(PageId page) const { return used_[static_cast<size_t>(page)] == 0; }

  // Aborts (ESP_CHECK) unless the free list and the marks agree.
  void check_invariants() const;

 private:
  std::vector<PageId> free_;   // a stack
  std::vector<uint8_t> used_;  // [num_pages]; kept to catch what is freed twice
};

}  // namespace espalier
