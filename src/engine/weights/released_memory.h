// Which parts of an engine's memory are given back to the system, by the names that SGLang gives
// them (/release_memory_occupation).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "models/releasable_memory.h"

namespace espalier {

enum class MemoryPart { kKvCache, kWeights };
inline constexpr int kNumMemoryParts = 2;
std::string_view name_of(MemoryPart part);  // "kv_cache", "weights"
std::optional<MemoryPart> parse_memory_part(std::string_view name);

struct MemoryReport {
  std::vector<MemoryPart> released;  // all that are, in the order of MemoryPart
  int64_t released_bytes = 0;        // of them
  double seconds = 0;                // of the call, while nothing ran
};

// Not thread-safe. Borrows the memory, which outlives it.
class ReleasedMemory {
 public:
  // Null: that part stays. unsupported: why, where any is null.
  ReleasedMemory(ReleasableMemory* kv_cache, ReleasableMemory* weights, Status unsupported)
      : memory_{kv_cache, weights}, unsupported_(std::move(unsupported)) {}

  // kUnimplemented where one of them stays.
  Status check(std::span<const MemoryPart> parts) const;

  // Parts that are so already stay as they are. Weights come first, for they are the ones that can
  // fail; after a failure the others have not been touched.
  // REQUIRES: no step runs, and check() of what is released.
  Status release(std::span<const MemoryPart> parts);
  Status restore(std::span<const MemoryPart> parts);

  bool is_released(MemoryPart part) const { return bytes_[index(part)].has_value(); }
  bool any() const {
    return is_released(MemoryPart::kKvCache) || is_released(MemoryPart::kWeights);
  }
  MemoryReport report() const;
  // With which requests are refused; ok where nothing is released.
  Status refusal() const;

 private:
  static size_t index(MemoryPart part) { return static_cast<size_t>(part); }
  std::string names() const;  // of those that are released

  const std::array<ReleasableMemory*, kNumMemoryParts> memory_;
  const Status unsupported_;
  std::array<std::optional<int64_t>, kNumMemoryParts> bytes_;  // of what is released
};

}  // namespace espalier
