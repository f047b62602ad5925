// A reserve of memory for threads whose allocations must not fail. When the system refuses memory to
// such a thread, the reserve is returned to the system and the allocation is repeated. A thread
// without a scope gets std::bad_alloc at once: the work of one request, which ends alone.
//
// Thread-safe. The reserve and the new-handler belong to the process.
#pragma once

namespace espalier {

// Takes the reserve (64 MiB of address space, no resident memory) and installs the new-handler.
// Called once, at start; without it a scope below changes nothing.
void take_memory_reserve();

// Whether the reserve is there; tries to take it again when it was used. While this is false no new
// work should begin. True where there never was a reserve. A system call only when it was used.
bool restore_memory_reserve();

// The calling thread uses the reserve while the scope lasts. Scopes nest.
class MemoryReserveScope {
 public:
  MemoryReserveScope();
  ~MemoryReserveScope();
  MemoryReserveScope(const MemoryReserveScope&) = delete;
  MemoryReserveScope& operator=(const MemoryReserveScope&) = delete;
};

}  // namespace espalier
