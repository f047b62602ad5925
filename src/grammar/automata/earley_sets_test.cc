// Compares the interned sets and return states of a recogniser with maps, under random operations,
// and finds the ends of JSON values.
#include "grammar/automata/earley_sets.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "grammar/automata/completed_value.h"

namespace espalier::grammar {
namespace {

TEST(EarleySets, AreInternedByTheirKernels) {
  constexpr uint64_t kSeed = 41;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  EarleySets sets(3);
  std::map<std::vector<EarleyItem>, SetId> known;
  for (int i = 0; i < 5000; ++i) {
    std::vector<EarleyItem> kernel;
    for (NodeId node = 0; node < 12; ++node) {
      if (rng.below(4) == 0) kernel.push_back({node, static_cast<ReturnId>(rng.below(2)), 0});
    }
    if (kernel.empty()) continue;
    EarleySets::Slot slot;
    const SetId found = sets.find(kernel, slot);
    const auto it = known.find(kernel);
    ASSERT_EQ(found, it == known.end() ? EarleySets::kDead : it->second);
    if (found != EarleySets::kDead) continue;
    const SetId made = sets.add(kernel, slot);
    const std::vector<EarleyCall> calls = {{.rule = 1, .target = 5, .return_id = 0, .count = 0},
                                           {.rule = 3, .target = made, .return_id = 0, .count = 0}};
    sets.close(made, std::span(kernel).first(1), calls, made % 2 == 0);
    known.emplace(kernel, made);
  }
  ASSERT_EQ(sets.size(), known.size() + 1);
  for (const auto& [kernel, id] : known) {
    EXPECT_TRUE(std::ranges::equal(sets.kernel(id), kernel));
    EXPECT_TRUE(std::ranges::equal(sets.scanning(id), std::span(kernel).first(1)));
    EXPECT_EQ(sets.accepting(id), id % 2 == 0);
    EXPECT_EQ(sets.next(id, 2), EarleySets::kUnknown);
    ASSERT_EQ(sets.calls_of(id, 3).size(), 1u);
    EXPECT_EQ(sets.calls_of(id, 3)[0].target, id);
    EXPECT_TRUE(sets.calls_of(id, 2).empty());
  }
}

TEST(ReturnStates, AreInternedBySetAndRule) {
  ReturnStates states;
  std::map<std::pair<SetId, RuleId>, ReturnId> known;
  Rng rng(42);
  for (int i = 0; i < 3000; ++i) {
    const auto set = static_cast<SetId>(rng.below(60)), rule = static_cast<RuleId>(rng.below(40));
    const ReturnId id = states.id_of(set, rule);
    ASSERT_GT(id, ReturnStates::kUnknown);
    ASSERT_EQ(known.try_emplace({set, rule}, id).first->second, id);
    ASSERT_EQ(states[id].set, set);
    ASSERT_EQ(states[id].rule, rule);
  }
}

TEST(SeenItems, HoldEachItemOnceUntilTheyAreCleared) {
  SeenItems seen;
  for (int round = 0; round < 3; ++round) {
    seen.clear();
    for (NodeId node = 0; node < 200; ++node) EXPECT_TRUE(seen.insert({node, 1, 2}));
    for (NodeId node = 0; node < 200; ++node) EXPECT_FALSE(seen.insert({node, 1, 2}));
  }
}

TEST(CompletedValue, BeginsWhereTheValueBegins) {
  EXPECT_EQ(completed_value_size(R"({"a":[1,{"b]":2})", ']'), 11u);  // [1,{"b]":2}
  EXPECT_EQ(completed_value_size(R"(["x","a\"b)", '"'), 5u);         // "a\"b
  EXPECT_EQ(completed_value_size("[1, -2.5e+1", '0'), 7u);           // -2.5e+1
  EXPECT_EQ(completed_value_size("[fals", 'e'), 4u);
  EXPECT_EQ(completed_value_size("{", '}'), 1u);
}

}  // namespace
}  // namespace espalier::grammar
