#include "engine/scheduler/heap_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> num_allocations{0};

void* counted(void* memory) {
  ++num_allocations;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

int64_t espalier::num_heap_allocations() { return num_allocations; }

void* operator new(size_t size) { return counted(std::malloc(size)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++num_allocations;
  return std::malloc(size);
}
void* operator new(size_t size, std::align_val_t alignment) {
  const auto align = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(align, (size + align - 1) / align * align));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
