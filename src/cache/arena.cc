#include "cache/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace espalier {

namespace {
constexpr size_t kLine = 64;
constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kChunkMin = size_t{4} << 10, kChunkMax = size_t{64} << 20;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// The smallest of 16, 24, 32, 48 ... that holds `count`.
int32_t class_of(size_t count) {
  int32_t size_class = 0;
  for (size_t size = 16; size < count; ++size_class)
    size = size_class % 2 == 0 ? size / 2 * 3 : size / 3 * 4;
  return size_class;
}
size_t size_of(int32_t size_class) {
  return (size_class % 2 == 0 ? size_t{16} : size_t{24}) << (size_class / 2);
}

}  // namespace

void Unmap::operator()(std::byte* data) const {
  if (size_bytes >= kHuge) {
    munmap(data, round_up(size_bytes, kHuge));
  } else {
    std::free(data);
  }
}

Mapping map_zeroed(size_t size_bytes) {
  if (size_bytes < kHuge) {
    void* data = std::aligned_alloc(kLine, round_up(size_bytes, kLine));
    if (data == nullptr) throw std::bad_alloc();
    std::memset(data, 0, size_bytes);
    return Mapping(static_cast<std::byte*>(data), Unmap{size_bytes});
  }
  // What lies before and behind the aligned part is given back at once.
  const size_t size = round_up(size_bytes, kHuge);
  void* mapped = mmap(nullptr, size + kHuge, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(mapped);
  const size_t before =
      round_up(reinterpret_cast<uintptr_t>(begin), kHuge) - reinterpret_cast<uintptr_t>(begin);
  if (before > 0) munmap(begin, before);
  if (before < kHuge) munmap(begin + before + size, kHuge - before);
  madvise(begin + before, size, MADV_HUGEPAGE);
  return Mapping(begin + before, Unmap{size_bytes});
}

void advise_huge_pages(void* data, size_t size_bytes) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  const size_t begin = round_up(address, kHuge), end = (address + size_bytes) / kHuge * kHuge;
  if (begin < end)
    madvise(static_cast<std::byte*>(data) + (begin - address), end - begin, MADV_HUGEPAGE);
}

std::byte* Arena::take(size_t size_bytes) {
  size_bytes = round_up(size_bytes, kLine);
  if (chunks_.empty() || used_bytes_ + size_bytes > chunk_bytes_) {
    chunk_bytes_ = std::max(size_bytes, std::clamp(chunk_bytes_ * 2, kChunkMin, kChunkMax));
    chunks_.push_back(map_zeroed(chunk_bytes_));
    used_bytes_ = 0;
  }
  std::byte* piece = chunks_.back().get() + used_bytes_;
  used_bytes_ += size_bytes;
  return piece;
}

RunStore::Block RunStore::allocate(size_t count) {
  const int32_t size_class = class_of(count);
  int32_t*& next = free_[static_cast<size_t>(size_class)];
  if (next == nullptr)
    return {reinterpret_cast<int32_t*>(arena_.take(size_of(size_class) * sizeof(int32_t))),
            size_class};
  int32_t* const data = next;
  std::memcpy(static_cast<void*>(&next), data, sizeof(next));
  return {data, size_class};
}

void RunStore::free(Block block) {
  int32_t*& next = free_[static_cast<size_t>(block.size_class)];
  std::memcpy(block.data, static_cast<const void*>(&next), sizeof(next));
  next = block.data;
}

}  // namespace espalier
