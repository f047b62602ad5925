// copy_pages: pages of keys and values to other pages, in all layers. One block for each page and
// plane; the lists of pages and planes are kernel parameters, so nothing is staged in memory.
// Roof: memory, twice the bytes of the pages: 512 tokens of an 8 B shape are 128 MiB, 31 us on an
// H200.
//
// copy_rows: rows of many pages, from another GPU or the same. A few blocks take the rows in turn;
// each thread has kUnroll loads of 16 bytes on their way, 0.8 MB in all, which covers the 2 us that
// a load over NVLink takes. Roof: NVLink, 396 GB/s between two H200s.
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

// Of copy_rows.
constexpr int kRowBlocks = 48, kRowThreads = 256, kUnroll = 4;
constexpr int kCopies = 192;  // of one launch

struct RowCopies {
  CopyRowsArgs::Rows rows[kCopies];
};

__global__ void copy_rows_kernel(const __grid_constant__ RowCopies copies, int32_t num_copies,
                                 int64_t from_pitch, int64_t to_pitch, int64_t row_words,
                                 int64_t num_rows) {
  wait_for_previous();
  const int64_t num_items = num_copies * num_rows;
  for (int64_t item = blockIdx.x; item < num_items; item += gridDim.x) {
    const CopyRowsArgs::Rows rows = copies.rows[item / num_rows];
    const int64_t row = item % num_rows;
    const auto* const from = reinterpret_cast<const uint4*>(rows.from + row * from_pitch);
    auto* const to = reinterpret_cast<uint4*>(rows.to + row * to_pitch);
    for (int64_t at = threadIdx.x; at < row_words; at += kRowThreads * kUnroll) {
      uint4 words[kUnroll];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i)
        if (at + i * kRowThreads < row_words) words[i] = from[at + i * kRowThreads];
#pragma unroll
      for (int i = 0; i < kUnroll; ++i)
        if (at + i * kRowThreads < row_words) to[at + i * kRowThreads] = words[i];
    }
  }
}

}  // namespace

Status copy_rows(const CopyRowsArgs& args, const LaunchOptions& launch) {
  if (args.row_bytes <= 0 || (args.row_bytes | args.from_pitch | args.to_pitch) % 16 != 0)
    return invalid_argument("copy_rows: rows of {} bytes, {} and {} apart, are no multiples of 16",
                            args.row_bytes, args.from_pitch, args.to_pitch);
  for (size_t at = 0; at < args.copies.size(); at += kCopies) {
    const size_t count = std::min<size_t>(kCopies, args.copies.size() - at);
    RowCopies copies{};
    std::copy_n(args.copies.begin() + at, count, copies.rows);
    ESP_RETURN_IF_ERROR(launch_kernel("copy rows", copy_rows_kernel, dim3(kRowBlocks), kRowThreads,
                                      0, launch, copies, static_cast<int32_t>(count),
                                      args.from_pitch, args.to_pitch, args.row_bytes / 16,
                                      args.num_rows));
  }
  return {};
}

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
