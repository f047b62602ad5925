#include "cache/page_pool.h"

#include <ranges>

#include "base/check.h"

namespace espalier {

PagePool::PagePool(int32_t num_pages) : used_(static_cast<size_t>(num_pages), 0) {
  free_.reserve(used_.size());
  for (PageId page = num_pages - 1; page >= 0; --page) free_.push_back(page);
}

bool PagePool::allocate(int32_t count, std::vector<PageId>& out) {
  if (count > num_free()) return false;
  for (int32_t i = 0; i < count; ++i) {
    const PageId page = free_.back();
    free_.pop_back();
    used_[static_cast<size_t>(page)] = 1;
    out.push_back(page);
  }
  return true;
}

// Backwards, so that neighbours are given out in the order in which they were: attention then reads
// a sequence's pages from fewer places, and copies of pages take fewer rows.
void PagePool::free(std::span<const PageId> pages) {
  for (const PageId page : pages | std::views::reverse) {
    ESP_CHECK(page >= 0 && page < num_pages() && !is_free(page), "page {} freed twice", page);
    used_[static_cast<size_t>(page)] = 0;
    free_.push_back(page);
  }
}

void PagePool::check_invariants() const {
  std::vector<uint8_t> seen(used_.size(), 0);
  for (const PageId page : free_) {
    ESP_CHECK(is_free(page) && seen[static_cast<size_t>(page)] == 0, "free list, page {}", page);
    seen[static_cast<size_t>(page)] = 1;
  }
  size_t num_marked_free = 0;
  for (const uint8_t used : used_) num_marked_free += used == 0 ? 1 : 0;
  ESP_CHECK(num_marked_free == free_.size(), "{} marked, {} listed", num_marked_free, free_.size());
}

}  // namespace espalier
