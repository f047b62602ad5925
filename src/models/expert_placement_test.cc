// Placements of experts: every expert has a slot, replicas lie apart, busy experts are spread, and
// copies in place make one placement of another.
#include "models/expert_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

double over_mean(const PlacementShape& shape, std::span<const int64_t> tokens,
                 const ExpertSlots& slots) {
  const std::vector<double> loads = group_loads(shape, tokens, slots);
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  return *std::ranges::max_element(loads) * static_cast<double>(loads.size()) / sum;
}

TEST(ExpertPlacement, EvenPlacementBeginsAgainWithTheFirstExperts) {
  EXPECT_THAT(even_placement({4, 4, 2}), ElementsAre(0, 1, 2, 3));
  const PlacementShape shape{4, 6, 2};
  const ExpertSlots slots = even_placement(shape);
  EXPECT_THAT(slots, ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_TRUE(is_placement(shape, slots));
  EXPECT_THAT(replica_table(4, slots), ElementsAre(0, 2, 4, 5, 6, 0, 4, 1, 5, 2, 3));
  EXPECT_THAT(group_loads(shape, std::vector<int64_t>{8, 2, 1, 5}, slots),
              ElementsAre(4 + 1 + 1, 5 + 4 + 1));
}

TEST(ExpertPlacement, RefusalsNameTheSetting) {
  const auto refusal = [](const PlacementShape& shape) { return check_placement(shape).message(); };
  EXPECT_TRUE(check_placement({8, 12, 4}).ok());
  EXPECT_TRUE(check_placement({8, 32, 4}).ok());
  EXPECT_THAT(refusal({8, 7, 1}), HasSubstr("ep_num_redundant_experts is -1"));
  EXPECT_THAT(refusal({8, 10, 1}), HasSubstr("set --ep-size"));
  EXPECT_THAT(refusal({8, 9, 2}), HasSubstr("makes 9 slots of 8 experts"));
  EXPECT_THAT(refusal({8, 18, 2}), HasSubstr("at most 8 replicas"));
  EXPECT_THAT(refusal({1000, 1026, 2}), HasSubstr("1024 are the most"));
}

TEST(ExpertPlacement, PlacementsHaveAllExpertsAndReplicasApart) {
  const PlacementShape shape{4, 6, 2};
  EXPECT_FALSE(is_placement(shape, ExpertSlots{0, 1, 2, 3, 0}));
  EXPECT_FALSE(is_placement(shape, ExpertSlots{0, 1, 2, 0, 1, 2})) << "expert 3 has none";
  EXPECT_FALSE(is_placement(shape, ExpertSlots{0, 0, 1, 2, 3, 1})) << "two in a group";
  EXPECT_FALSE(is_placement(shape, ExpertSlots{0, 1, 2, 3, 4, 0}));
}

TEST(ExpertPlacement, BusyExpertsHaveReplicasAndLieApart) {
  const PlacementShape shape{8, 16, 4};
  const std::vector<int64_t> tokens = {400, 390, 10, 10, 10, 10, 10, 10};
  const ExpertSlots now = even_placement(shape);
  const ExpertSlots slots = balanced_placement(shape, tokens, now);
  EXPECT_TRUE(is_placement(shape, slots));
  EXPECT_GT(over_mean(shape, tokens, now), 1.4);
  EXPECT_LT(over_mean(shape, tokens, slots), 1.1);
  EXPECT_EQ(balanced_placement(shape, tokens, slots), slots) << "nothing is gained by moving";
  EXPECT_EQ(balanced_placement(shape, std::vector<int64_t>(8), now), now) << "nothing was counted";
}

TEST(ExpertPlacement, WithoutReplicasBusyExpertsLieApart) {
  const PlacementShape shape{4, 4, 2};
  const std::vector<int64_t> tokens = {9, 8, 1, 0};
  const ExpertSlots slots = balanced_placement(shape, tokens, even_placement(shape));
  EXPECT_TRUE(is_placement(shape, slots));
  EXPECT_THAT(group_loads(shape, tokens, slots), testing::UnorderedElementsAre(9, 9));
}

// Applies the copies step by step to what slots have; false where a step breaks its rule.
bool apply(const PlacementShape& shape, const CopySteps& steps, ExpertSlots& slots) {
  const size_t num_slots = slots.size();
  slots.resize(num_slots + static_cast<size_t>(shape.num_groups), -1);
  for (const std::vector<SlotCopy>& step : steps) {
    std::set<int32_t> read, written;
    for (const SlotCopy& copy : step) {
      read.insert(copy.from);
      if (!written.insert(copy.to).second) return false;
    }
    for (const int32_t slot : read)
      if (written.contains(slot)) return false;
    for (const SlotCopy& copy : step)
      slots[static_cast<size_t>(copy.to)] = slots[static_cast<size_t>(copy.from)];
  }
  slots.resize(num_slots);
  return true;
}

TEST(ExpertPlacement, CopiesLetExpertsChangePlaces) {
  const PlacementShape shape{4, 4, 2};
  ExpertSlots slots = {0, 1, 2, 3};
  const CopySteps steps = plan_copies(shape, slots, {2, 1, 0, 3});
  EXPECT_EQ(steps.size(), 3U);
  EXPECT_TRUE(apply(shape, steps, slots));
  EXPECT_THAT(slots, ElementsAre(2, 1, 0, 3));
  EXPECT_TRUE(plan_copies(shape, slots, slots).empty());
}

// Any counts, from any placement that such counts have made.
TEST(ExpertPlacement, RandomCountsAreBalancedAndReachedByCopies) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto draw = [&](int32_t from, int32_t to) {
    return std::uniform_int_distribution(from, to)(random);
  };
  for (int round = 0; round < 300; ++round) {
    PlacementShape shape{.num_groups = draw(2, 8)};
    shape.num_experts = draw(1, 12) * shape.num_groups;
    shape.num_slots = shape.num_experts + shape.num_groups * draw(0, shape.num_experts / 2);
    if (!check_placement(shape).ok()) continue;
    ExpertSlots now = even_placement(shape);
    ASSERT_TRUE(is_placement(shape, now));
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<int64_t> tokens(static_cast<size_t>(shape.num_experts));
      for (int64_t& count : tokens) count = draw(0, 1) * draw(0, 1 << draw(1, 20));
      ExpertSlots next = balanced_placement(shape, tokens, now);
      ASSERT_TRUE(is_placement(shape, next)) << "round " << round;
      if (next != now) {
        ASSERT_LT(over_mean(shape, tokens, next), over_mean(shape, tokens, now));
      }
      ASSERT_TRUE(apply(shape, plan_copies(shape, now, next), now)) << "round " << round;
      ASSERT_EQ(now, next) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace espalier
