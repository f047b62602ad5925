#include "engine/executor/ranks_page_copier.h"

#include <utility>

#include "base/check.h"

namespace espalier {
namespace {

// begin(rank, its part of `bytes`) for each rank.
template <typename Byte, typename Begin>
std::vector<PageCopier::Transfer> begin_parts(const std::vector<PageCopier*>& ranks,
                                              std::span<Byte> bytes, const Begin& begin) {
  std::vector<PageCopier::Transfer> parts;
  for (PageCopier* rank : ranks) {
    const auto size = static_cast<size_t>(rank->page_bytes());
    parts.push_back(begin(*rank, bytes.first(size)));
    bytes = bytes.subspan(size);
  }
  return parts;
}

}  // namespace

RanksPageCopier::RanksPageCopier(std::vector<PageCopier*> ranks) : ranks_(std::move(ranks)) {
  ESP_CHECK(!ranks_.empty());
  for (const PageCopier* rank : ranks_) page_bytes_ += rank->page_bytes();
}

PageCopier::Transfer RanksPageCopier::remember(std::vector<Transfer> parts) {
  const std::lock_guard lock(mutex_);
  in_progress_.emplace(++num_begun_, std::move(parts));
  return num_begun_;
}

PageCopier::Transfer RanksPageCopier::begin_read(PageId page, std::span<std::byte> to) {
  return remember(begin_parts(ranks_, to, [&](PageCopier& rank, std::span<std::byte> part) {
    return rank.begin_read(page, part);
  }));
}

PageCopier::Transfer RanksPageCopier::begin_write(PageId page, std::span<const std::byte> from) {
  return remember(begin_parts(ranks_, from, [&](PageCopier& rank, std::span<const std::byte> part) {
    return rank.begin_write(page, part);
  }));
}

// All ranks' transfers end, whatever one of them returns.
Status RanksPageCopier::finish(Transfer transfer) {
  std::vector<Transfer> parts;
  {
    const std::lock_guard lock(mutex_);
    parts = std::move(in_progress_.extract(transfer).mapped());
  }
  Status first;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const Status status = ranks_[rank]->finish(parts[rank]);
    if (first.ok() && !status.ok()) first = status.with_context(fmt::format("rank {}", rank));
  }
  return first;
}

}  // namespace espalier
