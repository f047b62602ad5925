#include "tensor/rank_threads.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace espalier {
namespace {

TEST(RankThreads, EachRunCallsEveryRankOnItsOwnThread) {
  for (const int32_t num_ranks : {1, 2, 5}) {
    const auto count = static_cast<size_t>(num_ranks);
    std::vector<std::thread::id> started(count), first(count);
    std::vector<int> calls(count);
    {
      RankThreads threads(num_ranks, [&](int32_t rank) {
        started[static_cast<size_t>(rank)] = std::this_thread::get_id();
      });
      EXPECT_EQ(threads.num_ranks(), num_ranks);
      for (int run = 0; run < 200; ++run) {
        threads.run([&](int32_t rank) {
          const auto i = static_cast<size_t>(rank);
          ++calls[i];
          if (run == 0) first[i] = std::this_thread::get_id();
          EXPECT_EQ(first[i], std::this_thread::get_id());
        });
      }
    }
    EXPECT_EQ(calls, std::vector<int>(count, 200));
    EXPECT_EQ(first[0], std::this_thread::get_id());
    for (size_t i = 1; i < count; ++i) EXPECT_EQ(first[i], started[i]);
  }
}

// Ranks meet inside a run: they do not run one after the other.
TEST(RankThreads, RanksRunAtTheSameTime) {
  RankThreads threads(3);
  for (int run = 0; run < 50; ++run) {
    std::atomic<int> arrived{0};
    threads.run([&](int32_t) {
      ++arrived;
      while (arrived < 3) std::this_thread::yield();
    });
    EXPECT_EQ(arrived, 3);
  }
}

TEST(RankThreads, ThreadsThatNeverRanEnd) {
  for (int i = 0; i < 20; ++i) RankThreads threads(4);
}

}  // namespace
}  // namespace espalier
