#include "models/cuda/pinned_rows.h"

#include <algorithm>
#include <utility>

#include "base/memory_reserve.h"

namespace espalier {
namespace {

constexpr int64_t kUnit = cuda::Arena::kAlignment;

}  // namespace

// Slabs without a block are too small for this one, and are let go before another is pinned:
// otherwise pictures that become larger and larger would leave pinned memory behind.
Result<PinnedRows::Range> PinnedRows::take_range(int64_t units) {
  for (Slab& slab : slabs_) {
    if (const auto begin = slab.free.take(units)) return Range{&slab, *begin, units};
  }
  slabs_.remove_if([](const Slab& slab) { return slab.unused(); });
  const int64_t most = std::max(units, slab_bytes_ / kUnit);
  ESP_ASSIGN_OR_RETURN(cuda::PinnedBuffer memory,
                       cuda::PinnedBuffer::allocate(most * kUnit, "rows of pictures"));
  Slab& slab = slabs_.emplace_back(Slab{std::move(memory), FreeRanges(most)});
  return Range{&slab, slab.free.take(units).value(), units};
}

Result<std::shared_ptr<std::byte>> PinnedRows::take(int64_t bytes) {
  Range range;
  {
    std::lock_guard lock(mutex_);
    ESP_ASSIGN_OR_RETURN(range, take_range((bytes + kUnit - 1) / kUnit));
  }
  return std::shared_ptr<std::byte>(
      range.slab->memory.data() + range.begin * kUnit,
      [pool = shared_from_this(), range](std::byte*) { pool->give_back(range); });
}

void PinnedRows::give_back(const Range& range) {
  const MemoryReserveScope reserve;  // a range between two that are taken needs a node
  std::lock_guard lock(mutex_);
  range.slab->free.give_back(range.begin, range.units);
}

}  // namespace espalier
