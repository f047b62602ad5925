#include "base/memory_reserve.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace espalier {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Allocates pieces until the system refuses one, and keeps them.
std::vector<std::unique_ptr<char[]>> all_memory(size_t piece) {
  std::vector<std::unique_ptr<char[]>> held;
  held.reserve(1 << 16);
  try {
    while (held.size() < held.capacity()) held.emplace_back(new char[piece]);
  } catch (const std::bad_alloc&) {
  }
  return held;
}

bool can_allocate(size_t bytes) {
  try {
    return std::make_unique<char[]>(bytes) != nullptr;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// In a process of its own, whose memory is limited: 0 when the reserve is used by scopes alone, is
// known to be gone, and comes back.
int uses_reserve() {
  take_memory_reserve();
  const rlimit limit{1024 * kMiB, 1024 * kMiB};
  if (::setrlimit(RLIMIT_AS, &limit) != 0) return 1;
  auto held = all_memory(kMiB);
  if (can_allocate(2 * kMiB)) return 2;  // a request's work gets nothing of the reserve
  {
    const MemoryReserveScope scope;
    if (!can_allocate(2 * kMiB)) return 3;
  }
  auto rest = all_memory(kMiB);
  if (rest.empty() || restore_memory_reserve()) return 4;
  held.clear();
  rest.clear();
  if (!restore_memory_reserve()) return 5;
  return 0;
}

TEST(MemoryReserveTest, ServesScopesWhenTheSystemRefusesMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's shadow memory is beyond any limit";
#endif
  EXPECT_EXIT(std::_Exit(uses_reserve()), testing::ExitedWithCode(0), "");
}

TEST(MemoryReserveTest, IsWholeWhereNoneWasTaken) { EXPECT_TRUE(restore_memory_reserve()); }

}  // namespace
}  // namespace espalier
