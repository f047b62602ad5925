#include "engine/scheduler/wait_queue.h"

#include <algorithm>
#include <list>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "engine/scheduler/scheduler_fixture.h"

namespace espalier {
namespace {

// The order written out as a search over all sequences.
struct Model {
  struct Item {
    Sequence* sequence;
    int64_t tier, order, overdue_at;
  };
  std::vector<Item> items;           // in order of arrival
  std::vector<Sequence*> retracted;  // the last retracted at the end
  int64_t num_gone = 0;

  Sequence* next(const std::vector<Sequence*>& deferred) const {
    if (!retracted.empty()) return retracted.back();
    if (items.empty()) return nullptr;
    if (num_gone >= items.front().overdue_at) return items.front().sequence;
    const Item* first = nullptr;
    for (const Item& item : items)
      if (std::find(deferred.begin(), deferred.end(), item.sequence) == deferred.end() &&
          (first == nullptr ||
           std::pair(item.tier, item.order) < std::pair(first->tier, first->order)))
        first = &item;
    return first == nullptr ? nullptr : first->sequence;
  }
};

void compare_with_model(uint64_t seed, SchedulePolicy policy) {
  Rng rng(seed);
  auto cache = make_prefix_cache({.num_pages = 8}).value();
  SchedulerConfig config{.policy = policy, .bypass_bound = static_cast<int32_t>(rng.below(8))};
  WaitQueue queue(config, *cache);
  Model model;
  std::list<Sequence> all;
  int64_t num_arrived = 0;
  for (int event = 0; event < 200; ++event) {
    if (rng.below(2) == 0) {
      Sequence& s = all.emplace_back();
      s.spec.id = all.size();
      s.tokens = counting(0, 3);
      s.prompt_len = 3;
      s.spec.max_new_tokens = static_cast<int32_t>(rng.below(5));
      s.spec.priority = static_cast<int32_t>(rng.below(3));
      const int64_t tier = policy == SchedulePolicy::kLof        ? -s.spec.max_new_tokens
                           : policy == SchedulePolicy::kPriority ? -s.spec.priority
                                                                 : 0;
      model.items.push_back({&s, tier, num_arrived, num_arrived + config.bypass_bound});
      ++num_arrived;
      queue.add(s);
    } else if (Sequence* const s = queue.next()) {
      std::vector<Sequence*> deferred;
      ASSERT_EQ(s, model.next(deferred));
      const bool overdue = model.retracted.empty() && queue.is_overdue(*s);
      if (model.retracted.empty() && !overdue && rng.below(3) == 0) {
        queue.defer(*s, 1);
        deferred.push_back(s);
        ASSERT_EQ(queue.next(), model.next(deferred));
        queue.end_round();
        continue;
      }
      queue.remove(*s);
      if (!model.retracted.empty()) {
        model.retracted.pop_back();
      } else {
        std::erase_if(model.items, [&](const Model::Item& item) { return item.sequence == s; });
        ++model.num_gone;
      }
      queue.end_round();
      s->state.move_to(SequenceState::kRunning);
      if (rng.below(4) != 0) {
        queue.left(*s);
        continue;
      }
      s->state.move_to(SequenceState::kPaused);
      queue.requeue(*s);
      model.retracted.push_back(s);
    }
    queue.check_invariants();
    ASSERT_EQ(static_cast<size_t>(queue.size()), model.items.size() + model.retracted.size());
  }
}

TEST(WaitQueue, OrdersAsASearchOverAllWould) {
  for (uint64_t seed = 1; seed <= 100; ++seed)
    for (const SchedulePolicy policy :
         {SchedulePolicy::kFcfs, SchedulePolicy::kLof, SchedulePolicy::kPriority}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " " << schedule_policy_name(policy));
      compare_with_model(seed, policy);
      if (testing::Test::HasFatalFailure()) return;
    }
}

TEST(WaitQueue, TheShareWithTheLeastServiceGoesFirst) {
  auto cache = make_prefix_cache({.num_pages = 8}).value();
  WaitQueue queue({.policy = SchedulePolicy::kFcfs, .fair_share = FairShare::kTenant}, *cache);
  Sequence a, b;
  for (Sequence* s : {&a, &b}) {
    s->tokens = counting(0, 2);
    s->spec.cache_namespace = s == &a ? "a" : "b";
    queue.add(*s);
  }
  EXPECT_EQ(queue.next(), &a);
  queue.charge(a, 5);
  EXPECT_EQ(queue.next(), &b);
  EXPECT_EQ(queue.service_of("a"), 5);
  queue.charge(b, 6);
  EXPECT_EQ(queue.next(), &a);
  queue.check_invariants();
}

TEST(WaitQueue, ServiceCountsByWeight) {
  auto cache = make_prefix_cache({.num_pages = 8}).value();
  WaitQueue queue({.policy = SchedulePolicy::kFcfs, .fair_share = FairShare::kTenant}, *cache);
  Sequence a, b, c;
  for (Sequence* s : {&a, &b}) {
    s->tokens = counting(0, 2);
    s->spec.tenant = s == &a ? "a" : "b";
    s->spec.share_weight = s == &a ? 4 : 1;
    queue.add(*s);
  }
  queue.charge(a, 20);
  queue.charge(b, 6);
  EXPECT_EQ(queue.service_of("a"), 5);
  EXPECT_EQ(queue.next(), &a);
  c.tokens = counting(0, 2);
  c.spec.tenant = "a";
  c.spec.share_weight = 2;  // its key has another weight by now
  queue.add(c);
  queue.charge(a, 4);
  EXPECT_EQ(queue.service_of("a"), 7);
  EXPECT_EQ(queue.next(), &b);
  queue.check_invariants();
}

TEST(WaitQueue, APreemptedSequenceReturnsToItsRank) {
  auto cache = make_prefix_cache({.num_pages = 8}).value();
  WaitQueue queue({.policy = SchedulePolicy::kFcfs}, *cache);
  Sequence s[3];
  for (Sequence& each : s) {
    each.tokens = counting(0, 2);
    queue.add(each);
  }
  queue.remove(s[0]);
  s[0].state.move_to(SequenceState::kRunning);
  s[0].state.move_to(SequenceState::kPaused);
  s[0].preemption.pending = true;
  queue.requeue(s[0]);
  queue.check_invariants();
  EXPECT_EQ(queue.next(), &s[0]);
  EXPECT_FALSE(s[0].preemption.pending);
}

TEST(SequenceState, OnlyLegalTransitionsPass) {
  using enum SequenceState;
  const auto legal = [](SequenceState from) {
    std::vector<SequenceState> to;
    for (int i = 0; i < kNumSequenceStates; ++i)
      if (is_legal_transition(from, static_cast<SequenceState>(i)))
        to.push_back(static_cast<SequenceState>(i));
    return to;
  };
  EXPECT_EQ(legal(kWaiting), (std::vector{kLoading, kRunning, kFinished}));
  EXPECT_EQ(legal(kLoading), (std::vector{kRunning, kFinished}));
  EXPECT_EQ(legal(kRunning), (std::vector{kPaused, kFinished}));
  EXPECT_EQ(legal(kPaused), (std::vector{kWaiting, kFinished}));
  EXPECT_TRUE(legal(kFinished).empty());
}

}  // namespace
}  // namespace espalier
