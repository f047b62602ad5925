// Random takes and returns against an array of marks.
#include "models/cuda/free_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "kernels/cpu/test_support.h"

namespace espalier {
namespace {

struct TakenRange {
  int64_t begin = 0, size = 0;
};

TEST(FreeRanges, AgreesWithMarks) {
  const uint64_t seed = kernels::test::fresh_seed();
  SCOPED_TRACE("ESPALIER_TEST_SEED=" + std::to_string(seed));
  Rng rng(seed);
  constexpr int64_t kSize = 200;
  FreeRanges ranges(kSize);
  std::vector<bool> taken(kSize, false);
  std::vector<TakenRange> all;
  const auto mark = [&](const TakenRange& range, bool on) {
    for (int64_t i = range.begin; i < range.begin + range.size; ++i) {
      ASSERT_NE(taken[static_cast<size_t>(i)], on);
      taken[static_cast<size_t>(i)] = on;
    }
  };
  for (int step = 0; step < 3000; ++step) {
    if (all.empty() || rng.below(2) == 0) {
      const auto size = static_cast<int64_t>(1 + rng.below(40));
      int64_t run = 0, longest = 0;
      for (const bool on : taken) longest = std::max(longest, run = on ? 0 : run + 1);
      ASSERT_EQ(ranges.largest(), longest);
      const auto begin = ranges.take(size);
      ASSERT_EQ(begin.has_value(), size <= longest);
      if (!begin) continue;
      all.push_back({*begin, size});
      mark(all.back(), true);
    } else {
      std::swap(all[rng.below(all.size())], all.back());
      ranges.give_back(all.back().begin, all.back().size);
      mark(all.back(), false);
      all.pop_back();
    }
    ranges.check_invariants();
    ASSERT_EQ(ranges.num_free(), std::ranges::count(taken, false));
  }
  for (const TakenRange& range : all) ranges.give_back(range.begin, range.size);
  EXPECT_EQ(ranges.largest(), kSize);
}

TEST(FreeRanges, OfNothingHasNothing) {
  FreeRanges ranges(0);
  EXPECT_FALSE(ranges.take(1));
  EXPECT_EQ(ranges.largest(), 0);
}

}  // namespace
}  // namespace espalier
