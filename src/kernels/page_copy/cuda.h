// Copies of pages of keys and values to other pages, in all layers, for branches that are joined in
// the cache. Thread-safe; requirements of streams as kernels/cuda/stream.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/stream.h"
#include "seams/kv_view.h"

namespace espalier::kernels::cuda {

struct CopyPagesArgs {
  std::span<void* const> planes;  // host memory, each a plane in device memory
  int64_t page_bytes = 0;         // of one plane; a multiple of 16
  std::span<const PageId> from;   // host memory
  std::span<const PageId> to;     // [from.size()], none of them in `from` or twice
};
// Copies page from[i] of each plane to page to[i]. The spans are read before it returns.
Status copy_pages(const CopyPagesArgs& args, const LaunchOptions& launch);

// Rows that lie at one pitch, of many pages at once.
struct CopyRowsArgs {
  struct Rows {
    const std::byte* from = nullptr;  // multiples of 16
    std::byte* to = nullptr;
  };
  std::span<const Rows> copies;          // host memory; none writes what another one reads
  int64_t from_pitch = 0, to_pitch = 0;  // bytes from one row of a copy to the next
  int64_t row_bytes = 0;                 // all three multiples of 16
  int64_t num_rows = 0;                  // of each copy
};
// Copies all rows, on few multiprocessors, so that kernels beside it keep the others: for pages
// that lie scattered, of which the DMA units would move one after the other. The source may be
// another GPU's memory. The span is read before it returns.
Status copy_rows(const CopyRowsArgs& args, const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
