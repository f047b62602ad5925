#include "base/heap_count.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> num_allocations{0};
constinit thread_local espalier::HeapUse of_this_thread;

void* counted(void* memory) noexcept {
  if (memory == nullptr) return nullptr;
  ++num_allocations;
  const auto bytes = static_cast<int64_t>(malloc_usable_size(memory));
  espalier::HeapUse& use = of_this_thread;
  use.total += bytes;
  use.now += bytes;
  use.most = std::max(use.most, use.now);
  return memory;
}

void* given(size_t size) noexcept { return counted(std::malloc(size)); }
void* given(size_t size, std::align_val_t alignment) noexcept {
  const auto align = static_cast<size_t>(alignment);
  return counted(std::aligned_alloc(align, (size + align - 1) / align * align));
}
void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void take_back(void* memory) noexcept {
  if (memory == nullptr) return;
  of_this_thread.now -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

int64_t espalier::num_heap_allocations() { return num_allocations; }
espalier::HeapUse& espalier::heap_use_of_this_thread() { return of_this_thread; }

// The forms for arrays, and those that do not throw where they are not here, call these.
void* operator new(size_t size) { return or_throw(given(size)); }
void* operator new(size_t size, const std::nothrow_t&) noexcept { return given(size); }
void* operator new(size_t size, std::align_val_t alignment) {
  return or_throw(given(size, alignment));
}
void operator delete(void* memory) noexcept { take_back(memory); }
void operator delete(void* memory, size_t) noexcept { take_back(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { take_back(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { take_back(memory); }
