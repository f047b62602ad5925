#include "router/worker_table.h"

#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "router/health.h"

namespace espalier::router {
namespace {

using namespace std::chrono_literals;

TEST(CircuitBreaker, OpensTriesAndCloses) {
  CircuitBreaker breaker({.failure_threshold = 3, .success_threshold = 2, .open_for = 10s});
  ManualClock clock;
  const auto request = [&](bool good) {
    breaker.begin();
    good ? breaker.succeed(clock.now()) : breaker.fail(clock.now());
  };
  request(false);
  request(false);
  request(true);  // in a row, not in all
  request(false);
  request(false);
  EXPECT_TRUE(breaker.allows(clock.now()));
  request(false);
  EXPECT_FALSE(breaker.allows(clock.now()));
  clock.advance(10s);
  EXPECT_EQ(breaker.state(clock.now()), CircuitBreaker::State::kHalfOpen);
  breaker.begin();
  EXPECT_FALSE(breaker.allows(clock.now())) << "one trial at a time";
  breaker.fail(clock.now());
  EXPECT_EQ(breaker.state(clock.now()), CircuitBreaker::State::kOpen);
  clock.advance(10s);
  request(true);
  EXPECT_EQ(breaker.state(clock.now()), CircuitBreaker::State::kHalfOpen);
  request(true);
  EXPECT_EQ(breaker.state(clock.now()), CircuitBreaker::State::kClosed);
}

TEST(CircuitBreaker, RequestsSentBeforeItOpenedAreNoTrials) {
  CircuitBreaker breaker({.failure_threshold = 1, .success_threshold = 1, .open_for = 10s});
  ManualClock clock;
  breaker.begin();
  breaker.begin();
  breaker.fail(clock.now());
  breaker.succeed(clock.now());
  EXPECT_EQ(breaker.state(clock.now()), CircuitBreaker::State::kOpen);
}

class Table : public testing::Test {
 protected:
  std::vector<WorkerSlot> slots_for(std::string_view model = "",
                                    std::vector<WorkerSlot> exclude = {}) {
    table_.candidates(WorkerRole::kServing, {model, {}}, exclude, candidates_);
    std::vector<WorkerSlot> out;
    for (const Candidate& c : candidates_) out.push_back(c.slot);
    return out;
  }
  WorkerSlot add_healthy(std::string_view url) {
    const WorkerSlot slot = *table_.add(url);
    table_.report_check(slot, true);
    return slot;
  }

  ManualClock clock_;
  WorkerTable table_{{.breaker = {.failure_threshold = 2, .open_for = 10s},
                      .health_failure_threshold = 2,
                      .health_success_threshold = 2,
                      .slow_start = 10s},
                     clock_};
  std::vector<Candidate> candidates_;
};
using Slots = std::vector<WorkerSlot>;

TEST_F(Table, StatesFollowChecks) {
  const WorkerSlot slot = *table_.add("http://a:1");
  EXPECT_EQ(slots_for(), Slots{});
  EXPECT_FALSE(table_.report_check(slot, false));
  EXPECT_EQ(table_.worker(slot)->state, WorkerState::kStarting) << "loading is not broken";
  EXPECT_TRUE(table_.report_check(slot, true));
  EXPECT_EQ(slots_for(), Slots{slot});
  EXPECT_FALSE(table_.report_check(slot, false));
  EXPECT_TRUE(table_.report_check(slot, false));
  EXPECT_EQ(table_.worker(slot)->state, WorkerState::kBroken);
  EXPECT_EQ(slots_for(), Slots{});
  EXPECT_FALSE(table_.report_check(slot, true));
  EXPECT_TRUE(table_.report_check(slot, true));
  EXPECT_EQ(slots_for(), Slots{slot});
}

TEST_F(Table, NamesAreUniqueAndSlotsUsedAgain) {
  const WorkerSlot slot = add_healthy("http://a:1");
  EXPECT_EQ(table_.add("http://a:1").error().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(table_.find("http://b:1").error().code(), StatusCode::kNotFound);
  const uint64_t generation = table_.worker(slot)->generation;
  table_.drain(slot, true);
  EXPECT_EQ(table_.worker(slot), nullptr);
  EXPECT_EQ(table_.take_removed(), Slots{slot});
  EXPECT_EQ(*table_.add("http://b:1"), slot);
  EXPECT_NE(table_.worker(slot)->generation, generation);
}

TEST_F(Table, DrainsAndLeavesAfterItsLastRequest) {
  const WorkerSlot slot = add_healthy("http://a:1");
  table_.begin(slot, 10, 5);
  table_.drain(slot, true);
  EXPECT_EQ(slots_for(), Slots{});
  ASSERT_NE(table_.worker(slot), nullptr);
  EXPECT_EQ(*table_.add("http://a:1"), slot) << "it stays";
  table_.report_check(slot, true);
  EXPECT_EQ(slots_for(), Slots{slot});
  table_.drain(slot, true);
  table_.end(slot, 10, WorkerOutcome::kSuccess);
  EXPECT_EQ(table_.worker(slot), nullptr);
}

TEST_F(Table, ModelsChooseTheirWorkers) {
  const WorkerSlot a = add_healthy("http://a:1"), b = add_healthy("http://b:1");
  table_.set_models(a, {"small"});
  table_.set_models(b, {"large", "large:adapter"});
  EXPECT_EQ(slots_for("large"), Slots{b});
  EXPECT_EQ(slots_for("small"), Slots{a});
  EXPECT_EQ(slots_for("gpt-4"), (Slots{a, b})) << "a name that no worker knows binds none";
  EXPECT_EQ(slots_for("", {a}), Slots{b});
  table_.drain(b, false);
  EXPECT_EQ(slots_for("large"), Slots{}) << "another model does not take its place";
}

TEST_F(Table, BreakersAndSlowStarts) {
  const WorkerSlot slot = add_healthy("http://a:1");
  EXPECT_FLOAT_EQ((slots_for(), candidates_[0].weight), 0.1f);
  clock_.advance(5s);
  EXPECT_FLOAT_EQ((slots_for(), candidates_[0].weight), 0.5f);
  clock_.advance(50s);
  EXPECT_FLOAT_EQ((slots_for(), candidates_[0].weight), 1);
  for (int i = 0; i < 2; ++i) {
    table_.begin(slot, 1, 0);
    table_.end(slot, 1, WorkerOutcome::kBusy);
  }
  EXPECT_EQ(slots_for(), Slots{slot}) << "busy is not broken";
  for (int i = 0; i < 2; ++i) {
    table_.begin(slot, 1, 0);
    table_.end(slot, 1, WorkerOutcome::kFailure);
  }
  EXPECT_EQ(slots_for(), Slots{});
  clock_.advance(10s);
  EXPECT_EQ(slots_for(), Slots{slot});
}

// Requests in flight of each worker, and whether it leaves, are what a map says.
TEST_F(Table, AgreesWithAMap) {
  const uint64_t seed = 7;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  struct Model {
    WorkerSlot slot;
    std::vector<int64_t> requests;
    bool leaves = false;
  };
  std::map<std::string, Model> model;
  for (int i = 0; i < 5000; ++i) {
    const std::string url = fmt::format("http://w{}:1", rng.below(8));
    const auto known = model.find(url);
    switch (rng.below(6)) {
      case 0: {
        const auto added = table_.add(url);
        ASSERT_EQ(added.has_value(), known == model.end() || known->second.leaves);
        if (added) model[url].slot = *added;
        model[url].leaves = false;
        break;
      }
      case 1:
        if (known == model.end() || rng.below(4) > 0) break;
        table_.drain(known->second.slot, true);
        known->second.leaves = true;
        break;
      case 2:
      case 3:
        if (known == model.end()) break;
        known->second.requests.push_back(rng.between(0, 100));
        table_.begin(known->second.slot, known->second.requests.back(), 0);
        break;
      default:
        if (known == model.end() || known->second.requests.empty()) break;
        table_.end(known->second.slot, known->second.requests.back(),
                   static_cast<WorkerOutcome>(rng.below(4)));
        known->second.requests.pop_back();
    }
    std::erase_if(model, [](const auto& entry) {
      return entry.second.leaves && entry.second.requests.empty();
    });
    table_.check_invariants();
    ASSERT_EQ(table_.slots().size(), model.size());
    for (const auto& [name, m] : model) {
      const Worker* const worker = table_.worker(m.slot);
      ASSERT_NE(worker, nullptr);
      ASSERT_EQ(worker->url, name);
      ASSERT_EQ(static_cast<size_t>(worker->requests_in_flight), m.requests.size());
    }
  }
}

TEST(ListedModels, ThoseOfAnotherParentAreAdapters) {
  const ListedModels listed = listed_models(
      R"({"data":[{"id":"base","parent":null},{"id":"poet","parent":"base"},{"id":"own","parent":"own"},)"
      R"({"id":7},3]})");
  EXPECT_EQ(listed.ids, (std::vector<std::string>{"base", "poet", "own"}));
  EXPECT_EQ(listed.adapters, std::vector<std::string>{"poet"});
  EXPECT_TRUE(listed_models("[]").ids.empty());
  EXPECT_TRUE(listed_models("no JSON").ids.empty());
}

}  // namespace
}  // namespace espalier::router
