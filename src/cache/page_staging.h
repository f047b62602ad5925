// What stagings of the host's and of a GPU's memory share: which blocks are free, and which copies
// of rows move pages between the cache's planes and a block (seams/staged_pages.h has the layout).
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"
#include "cache/page_copier.h"
#include "seams/staged_pages.h"

namespace espalier {

// Bytes in front of the first block: the nonce, and what keeps blocks aligned.
inline constexpr int64_t kStagingHeadBytes = 4096;

// Blocks of equal size behind the head of a staging memory. Thread-safe.
class StagingBlocks {
 public:
  // `bytes`: of the memory; `block_bytes_wanted`: of a block, unless a page is larger.
  StagingBlocks(int64_t bytes, int64_t block_bytes_wanted, int64_t page_bytes);

  int32_t block_pages() const { return block_pages_; }
  // Blocks for as many leading ones of `num_pages` pages as there are free ones for.
  std::vector<StagedPart> take(int32_t num_pages);
  void give_back(std::span<const StagedPart> parts);  // REQUIRES that they were taken
  int32_t num_free() const;

 private:
  const int32_t block_pages_;
  const int64_t block_bytes_;
  const int32_t num_blocks_;
  mutable std::mutex mutex_;
  std::vector<int64_t> free_;
};

int32_t num_planes(std::span<const PlaneRun> runs);

int64_t bytes_of_page(std::span<const PlaneRun> runs);

// kInvalidArgument unless the parts lie in a staging memory of `bytes`, whose pages have
// page_bytes, and have as many pages as `num_pages`.
Status check_parts(std::span<const StagedPart> parts, size_t num_pages, int64_t page_bytes,
                   int64_t bytes);

// Rows of the cache's planes and of a block: copied one way or the other.
struct StagedRows {
  std::byte* pages = nullptr;  // in a plane of the cache
  int64_t pages_pitch = 0;     // bytes from one row to the next
  int64_t staged = 0;          // bytes from the start of the staging memory
  int64_t staged_pitch = 0;
  int64_t row_bytes = 0;   // of some pages that are neighbours
  int64_t page_bytes = 0;  // of one of them
  int64_t num_rows = 0;    // planes
};

// The fewest copies that move `planes` of the pages: neighbours in the cache go together, as do
// planes at equal distances. REQUIRES part.num_pages == pages.size().
std::vector<StagedRows> staged_rows(std::span<const PlaneRun> runs, const StagedPart& part,
                                    PlaneRange planes, std::span<const PageId> pages);

// Calls copy(rows) -> Status for the copies of all parts, until one fails.
template <typename Copy>
Status copy_parts(std::span<const PlaneRun> runs, std::span<const StagedPart> parts,
                  PlaneRange planes, std::span<const PageId> pages, const Copy& copy) {
  for (const StagedPart& part : parts) {
    const auto count = static_cast<size_t>(part.num_pages);
    for (const StagedRows& rows : staged_rows(runs, part, planes, pages.first(count)))
      ESP_RETURN_IF_ERROR(copy(rows));
    pages = pages.subspan(count);
  }
  return {};
}

}  // namespace espalier
