// The memory of the radix tree's nodes, runs and look-up table: a few large mappings with huge
// pages. With heap memory a walk down a large tree costs as many TLB misses as cache misses.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace espalier {

// Frees what map_zeroed() made.
struct Unmap {
  size_t size_bytes = 0;
  void operator()(std::byte* data) const;
};
using Mapping = std::unique_ptr<std::byte[], Unmap>;

// `size_bytes` of zeros, at a 64-byte boundary; from 2 MiB on at a 2 MiB boundary, in huge pages
// where the system has them, and costing memory only where written.
Mapping map_zeroed(size_t size_bytes);

// Requests huge pages for the whole huge pages within this memory. The caller owns it and has not
// written to it yet.
void advise_huge_pages(void* data, size_t size_bytes);

// Allocates zeroed memory at 64-byte boundaries, which lives as long as the arena. Chunks grow from
// 4 KiB to 64 MiB, so a small tree needs little memory. Not thread-safe.
class Arena {
 public:
  std::byte* take(size_t size_bytes);

 private:
  std::vector<Mapping> chunks_;
  size_t chunk_bytes_ = 0, used_bytes_ = 0;  // of the last chunk
};

// Blocks of int32 of any length, in an arena. A freed block is reused by the next allocation of its
// size class. Lengths are rounded up to 16, 24, 32, 48, 64, 96 ..., so at most half of a block is
// unused. Not thread-safe.
class RunStore {
 public:
  struct Block {
    int32_t* data = nullptr;
    int32_t size_class = 0;
  };
  Block allocate(size_t count);
  void free(Block block);

 private:
  static constexpr size_t kNumClasses = 56;
  Arena arena_;
  std::array<int32_t*, kNumClasses> free_{};  // each free block begins with the next one's address
};

}  // namespace espalier
