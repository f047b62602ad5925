// Where each slot's page table lies in a batch's page_tables, so that a batch that comes back (the
// engine takes two in turn) is brought up to date by appending a page or two for each entry.
// Copying every table at each step would cost 1.5 MB at 256 sequences of 1,500 tokens with pages of
// one.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "seams/forward_batch.h"

namespace espalier {

// Not thread-safe. Remembers the last two batches by address, and trusts one only if its step and
// its page_tables are as they were left; any other batch is written from nothing.
class PageTableLayout {
 public:
  explicit PageTableLayout(int32_t num_slots);

  // Before anything of `batch` is changed; afterwards its page_tables are what place() may keep.
  void begin(ForwardBatch& batch);
  // Returns page_begin. `version` names the table's entries: while it stays, entries are only
  // appended. `num_pages_max` is how long it may become.
  // `window`: the table of the window's map, as long as `table`, or empty.
  int32_t place(ForwardBatch& batch, SlotId slot, uint64_t version, std::span<const PageId> table,
                std::span<const PageId> window, int32_t num_pages_max);
  void end(const ForwardBatch& batch);  // with its step set

  // Prefetches the address to which place() will append for this slot.
  void prefetch_end(const ForwardBatch& batch, SlotId slot) const {
    const Region& region = current_->regions[static_cast<size_t>(slot)];
    __builtin_prefetch(batch.page_tables.data() + region.begin + region.num_pages, 1);
  }

 private:
  struct Region {
    uint64_t version = 0;
    int32_t begin = 0;
    int32_t num_pages = 0;  // written
    int32_t capacity = 0;
  };
  struct Known {
    const ForwardBatch* batch = nullptr;
    const PageId* data = nullptr;
    uint64_t step = 0;
    size_t num_wasted = 0;        // entries of regions that have moved
    std::vector<Region> regions;  // [num_slots]
  };

  std::array<Known, 2> known_;
  Known* current_ = nullptr;
};

}  // namespace espalier
