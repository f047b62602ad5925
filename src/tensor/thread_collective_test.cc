#include "tensor/thread_collective.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "base/rng.h"

namespace espalier {
namespace {

// Runs fn(collective) on a thread for each rank, every other one with a pool of two threads.
template <typename Fn>
void on_ranks(int32_t num_ranks, const Fn& fn) {
  std::vector<std::unique_ptr<WorkPool>> pools;
  std::vector<WorkPool*> of_ranks;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    pools.push_back(rank % 2 == 0 ? std::make_unique<WorkPool>(2) : nullptr);
    of_ranks.push_back(pools.back().get());
  }
  ThreadCollectives group(of_ranks);
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&group, &fn, rank] { fn(group.rank(rank)); });
  }
}

TEST(ThreadCollective, SumsInTheOrderOfRanksOnAll) {
  for (const int32_t num_ranks : {1, 2, 3, 8}) {
    for (const size_t size : {size_t{1}, size_t{7}, size_t{5000}, size_t{40000}}) {
      Rng rng(size);
      std::vector<std::vector<float>> data(static_cast<size_t>(num_ranks));
      for (auto& of_rank : data) {
        for (size_t i = 0; i < size; ++i) {
          of_rank.push_back(static_cast<float>(rng.uniform() - 0.5) * (i % 3 == 0 ? 1e6f : 1.0f));
        }
      }
      std::vector<float> want = data[0];
      for (size_t rank = 1; rank < data.size(); ++rank) {
        for (size_t i = 0; i < size; ++i) want[i] += data[rank][i];
      }
      on_ranks(num_ranks, [&](Collective& collective) {
        collective.all_reduce(data[static_cast<size_t>(collective.ranks().rank)]);
      });
      for (const auto& of_rank : data) {
        EXPECT_EQ(std::memcmp(of_rank.data(), want.data(), size * sizeof(float)), 0);
      }
    }
  }
}

TEST(ThreadCollective, GathersPartsOfRows) {
  constexpr int64_t kRows = 3, kColumns = 5, kGap = 2;
  const int32_t num_ranks = 4;
  std::vector<std::vector<float>> outs(num_ranks, std::vector<float>(kRows * 21, -1.0f));
  on_ranks(num_ranks, [&](Collective& collective) {
    const int32_t rank = collective.ranks().rank;
    std::vector<float> part(kRows * (kColumns + kGap), -2.0f);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t c = 0; c < kColumns; ++c) {
        part[static_cast<size_t>(row * (kColumns + kGap) + c)] =
            static_cast<float>(100 * row + rank * kColumns + c);
      }
    }
    collective.all_gather({.part = part.data(),
                           .part_stride = kColumns + kGap,
                           .rows = kRows,
                           .columns = kColumns,
                           .out = outs[static_cast<size_t>(rank)].data(),
                           .out_stride = 21});
  });
  for (const auto& out : outs) {
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t c = 0; c < 20; ++c)
        EXPECT_EQ(out[row * 21 + c], static_cast<float>(100 * row + c));
      EXPECT_EQ(out[row * 21 + 20], -1.0f);  // behind the parts nothing is written
    }
  }
}

// Calls of different kinds and sizes, one after the other: no rank overtakes another.
TEST(ThreadCollective, CallsDoNotOvertakeEachOther) {
  const int32_t num_ranks = 3;
  on_ranks(num_ranks, [&](Collective& collective) {
    for (int round = 0; round < 2000; ++round) {
      std::vector<float> data(static_cast<size_t>(round % 5 + 1), static_cast<float>(round));
      collective.all_reduce(data);
      for (const float value : data) ASSERT_EQ(value, static_cast<float>(3 * round));
      const float own = static_cast<float>(round + collective.ranks().rank);
      float out[3];
      collective.all_gather(
          {.part = &own, .part_stride = 1, .rows = 1, .columns = 1, .out = out, .out_stride = 3});
      for (int rank = 0; rank < num_ranks; ++rank) {
        ASSERT_EQ(out[rank], static_cast<float>(round + rank));
      }
    }
  });
}

}  // namespace
}  // namespace espalier
