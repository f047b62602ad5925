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

// Some ranks have no rows. The default ways of Collective, by sums of all rows, give the same.
class BySums final : public Collective {
 public:
  explicit BySums(Collective& collective) : collective_(collective) {}
  Ranks ranks() const override { return collective_.ranks(); }
  void barrier() override { collective_.barrier(); }
  void all_reduce(std::span<float> data) override { collective_.all_reduce(data); }
  void all_gather(const Gather& gather) override { collective_.all_gather(gather); }

 private:
  Collective& collective_;
};

TEST(ThreadCollective, RowsOfRanksAreGatheredAndTheirSumsGivenBack) {
  constexpr int64_t kColumns = 700;
  const std::vector<std::vector<int64_t>> cases = {{3, 0, 5}, {0, 0, 1}, {20, 7, 0}, {0, 0, 0}};
  for (const std::vector<int64_t>& counts : cases) {
    const int64_t rows = counts[0] + counts[1] + counts[2];
    const auto value = [](int64_t rank, int64_t i) {
      return static_cast<float>(i % 97) + 0.1f * static_cast<float>(rank);
    };
    on_ranks(3, [&](Collective& threads) {
      BySums by_sums(threads);
      for (Collective* const collective : {&threads, static_cast<Collective*>(&by_sums)}) {
        const auto rank = static_cast<size_t>(collective->ranks().rank);
        int64_t before = 0;
        for (size_t i = 0; i < rank; ++i) before += counts[i] * kColumns;
        std::vector<float> own(static_cast<size_t>(counts[rank] * kColumns));
        std::vector<float> all(static_cast<size_t>(rows * kColumns), -1.0f);
        for (size_t i = 0; i < own.size(); ++i)
          own[i] = static_cast<float>(before + static_cast<int64_t>(i));
        const Collective::RankParts parts{
            .own = own.data(), .all = all.data(), .columns = kColumns, .counts = counts};
        collective->gather_rows(parts);
        for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], static_cast<float>(i));

        for (size_t i = 0; i < all.size(); ++i)
          all[i] = value(static_cast<int64_t>(rank), static_cast<int64_t>(i));
        collective->scatter_sums(parts);
        for (size_t i = 0; i < own.size(); ++i) {
          const int64_t at = before + static_cast<int64_t>(i);
          ASSERT_EQ(own[i], value(0, at) + value(1, at) + value(2, at));
        }
      }
    });
  }
}

}  // namespace
}  // namespace espalier
