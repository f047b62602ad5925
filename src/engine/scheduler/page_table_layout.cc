#include "engine/scheduler/page_table_layout.h"

#include <algorithm>

#include "cache/arena.h"

namespace espalier {

namespace {
// A table gets room for this many pages to come at most, so that a long limit on the output does
// not spread the tables over memory that is never used.
constexpr int32_t kSpareMax = 8192;

// The tables of a thousand sequences lie in as many pages of memory, which is more than the
// processor's address translation holds: huge ones are few.
void resize_in_huge_pages(std::vector<PageId>& table, size_t size) {
  if (size > table.capacity()) {
    std::vector<PageId> larger;
    larger.reserve(std::max(size, 2 * table.capacity()));
    advise_huge_pages(larger.data(), larger.capacity() * sizeof(PageId));
    larger.assign(table.begin(), table.end());
    table.swap(larger);
  }
  table.resize(size);
}
}  // namespace

PageTableLayout::PageTableLayout(int32_t num_slots) {
  for (Known& known : known_) known.regions.resize(static_cast<size_t>(num_slots));
}

void PageTableLayout::begin(ForwardBatch& batch) {
  current_ = known_[0].batch == &batch         ? &known_[0]
             : known_[1].batch == &batch       ? &known_[1]
             : known_[0].step < known_[1].step ? &known_[0]
                                               : &known_[1];
  Known& known = *current_;
  const bool as_left =
      known.batch == &batch && known.step == batch.step && known.data == batch.page_tables.data();
  if (as_left && known.num_wasted * 2 <= batch.page_tables.size()) return;
  batch.page_tables.clear();
  batch.window_page_tables.clear();
  known.num_wasted = 0;
  std::fill(known.regions.begin(), known.regions.end(), Region());
}

int32_t PageTableLayout::place(ForwardBatch& batch, SlotId slot, uint64_t version,
                               std::span<const PageId> table, std::span<const PageId> window,
                               int32_t num_pages_max) {
  Region& region = current_->regions[static_cast<size_t>(slot)];
  const auto num_pages = static_cast<int32_t>(table.size());
  if (region.capacity < num_pages) {
    current_->num_wasted += static_cast<size_t>(region.capacity);
    region = {.begin = static_cast<int32_t>(batch.page_tables.size()),
              .capacity = std::max(num_pages, std::min(num_pages_max, num_pages + kSpareMax))};
    resize_in_huge_pages(batch.page_tables,
                         batch.page_tables.size() + static_cast<size_t>(region.capacity));
  }
  const int32_t kept = region.version == version ? std::min(region.num_pages, num_pages) : 0;
  std::copy(table.begin() + kept, table.end(), batch.page_tables.begin() + region.begin + kept);
  if (!window.empty()) {
    resize_in_huge_pages(batch.window_page_tables, batch.page_tables.size());
    std::copy(window.begin() + kept, window.end(),
              batch.window_page_tables.begin() + region.begin + kept);
  }
  region.version = version;
  region.num_pages = num_pages;
  return region.begin;
}

void PageTableLayout::end(const ForwardBatch& batch) {
  current_->batch = &batch;
  current_->data = batch.page_tables.data();
  current_->step = batch.step;
}

}  // namespace espalier
