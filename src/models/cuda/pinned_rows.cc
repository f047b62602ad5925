#include "models/cuda/pinned_rows.h"

#include <algorithm>
#include <utility>

namespace espalier {
namespace {

// Pinning holds up what other threads launch, so a large picture has a slab of its own.
constexpr int64_t kSlabBytes = int64_t{4} << 20;

}  // namespace

PinnedRows::PinnedRows(int64_t block_bytes)
    : block_bytes_((block_bytes + cuda::Arena::kAlignment - 1) / cuda::Arena::kAlignment *
                   cuda::Arena::kAlignment),
      slab_blocks_(std::max<int64_t>(1, kSlabBytes / block_bytes_)) {}

Status PinnedRows::grow() {
  ESP_ASSIGN_OR_RETURN(
      cuda::PinnedBuffer slab,
      cuda::PinnedBuffer::allocate(slab_blocks_ * block_bytes_, "rows of pictures"));
  free_.reserve((slabs_.size() + 1) * static_cast<size_t>(slab_blocks_));
  for (int64_t i = 0; i < slab_blocks_; ++i) free_.push_back(slab.data() + i * block_bytes_);
  slabs_.push_back(std::move(slab));
  return Status();
}

Result<std::shared_ptr<std::byte>> PinnedRows::take() {
  std::unique_lock lock(mutex_);
  if (free_.empty()) ESP_RETURN_IF_ERROR(grow());
  std::byte* const block = free_.back();
  free_.pop_back();
  lock.unlock();
  return std::shared_ptr<std::byte>(
      block, [pool = shared_from_this()](std::byte* of_pool) { pool->give_back(of_pool); });
}

void PinnedRows::give_back(std::byte* block) {
  std::lock_guard lock(mutex_);
  free_.push_back(block);
}

}  // namespace espalier
