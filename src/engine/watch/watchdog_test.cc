#include "engine/watch/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "base/rng.h"

namespace espalier {
namespace {

using namespace std::chrono_literals;
using Kind = SlowTurns::Report::Kind;

class SlowTurnsTest : public ::testing::Test {
 protected:
  SlowTurnsTest() { clock_.advance(100s); }
  std::optional<SlowTurns::Report> observe() {
    return turns_.observe(progress_.read(), clock_.now());
  }
  // The kind of the report after so long, or nothing.
  std::optional<Kind> after(Duration d) {
    clock_.advance(d);
    const auto report = observe();
    return report ? std::optional(report->kind) : std::nullopt;
  }

  ManualClock clock_;
  LoopProgress progress_;
  SlowTurns turns_{{.soft = 2s, .hard = 10s}};
};

TEST_F(SlowTurnsTest, ReportsEachLimitOnceAndTheEnd) {
  progress_.begin_turn(clock_.now());
  EXPECT_EQ(after(1s), std::nullopt);
  EXPECT_EQ(after(1s), std::nullopt) << "the limit is not exceeded yet";
  EXPECT_EQ(after(1s), Kind::kSoft);
  EXPECT_EQ(after(6s), std::nullopt);
  EXPECT_EQ(after(2s), Kind::kHard);
  EXPECT_EQ(after(100s), std::nullopt);
  progress_.begin_turn(clock_.now());
  const auto ended = observe();
  ASSERT_TRUE(ended);
  EXPECT_EQ(ended->kind, Kind::kEnded);
  EXPECT_DOUBLE_EQ(ended->seconds, 111);
  EXPECT_EQ(after(1s), std::nullopt);
}

TEST_F(SlowTurnsTest, AParkedLoopIsNeverSlow) {
  EXPECT_EQ(after(1000s), std::nullopt);
  progress_.begin_turn(clock_.now());
  EXPECT_EQ(after(1s), std::nullopt);
  progress_.enter(LoopPhase::kParked);
  EXPECT_EQ(after(1000s), std::nullopt);
  EXPECT_EQ(after(1000s), std::nullopt);
}

TEST_F(SlowTurnsTest, AStoppedProcessIsNotReported) {
  EXPECT_EQ(after(1s), std::nullopt);
  progress_.begin_turn(clock_.now());
  EXPECT_EQ(after(1000s), std::nullopt) << "no earlier reading found this turn";
  progress_.begin_turn(clock_.now());
  EXPECT_EQ(after(1s), std::nullopt);
}

TEST_F(SlowTurnsTest, BothLimitsAtOnceAreOneReport) {
  progress_.begin_turn(clock_.now());
  EXPECT_EQ(after(1s), std::nullopt);
  EXPECT_EQ(after(20s), Kind::kHard);
  EXPECT_EQ(after(20s), std::nullopt);
}

TEST_F(SlowTurnsTest, AQuickTurnOfTheSamePhaseIsNotReported) {
  for (int i = 0; i < 100; ++i) {
    progress_.begin_turn(clock_.now());
    progress_.enter(LoopPhase::kWait);
    EXPECT_EQ(after(1s), std::nullopt);
  }
}

TEST(Watchdog, LimitsThatAreOffReportNothing) {
  ManualClock clock;
  LoopProgress progress;
  SlowTurns turns({.soft = 0s, .hard = 5s});
  progress.begin_turn(clock.now());
  (void)turns.observe(progress.read(), clock.now());
  clock.advance(4s);
  EXPECT_FALSE(turns.observe(progress.read(), clock.now()));
  clock.advance(2s);
  EXPECT_EQ(turns.observe(progress.read(), clock.now())->kind, Kind::kHard);
  EXPECT_EQ((WatchdogLimits{.soft = 0s, .hard = 5s}.least()), 5s);
  EXPECT_EQ((WatchdogLimits{.soft = 3s, .hard = 5s}.least()), 3s);
  EXPECT_FALSE(WatchdogLimits{}.any());
}

// Random turns and readings against a model that knows each turn's whole life.
TEST(Watchdog, RandomTurnsAreReportedOnce) {
  const uint64_t seed = 20260801;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  ManualClock clock;
  LoopProgress progress;
  const WatchdogLimits limits{.soft = 50ms, .hard = 200ms};
  SlowTurns turns(limits);
  std::map<std::tuple<uint64_t, Kind>, int> reports;
  uint64_t slow_turn = 0;  // reported, and its end is not
  bool in_turn = false;
  for (int i = 0; i < 200'000; ++i) {
    clock.advance(std::chrono::milliseconds(rng.below(20)));
    const uint64_t draw = rng.below(24);
    if (draw == 0) {
      progress.begin_turn(clock.now());
      in_turn = true;
    } else if (draw == 1) {
      progress.enter(LoopPhase::kParked);
      in_turn = false;
    } else {
      const LoopState state = progress.read();
      const auto report = turns.observe(state, clock.now());
      if (!report) continue;
      if (report->kind == Kind::kEnded) {
        ASSERT_NE(slow_turn, 0u);
        ASSERT_TRUE(!in_turn || state.turn != slow_turn);
        slow_turn = 0;
        continue;
      }
      ASSERT_TRUE(in_turn);
      ASSERT_TRUE(slow_turn == 0 || slow_turn == state.turn);
      slow_turn = state.turn;
      ASSERT_EQ(++(reports[{state.turn, report->kind}]), 1);
      const Duration taken = clock.now() - state.start;
      ASSERT_GT(taken, report->kind == Kind::kHard ? limits.hard : limits.soft);
    }
  }
  EXPECT_GT(reports.size(), 100u);
}

// The thread reports a turn that does not end, and goes away while it lasts.
TEST(Watchdog, CountsASlowTurn) {
  LoopProgress progress;
  progress.begin_turn(SteadyClock().now());
  Watchdog watchdog({.soft = 4ms, .hard = 8ms}, progress);
  while (watchdog.counts().hard == 0) std::this_thread::yield();
  EXPECT_EQ(watchdog.counts().hard, 1);
  EXPECT_LE(watchdog.counts().soft, 1);
}

}  // namespace
}  // namespace espalier
