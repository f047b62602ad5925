#include "cache/page_staging.h"

#include <algorithm>

#include "base/check.h"

namespace espalier {

StagingBlocks::StagingBlocks(int64_t bytes, int64_t block_bytes_wanted, int64_t page_bytes)
    : block_pages_(static_cast<int32_t>(std::max<int64_t>(1, block_bytes_wanted / page_bytes))),
      block_bytes_(block_pages_ * page_bytes),
      num_blocks_(
          static_cast<int32_t>(std::max<int64_t>(0, bytes - kStagingHeadBytes) / block_bytes_)) {
  for (int32_t i = num_blocks_; i-- > 0;) free_.push_back(kStagingHeadBytes + i * block_bytes_);
}

std::vector<StagedPart> StagingBlocks::take(int32_t num_pages) {
  std::vector<StagedPart> parts;
  const std::lock_guard lock(mutex_);
  for (; num_pages > 0 && !free_.empty(); num_pages -= block_pages_) {
    const int32_t count = std::min(num_pages, block_pages_);
    parts.push_back({.block = free_.back(), .block_pages = count, .num_pages = count});
    free_.pop_back();
  }
  return parts;
}

void StagingBlocks::give_back(std::span<const StagedPart> parts) {
  const std::lock_guard lock(mutex_);
  for (const StagedPart& part : parts) free_.push_back(part.block);
  ESP_CHECK(std::ssize(free_) <= num_blocks_, "a block was given back twice");
}

int32_t StagingBlocks::num_free() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int32_t>(free_.size());
}

int32_t num_planes(std::span<const PlaneRun> runs) {
  int64_t count = 0;
  for (const PlaneRun& run : runs) count += run.num_planes;
  return static_cast<int32_t>(count);
}

int64_t bytes_of_page(std::span<const PlaneRun> runs) {
  int64_t bytes = 0;
  for (const PlaneRun& run : runs) bytes += run.bytes();
  return bytes;
}

Status check_parts(std::span<const StagedPart> parts, size_t num_pages, int64_t page_bytes,
                   int64_t bytes) {
  const auto lies_within = [&](const StagedPart& part) {
    return part.block >= kStagingHeadBytes && part.block <= bytes && part.block_pages > 0 &&
           part.block_pages <= (bytes - part.block) / page_bytes && part.first >= 0 &&
           part.num_pages > 0 && part.num_pages <= part.block_pages - part.first;
  };
  size_t count = 0;
  for (const StagedPart& part : parts) {
    if (!lies_within(part)) return invalid_argument("staged pages lie beyond the staging memory");
    count += static_cast<size_t>(part.num_pages);
  }
  if (count != num_pages)
    return invalid_argument("{} staged pages for {} pages of the prompt", count, num_pages);
  return {};
}

std::vector<StagedRows> staged_rows(std::span<const PlaneRun> runs, const StagedPart& part,
                                    PlaneRange planes, std::span<const PageId> pages) {
  ESP_CHECK(std::ssize(pages) == part.num_pages);
  std::vector<StagedRows> rows;
  int64_t before = 0;  // bytes of a page in the planes of earlier runs
  int64_t plane = 0;   // the first of the run
  for (const PlaneRun& run : runs) {
    const int64_t begin = std::clamp<int64_t>(planes.begin - plane, 0, run.num_planes);
    const int64_t end = std::clamp<int64_t>(planes.end - plane, begin, run.num_planes);
    const int64_t pitch = part.block_pages * run.page_bytes;
    for (size_t first = 0, last = 0; begin < end && first < pages.size(); first = last) {
      for (last = first + 1; last < pages.size() && pages[last] == pages[last - 1] + 1;) ++last;
      rows.push_back({.pages = run.page_at(pages[first]) + begin * run.pitch,
                      .pages_pitch = run.pitch,
                      .staged = part.block + part.block_pages * before + begin * pitch +
                                (part.first + static_cast<int64_t>(first)) * run.page_bytes,
                      .staged_pitch = pitch,
                      .row_bytes = static_cast<int64_t>(last - first) * run.page_bytes,
                      .page_bytes = run.page_bytes,
                      .num_rows = end - begin});
    }
    before += run.bytes();
    plane += run.num_planes;
  }
  return rows;
}

}  // namespace espalier
