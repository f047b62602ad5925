// Copies of pages of keys and values to other pages, in all layers, for branches that are joined in
// the cache. Thread-safe; requirements of streams as kernels/cuda/stream.h.
#pragma once

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

}  // namespace espalier::kernels::cuda
