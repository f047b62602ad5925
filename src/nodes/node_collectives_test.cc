// Ranks of several nodes beside as many threads of one process: the same bits.
#include "nodes/node_collectives.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "base/rng.h"
#include "nodes/test_nodes.h"

namespace espalier::nodes {
namespace {

constexpr int64_t kSizes[] = {1, 7, 4096, 300'001};
constexpr int64_t kRows = 5, kColumns = 33;

struct Outputs {
  std::vector<std::vector<float>> sums;
  std::vector<float> gathered = std::vector<float>(kRows * 8 * kColumns);
};

// Numbers of every size, so that the order of sums shows in the bits.
float number(Rng& rng) {
  const auto bits = rng();
  const float sign = (bits & 1) != 0 ? 1.0f : -1.0f;
  return sign *
         std::ldexp(static_cast<float>(bits >> 40) * 0x1p-24f, static_cast<int>(bits >> 1 & 15));
}

Outputs run_rank(Collective& collective) {
  Outputs out;
  const auto rank = static_cast<uint64_t>(collective.ranks().rank);
  Rng rng(17 + rank);
  for (const int64_t size : kSizes) {
    std::vector<float>& data = out.sums.emplace_back(static_cast<size_t>(size));
    for (float& value : data) value = number(rng);
    collective.all_reduce(data);
    collective.barrier();
  }
  std::vector<float> part(kRows * (kColumns + 3));
  for (float& value : part) value = number(rng);
  collective.all_gather({.part = part.data(),
                         .part_stride = kColumns + 3,
                         .rows = kRows,
                         .columns = kColumns,
                         .out = out.gathered.data(),
                         .out_stride = 8 * kColumns});
  return out;
}

std::vector<Outputs> run_all(const std::vector<RankGroup*>& groups) {
  std::vector<Outputs> out;
  for (RankGroup* group : groups) out.resize(out.size() + static_cast<size_t>(group->size()));
  std::vector<std::thread> threads;
  size_t next = 0;
  for (RankGroup* group : groups)
    for (int32_t i = 0; i < group->size(); ++i, ++next)
      threads.emplace_back([&, group, i, next] { out[next] = run_rank(group->rank(i)); });
  for (std::thread& thread : threads) thread.join();
  return out;
}

TEST(NodeCollectives, HaveTheBitsOfOneProcess) {
  for (const auto& [num_nodes, ranks_here] : {std::pair{2, 1}, {2, 2}, {3, 1}, {4, 2}}) {
    SCOPED_TRACE(testing::Message() << num_nodes << " nodes of " << ranks_here);
    const auto nodes = join_nodes(num_nodes);
    std::vector<std::unique_ptr<NodeCollectives>> groups;
    std::vector<RankGroup*> all;
    for (const auto& node : nodes)
      all.push_back(
          groups.emplace_back(std::make_unique<NodeCollectives>(*node, ranks_here)).get());
    ThreadCollectives one(std::vector<WorkPool*>(static_cast<size_t>(num_nodes * ranks_here)));
    const std::vector<Outputs> got = run_all(all), want = run_all({&one});
    ASSERT_EQ(got.size(), want.size());
    for (size_t rank = 0; rank < got.size(); ++rank) {
      EXPECT_EQ(groups[rank / static_cast<size_t>(ranks_here)]->first_rank(),
                static_cast<int32_t>(rank) / ranks_here * ranks_here);
      for (size_t i = 0; i < got[rank].sums.size(); ++i)
        EXPECT_EQ(std::memcmp(got[rank].sums[i].data(), want[rank].sums[i].data(),
                              want[rank].sums[i].size() * sizeof(float)),
                  0);
      EXPECT_EQ(got[rank].gathered, want[rank].gathered);
    }
  }
}

TEST(NodeCollectives, ReturnWhereANodeHasLeft) {
  auto nodes = join_nodes(3);
  std::vector<std::unique_ptr<NodeCollectives>> groups;
  for (const auto& node : nodes) groups.push_back(std::make_unique<NodeCollectives>(*node, 1));
  std::vector<std::thread> threads;
  for (const size_t node : {0, 2})
    threads.emplace_back([&, node] {
      std::vector<float> data(1000, 1.0f);
      while (nodes[node]->ok()) groups[node]->rank(0).all_reduce(data);
    });
  nodes[1]->leave();
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(nodes[0]->ok());
  EXPECT_FALSE(nodes[2]->ok());
}

}  // namespace
}  // namespace espalier::nodes
