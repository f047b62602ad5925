#include "engine/watch/watchdog.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/thread_stacks.h"

namespace espalier {

Duration WatchdogLimits::least() const {
  ESP_CHECK(any());
  if (soft <= Duration::zero()) return hard;
  return hard <= Duration::zero() ? soft : std::min(soft, hard);
}

std::optional<SlowTurns::Report> SlowTurns::observe(const LoopState& state, TimePoint now) {
  using Kind = Report::Kind;
  const uint64_t turn = state.phase == LoopPhase::kParked ? 0 : state.turn;
  if (turn != turn_) {
    const bool was_slow = soft_reported_ || hard_reported_;
    const double seconds = to_seconds(now - start_);
    turn_ = turn;
    start_ = state.start;
    soft_reported_ = hard_reported_ = false;
    if (was_slow) return Report{Kind::kEnded, seconds};
    return std::nullopt;
  }
  if (turn == 0) return std::nullopt;
  const Duration taken = now - start_;
  const auto exceeds = [&](Duration limit, bool& reported) {
    if (limit <= Duration::zero() || taken <= limit) return false;
    return !std::exchange(reported, true);
  };
  // One report says enough where both limits are exceeded at once.
  const bool soft = exceeds(limits_.soft, soft_reported_);
  if (exceeds(limits_.hard, hard_reported_)) return Report{Kind::kHard, to_seconds(taken)};
  if (soft) return Report{Kind::kSoft, to_seconds(taken)};
  return std::nullopt;
}

Watchdog::Watchdog(const WatchdogLimits& limits, const LoopProgress& progress)
    : limits_(limits), progress_(progress), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

void Watchdog::run() {
  constexpr Duration kPeriodMin = std::chrono::milliseconds(1);
  set_thread_name("watchdog");
  const SteadyClock clock;
  const Duration period = std::max(kPeriodMin, limits_.least() / 4);
  SlowTurns turns(limits_);
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, period, [&] { return stopping_; })) {
    const LoopState state = progress_.read();
    if (const auto due = turns.observe(state, clock.now())) report(*due, state);
  }
}

void Watchdog::report(const SlowTurns::Report& report, const LoopState& state) {
  if (report.kind == SlowTurns::Report::Kind::kEnded)
    return log_warning("watchdog: the slow step ended seconds={:.3f}", report.seconds);
  const bool hard = report.kind == SlowTurns::Report::Kind::kHard;
  ++(hard ? hard_ : soft_);
  log_at(hard ? LogLevel::kError : LogLevel::kWarning,
         "watchdog: a step takes long limit={} limit_s={:.3f} seconds={:.3f} phase={} turn={} "
         "step={} entries={} tokens={} running={} waiting={}; its threads follow, nothing is ended",
         hard ? "--watchdog-timeout" : "--soft-watchdog-timeout",
         to_seconds(hard ? limits_.hard : limits_.soft), report.seconds,
         loop_phase_name(state.phase), state.turn, state.step, state.entries, state.tokens,
         state.running, state.waiting);
  for (const ThreadStack& thread : read_thread_stacks())
    log_warning("watchdog: thread name=\"{}\" tid={} state={} frames=\"{}\"", thread.name,
                thread.tid, thread.state,
                thread.frames.empty() ? "it did not answer"
                                      : fmt::format("{}", fmt::join(thread.frames, " < ")));
}

}  // namespace espalier
