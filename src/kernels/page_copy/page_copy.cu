// copy_pages: pages of keys and values to other pages, in all layers. One block for each page and
// plane; the lists of pages and planes are kernel parameters, so nothing is staged in memory.
// Roof: memory, twice the bytes of the pages: 512 tokens of an 8 B shape are 128 MiB, 31 us on an
// H200.
#include <algorithm>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/page_copy/cuda.h"

namespace espalier::kernels::cuda {
namespace {

constexpr int kCopyThreads = 128;
// Limits of one launch, whose parameters may take 4 KiB.
constexpr int kPages = 256, kPlanes = 128;

struct Copies {
  void* planes[kPlanes];
  PageId from[kPages], to[kPages];
};

__global__ void copy_kernel(const __grid_constant__ Copies copies, int64_t page_words) {
  wait_for_previous();
  auto* const plane = static_cast<uint4*>(copies.planes[blockIdx.y]);
  const uint4* const from = plane + copies.from[blockIdx.x] * page_words;
  uint4* const to = plane + copies.to[blockIdx.x] * page_words;
  for (int64_t i = threadIdx.x; i < page_words; i += kCopyThreads) to[i] = from[i];
}

}  // namespace

Status copy_pages(const CopyPagesArgs& args, const LaunchOptions& launch) {
  if (args.from.size() != args.to.size() || args.page_bytes <= 0 || args.page_bytes % 16 != 0)
    return invalid_argument(
        "copy_pages: {} pages to {} of {} bytes, but there must be as many, of a multiple of 16",
        args.from.size(), args.to.size(), args.page_bytes);
  for (size_t page = 0; page < args.from.size(); page += kPages)
    for (size_t plane = 0; plane < args.planes.size(); plane += kPlanes) {
      const size_t pages = std::min<size_t>(kPages, args.from.size() - page);
      const size_t planes = std::min<size_t>(kPlanes, args.planes.size() - plane);
      Copies copies{};
      std::copy_n(args.planes.begin() + plane, planes, copies.planes);
      std::copy_n(args.from.begin() + page, pages, copies.from);
      std::copy_n(args.to.begin() + page, pages, copies.to);
      ESP_RETURN_IF_ERROR(
          launch_kernel("copy pages", copy_kernel,
                        dim3(static_cast<unsigned>(pages), static_cast<unsigned>(planes)),
                        kCopyThreads, 0, launch, copies, args.page_bytes / 16));
    }
  return {};
}

}  // namespace espalier::kernels::cuda
