#include "base/memory_reserve.h"

#include <malloc.h>
#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <new>

namespace espalier {
namespace {

// A step of the engine allocates a few MiB at most; prompts' log-probabilities are the largest
// part.
constexpr size_t kReserveBytes = size_t{64} << 20;

std::atomic<void*> reserve{nullptr};
std::atomic<bool> installed{false};
constinit thread_local int scopes_of_this_thread = 0;

void* map_reserve() {
  void* const memory = ::mmap(nullptr, kReserveBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

// The new-handler: returning repeats the allocation.
void on_refusal() {
  void* const held = scopes_of_this_thread > 0 ? reserve.exchange(nullptr) : nullptr;
  if (held == nullptr) throw std::bad_alloc();
  ::munmap(held, kReserveBytes);
}

}  // namespace

void take_memory_reserve() {
  if (installed.exchange(true)) return;
  reserve = map_reserve();
  std::set_new_handler(on_refusal);
}

bool restore_memory_reserve() {
  if (!installed.load(std::memory_order_relaxed) || reserve.load() != nullptr) return true;
  void* memory = map_reserve();
  if (memory == nullptr) {
    ::malloc_trim(0);  // what was freed and is kept for later allocations counts as used
    memory = map_reserve();
  }
  if (memory == nullptr) return false;
  void* expected = nullptr;
  if (!reserve.compare_exchange_strong(expected, memory)) ::munmap(memory, kReserveBytes);
  return true;
}

MemoryReserveScope::MemoryReserveScope() { ++scopes_of_this_thread; }
MemoryReserveScope::~MemoryReserveScope() { --scopes_of_this_thread; }

}  // namespace espalier
