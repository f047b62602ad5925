#include "tiers/known_pages.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "tiers/test_pages.h"

namespace espalier {
namespace {

TimePoint at(int64_t n) { return TimePoint(Duration(n)); }

// What is found is what a map has; what is missing gave way to pages that were seen later.
TEST(KnownPages, EqualsAMapOfWhatFits) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    KnownPages known(64);
    std::map<PageName, TimePoint> map;
    int64_t num_found = 0;
    for (int64_t step = 1; step < 3000; ++step) {
      const PageName name = test_page_name(rng.below(100));
      if (rng.below(3) > 0) {
        known.add(name, at(step));
        map[name] = at(step);
        ASSERT_EQ(known.find(name), at(step));
      } else if (rng.below(2) == 0) {
        known.remove(name);
        map.erase(name);
        ASSERT_FALSE(known.find(name));
      }
      const PageName other = test_page_name(rng.below(100));
      if (const auto seen = known.find(other)) {
        ++num_found;
        ASSERT_EQ(*seen, map.at(other));
      }
    }
    EXPECT_GT(num_found, 500);
    known.clear();
    for (const auto& [name, seen] : map) ASSERT_FALSE(known.find(name));
  }
}

}  // namespace
}  // namespace espalier
