// Choosing what entries read together, against what each entry would read by itself.
#include "engine/executor/cuda/cascade_plan.h"

#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"

namespace espalier {
namespace {

// A batch whose entries follow `paths`: each a list of (name of a node, its end).
struct Family {
  ForwardBatch batch;
  void add(int32_t parent, int32_t begin, int32_t end, const std::vector<int32_t>& entries) {
    batch.shared_prefixes.push_back(
        {.begin = begin,
         .end = end,
         .parent = parent,
         .first_entry = static_cast<int32_t>(batch.shared_entries.size()),
         .num_entries = static_cast<int32_t>(entries.size())});
    batch.shared_entries.insert(batch.shared_entries.end(), entries.begin(), entries.end());
  }
};

std::vector<int32_t> entries_between(int32_t begin, int32_t end) {
  std::vector<int32_t> entries(static_cast<size_t>(end - begin));
  std::iota(entries.begin(), entries.end(), begin);
  return entries;
}

// Segments of an entry follow each other from 0 to its own part, and it is a different member of
// each. Returns the tokens that all entries read together.
int64_t check(const ForwardBatch& batch, const CascadePlan& plan) {
  std::vector<int64_t> read(batch.entries.size());
  for (size_t entry = 0; entry < batch.entries.size(); ++entry) {
    int32_t end = 0;
    bool more = true;
    for (int32_t level = 0; level < kernels::cuda::kSegmentsPerEntry; ++level) {
      const size_t at = (entry * static_cast<size_t>(kernels::cuda::kSegmentsPerEntry) +
                         static_cast<size_t>(level)) *
                        2;
      const int32_t run = plan.places()[at];
      if (run < 0) {
        more = false;
        continue;
      }
      EXPECT_TRUE(more);
      const kernels::cuda::SharedSegment& r = plan.segments().at(static_cast<size_t>(run));
      EXPECT_EQ(r.begin, end);
      EXPECT_LT(r.begin, r.end);
      end = r.end;
      EXPECT_LT(plan.places()[at + 1], r.num_members);
      EXPECT_EQ(plan.members().at(static_cast<size_t>(r.first_member + plan.places()[at + 1])),
                static_cast<int32_t>(entry));
    }
    EXPECT_EQ(plan.own_begins()[entry], end);
    read[entry] = end;
  }
  int64_t tokens = std::accumulate(read.begin(), read.end(), int64_t{0});
  for (const kernels::cuda::SharedSegment& run : plan.segments()) {
    tokens -= int64_t{run.num_members - 1} * (run.end - run.begin);
    // Its pages are those of an entry that has it.
    const auto first = plan.members().begin() + run.first_member;
    EXPECT_NE(std::find(first, first + run.num_members, run.page_begin), first + run.num_members);
  }
  return tokens;
}

constexpr CascadeCosts kCosts{.tokens_per_part = 8, .tokens_per_step = 100};

TEST(CascadePlan, ReadsLevelsOnceAndLeavesOutWhatDoesNotPay) {
  Family family;
  family.batch.entries.resize(20);
  family.add(-1, 0, 500, entries_between(0, 20));
  family.add(0, 500, 504, entries_between(0, 10));   // short: read with those below
  family.add(1, 504, 1000, entries_between(2, 6));   // from 500 on
  family.add(0, 500, 508, entries_between(12, 14));  // never pays
  CascadePlan plan;
  plan.choose(family.batch, kCosts);
  check(family.batch, plan);
  ASSERT_EQ(plan.segments().size(), 2u);
  EXPECT_EQ(plan.segments()[1].begin, 500);
  EXPECT_EQ(plan.segments()[1].end, 1000);
  EXPECT_EQ(plan.own_begins()[3], 1000);
  EXPECT_EQ(plan.own_begins()[7], 500);
  EXPECT_EQ(plan.own_begins()[12], 500);
  EXPECT_EQ(plan.saved_tokens(), 19 * 500 - 20 * 8 + 3 * 500 - 4 * 8);
}

TEST(CascadePlan, ChoosesNothingThatDoesNotPayForItsKernel) {
  Family family;
  family.batch.entries.resize(3);
  CascadePlan plan;
  plan.choose(family.batch, kCosts);
  EXPECT_TRUE(plan.empty());
  family.add(-1, 0, 116, entries_between(0, 2));  // saves 116 - 16
  plan.choose(family.batch, kCosts);
  EXPECT_TRUE(plan.empty());
  family.batch.shared_prefixes[0].end = 117;
  plan.choose(family.batch, kCosts);
  EXPECT_FALSE(plan.empty());
  check(family.batch, plan);
}

// Rows of draft tokens of one slot, which decode attention would read four at a time.
TEST(CascadePlan, CountsReadsOfDraftTokensByTheEntry) {
  Family family;
  for (int32_t row = 0; row < 9; ++row) family.batch.entries.push_back({.slot = 3});
  for (int32_t row = 0; row < 4; ++row) family.batch.entries.push_back({.slot = 5});
  family.add(-1, 0, 1000, entries_between(0, 9));
  family.add(-1, 0, 1000, entries_between(9, 13));
  CascadeCosts costs = kCosts;
  costs.rows_per_read = 4;
  CascadePlan plan;
  plan.choose(family.batch, costs);
  check(family.batch, plan);
  EXPECT_EQ(plan.segments().size(), 1u);  // the second's rows are one read
  EXPECT_EQ(plan.saved_tokens(), 2 * 1000 - 9 * 8);
  costs.own_prefixes_least = 3;
  plan.choose(family.batch, costs);
  EXPECT_TRUE(plan.empty()) << "too few requests";
  family.add(-1, 0, 900, {0, 9});
  plan.choose(family.batch, costs);
  EXPECT_EQ(plan.segments().size(), 1u) << "of two requests";
  EXPECT_EQ(draft_rows_of(32, 8), 4);
  EXPECT_EQ(draft_rows_of(8, 8), 16);
  EXPECT_EQ(draft_rows_of(64, 2), 1);
}

TEST(CascadePlan, CostsOfTheShape) {
  const CascadeCosts costs = CascadeCosts::of(32, 8, 128);
  EXPECT_EQ(costs.tokens_per_part, 8);
  EXPECT_EQ(costs.tokens_per_step, (18 << 20) / 4096);
  EXPECT_EQ(costs.rows_per_read, 4);
  EXPECT_EQ(costs.own_prefixes_least, 16);
}

// Random families of nested entry sets.
TEST(CascadePlan, RandomFamilies) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    Family family;
    const auto entries = static_cast<int32_t>(rng.between(2, 60));
    family.batch.entries.resize(static_cast<size_t>(entries));
    const auto grow = [&](const auto& self, int32_t parent, int32_t begin, int32_t first,
                          int32_t last) -> void {
      const auto end = begin + static_cast<int32_t>(rng.between(1, rng.below(2) == 0 ? 12 : 400));
      const auto index = static_cast<int32_t>(family.batch.shared_prefixes.size());
      family.add(parent, begin, end, entries_between(first, last));
      for (int32_t at = first; at < last;) {
        const auto next = at + static_cast<int32_t>(rng.between(1, last - at));
        if (next - at >= 2 && next - at < last - first) self(self, index, end, at, next);
        at = next;
      }
    };
    grow(grow, -1, 0, 0, entries);
    CascadePlan plan;
    plan.choose(family.batch, kCosts);
    if (plan.empty()) continue;
    int64_t by_itself = 0;
    for (const int32_t begin : plan.own_begins()) by_itself += begin;
    const int64_t read = check(family.batch, plan);
    const int64_t parts = std::ssize(plan.members()) * kCosts.tokens_per_part;
    EXPECT_EQ(by_itself - read - parts, plan.saved_tokens());
    EXPECT_GT(plan.saved_tokens(), kCosts.tokens_per_step);
  }
}

}  // namespace
}  // namespace espalier
