#include "router/simulation/fleet.h"

#include <gtest/gtest.h>

namespace espalier::router {
namespace {

FleetOptions small(const std::string& policy, uint64_t seed = 1) {
  FleetOptions options;
  options.seed = seed;
  options.num_workers = 16;
  options.num_conversations = 4000;
  options.num_system_prompts = 20;
  options.failures_per_worker_hour = 0;
  options.policy.name = policy;
  return options;
}

TEST(SimWorker, TimesAreThoseOfTheSpeed) {
  const WorkerSpeed speed;
  SimWorker worker(speed);
  auto request = std::make_unique<SimRequest>();
  request->prompt.assign(100, 0);
  for (int32_t i = 0; i < 100; ++i) request->prompt[static_cast<size_t>(i)] = i;
  request->answer.assign(10, 7);
  const std::vector<int32_t> prompt = request->prompt;
  worker.receive(std::move(request), TimePoint{});
  const TimePoint first = *worker.next_event();
  EXPECT_NEAR(to_seconds(first - TimePoint{}), 1600 / speed.prefill_tokens_per_second, 1e-6);
  EXPECT_NE(worker.advance(first).begun, nullptr);
  const TimePoint last = *worker.next_event();
  EXPECT_NEAR(to_seconds(last - first), 160 * speed.step_seconds(1), 1e-6);
  EXPECT_NE(worker.advance(last).ended, nullptr);
  EXPECT_EQ(worker.next_event(), std::nullopt);
  EXPECT_NEAR(worker.busy_seconds(), to_seconds(last - TimePoint{}), 1e-9);

  // The next turn finds the prompt and the answer.
  request = std::make_unique<SimRequest>();
  request->prompt = prompt;
  request->prompt.insert(request->prompt.end(), 10, 7);
  request->prompt.push_back(9);
  SimRequest* const second = request.get();
  worker.receive(std::move(request), last);
  EXPECT_EQ(second->num_cached, 110);
  worker.check_invariants();
  EXPECT_EQ(worker.die(last).size(), 1u);
  worker.check_invariants();
}

TEST(Fleet, TheSameSeedGivesTheSameChoices) {
  const FleetResult a = *simulate_fleet(small("cache_aware")),
                    b = *simulate_fleet(small("cache_aware"));
  EXPECT_EQ(a.digest, b.digest);
  EXPECT_EQ(a.cached_units, b.cached_units);
  EXPECT_EQ(a.ttft_p99, b.ttft_p99);
  EXPECT_NE(a.digest, simulate_fleet(small("cache_aware", 2))->digest);
}

TEST(Fleet, CacheAwareComesNearTheIdealAndIsLevel) {
  const FleetResult aware = *simulate_fleet(small("cache_aware")),
                    turns = *simulate_fleet(small("round_robin"));
  EXPECT_GT(aware.of_ideal(), 0.93);
  EXPECT_LT(turns.of_ideal(), aware.of_ideal() - 0.1);
  EXPECT_LT(aware.load_max_over_mean, 1.3);
  EXPECT_LE(aware.hit_rate(), aware.ideal_hit_rate());
  EXPECT_EQ(aware.lost + aware.retried + aware.cut, 0);
}

TEST(Fleet, EveryPolicyAnswersEveryRequest) {
  for (const std::string& policy : policy_names()) {
    SCOPED_TRACE(policy);
    FleetOptions options = small(policy);
    options.num_conversations = 1000;
    const FleetResult result = *simulate_fleet(options);
    EXPECT_GT(result.requests, 3000);
    EXPECT_EQ(result.lost, 0);
    EXPECT_GT(result.ideal_units, 0);
  }
}

// Workers die at many points; no request is lost, and the caches that are left still serve.
TEST(Fleet, DeathsLoseNoRequest) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(seed);
    FleetOptions options = small("cache_aware", seed);
    options.failures_per_worker_hour = 240;
    options.restart_seconds = 5;
    const FleetResult result = *simulate_fleet(options);
    EXPECT_GT(result.failures, 20);
    EXPECT_GT(result.retried + result.cut, 20);
    EXPECT_EQ(result.lost, 0);
    EXPECT_GT(result.of_ideal(), 0.6);
  }
}

TEST(Fleet, OptionsAreChecked) {
  FleetOptions options = small("cache_aware");
  options.num_workers = 0;
  EXPECT_EQ(simulate_fleet(options).error().code(), StatusCode::kInvalidArgument);
  options = small("no_such_policy");
  EXPECT_EQ(simulate_fleet(options).error().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier::router
