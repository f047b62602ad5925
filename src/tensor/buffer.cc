#include "tensor/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace espalier {
namespace {

constexpr size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

Result<Buffer> Buffer::allocate(size_t size_bytes) {
  Buffer buffer;
  if (size_bytes == 0) return buffer;
  const auto no_memory = [&] {
    return fail(error(StatusCode::kResourceExhausted,
                      "cannot allocate {} MiB of memory: free some, or use a smaller model, cache "
                      "or batch",
                      (size_bytes >> 20) + 1));
  };
  if (size_bytes > (size_t{1} << 46)) return no_memory();  // beyond any system; sums stay in range
  if (size_bytes < kHugeBytes) {
    const size_t rounded = round_up(size_bytes, kAlignment);
    buffer.data_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
    if (buffer.data_ == nullptr) return no_memory();
    std::memset(buffer.data_, 0, rounded);
  } else {
    // One huge page more than requested, so that a 2 MiB boundary lies within.
    const size_t mapping_bytes = round_up(size_bytes, kHugeBytes) + kHugeBytes;
    void* mapping = mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) return no_memory();
    buffer.mapping_ = mapping;
    buffer.mapping_bytes_ = mapping_bytes;
    const auto address = reinterpret_cast<uintptr_t>(mapping);
    buffer.data_ = static_cast<std::byte*>(mapping) + (round_up(address, kHugeBytes) - address);
    // Only advice: small pages work too.
    (void)madvise(buffer.data_, round_up(size_bytes, kHugeBytes), MADV_HUGEPAGE);
  }
  buffer.size_bytes_ = size_bytes;
  return buffer;
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_bytes_(std::exchange(other.mapping_bytes_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  return *this;
}

Buffer::~Buffer() {
  if (mapping_ != nullptr) {
    munmap(mapping_, mapping_bytes_);
  } else {
    std::free(data_);
  }
}

}  // namespace espalier
