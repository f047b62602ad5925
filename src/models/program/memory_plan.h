// Where the storages of a program lie in one block of memory: two share bytes where no operation
// needs both. Pure functions of plain values.
//
// Two placements are tried, and the smaller one is taken: the largest storage first, each as low as
// it fits; and in the order of their lifetimes from both ends of a block of the least size that any
// placement needs, which a chain of operations always fits into.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/program/gpu_passes.h"
#include "models/program/program.h"

namespace espalier::program {

struct MemoryPlan {
  std::vector<int64_t> offsets;  // of each storage, bytes; multiples of kStorageAlignment
  int64_t total_bytes = 0;
};

inline constexpr int64_t kStorageAlignment = 256;

// storage_bytes: of each storage; 0: it lies elsewhere. A storage is needed from the operation that
// writes the whole of it up to the last that reads it. The operations that an alternative stands
// for need all their storages together. What a selection selects from is needed as long as its
// result, so that an interpreter may let the result be the memory of the source where all rows are
// selected. The output section may run again, so what it reads is needed to the end, as are the
// states that a draft head reads when the program has run (kKeptStates).
MemoryPlan place_storages(const Program& program, std::span<const int64_t> storage_bytes,
                          std::span<const Alternative> alternatives);

}  // namespace espalier::program
