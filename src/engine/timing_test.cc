// Time: the device never waits for the host, an idle engine costs nothing, and what a step costs
// the host is printed.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdio>
#include <list>
#include <thread>

#include "engine/testing/test_engine.h"
#include "engine/throughput.h"

namespace espalier {
namespace {

using std::chrono::milliseconds;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(Timing, IdleUsesNoProcessor) {
  auto [engine, device] = make_test_engine({.config = {.grammar = {.grammar_mask_threads = 4}}});
  ASSERT_TRUE(engine->generate({.text = "wake up", .sampling = {.max_new_tokens = 20}}));
  double least = 1;
  for (int attempt = 0; attempt < 5 && least >= 0.003; ++attempt) {  // the first may see its end
    const double before = cpu_seconds();
    std::this_thread::sleep_for(milliseconds(300));
    least = std::min(least, cpu_seconds() - before);
  }
  EXPECT_LT(least, 0.003);
  EXPECT_TRUE(engine->generate({.text = "and again", .sampling = {.max_new_tokens = 2}}));
}

// A device of 5 ms a step, 8 requests of 60 tokens. Whatever the host does is hidden behind it.
// Where others use the system a thread may wait for its turn for longer than that: the device gets
// slower from attempt to attempt, and the host's work is compared with the 5 ms by its processor
// time. Without overlap each step would be late behind any device.
TEST(Timing, HostWorkIsHiddenBehindTheDevice) {
  constexpr int kTokens = 60;
  constexpr milliseconds kFastest(5);
  double best_excess = 1, least_host_ms = 1000;
  int64_t fewest_late = 1000, fewest_steps = 1000;
  const auto good = [&] {
    return best_excess < 0.05 && fewest_late <= 1 && fewest_steps <= kTokens + 3 &&
           least_host_ms < to_seconds(kFastest) * 1e3;
  };
  for (int attempt = 0; attempt < 10 && !good(); ++attempt) {
    const milliseconds delay = kFastest * (1 << attempt / 2);
    const double cpu_before = cpu_seconds();
    auto [engine, device] = make_test_engine({.step_delay = delay});
    std::list<Collector> collectors;
    const SteadyClock clock;
    const TimePoint start = clock.now();
    for (int i = 0; i < 8; ++i)
      ASSERT_TRUE(engine->submit({.input_ids = {i + 1}, .sampling = {.max_new_tokens = kTokens}},
                                 collectors.emplace_back().sink()));
    for (Collector& c : collectors) ASSERT_TRUE(c.wait_end());
    const double seconds = to_seconds(clock.now() - start);
    const EngineStats s = engine->stats();
    ASSERT_EQ(device->num_waits(), device->num_steps());  // one synchronisation a step
    const auto steps = static_cast<double>(s.steps.num_steps);
    const double excess = seconds / (steps * to_seconds(delay)) - 1;
    const double host_ms = (cpu_seconds() - cpu_before) * 1e3 / steps;
    best_excess = std::min(best_excess, excess);
    fewest_late = std::min(fewest_late, device->num_late_steps());
    fewest_steps = std::min(fewest_steps, s.steps.num_steps);
    least_host_ms = std::min(least_host_ms, host_ms);
    std::printf(
        "%.0f steps of %lld ms in %.1f ms: %.2f %% over the device alone, %lld late, %.2f ms of "
        "processor time a step\n",
        steps, static_cast<long long>(delay.count()), seconds * 1e3, excess * 100,
        static_cast<long long>(device->num_late_steps()), host_ms);
  }
  EXPECT_LT(best_excess, 0.05);
  EXPECT_LE(fewest_late, 1);
  EXPECT_LE(fewest_steps, kTokens + 3);
  EXPECT_LT(least_host_ms, to_seconds(kFastest) * 1e3);
}

// Without overlap each step waits for the host: the device must be seen to idle, or the test above
// could not fail.
TEST(Timing, WithoutOverlapTheDeviceWaits) {
  auto [engine, device] = make_test_engine(
      {.config = {.compute = {.disable_overlap_schedule = true}}, .step_delay = milliseconds(1)});
  ASSERT_TRUE(engine->generate({.text = "a", .sampling = {.max_new_tokens = 30}}));
  EXPECT_GE(device->num_late_steps(), 29);
}

TEST(Timing, PrintsHostWorkOfAStepWith256Running) {
  constexpr int kRunning = 256, kTokens = 200;
  auto [engine, device] = make_test_engine(
      {.config = {.cache = {.max_total_tokens = 200000},
                  .schedule = {.max_running_requests = kRunning, .chunked_prefill_size = 8192}}});
  std::list<Collector> collectors;
  for (int i = 0; i < kRunning; ++i) {
    GenerateRequest request{.input_ids = {i % 250 + 1, i / 250, 7, 8, 9},
                            .sampling = {.max_new_tokens = kTokens}};
    ASSERT_TRUE(engine->submit(std::move(request), collectors.emplace_back().sink()));
  }
  for (Collector& c : collectors) ASSERT_TRUE(c.wait_end());
  const EngineStats s = engine->stats();
  const auto steps = static_cast<double>(s.steps.num_steps);
  std::printf("host work: %.1f us a step, %.0f entries a step, %.0f steps\n",
              s.steps.host_seconds / steps * 1e6, static_cast<double>(s.steps.num_entries) / steps,
              steps);
  EXPECT_EQ(s.tokens.generated, kRunning * kTokens);
  EXPECT_GT(s.tokens.generated_per_second, 0);
  EXPECT_GT(s.steps.host_seconds, 0);
}

TEST(Timing, ThroughputForgetsWhatIsOld) {
  ThroughputWindow window;
  TimePoint now{std::chrono::hours(5)};
  EXPECT_EQ(window.per_second(now), 0);
  for (int i = 0; i < 40; ++i, now += milliseconds(100))
    window.add(now, 10);  // 4 s at 100 a second
  EXPECT_NEAR(window.per_second(now), 100, 10);
  now += milliseconds(2500);
  EXPECT_LT(window.per_second(now), 80);
  EXPECT_GT(window.per_second(now), 20);
  now += milliseconds(5000);
  EXPECT_EQ(window.per_second(now), 0);
  window.add(now, 100);
  EXPECT_GT(window.per_second(now), 100);
}

}  // namespace
}  // namespace espalier
