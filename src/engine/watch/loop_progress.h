// What the scheduler's loop is doing, for threads that watch it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "base/clock.h"

namespace espalier {

// The parts of a turn of the loop, in their order (ARCHITECTURE.md, "One step in time"). kParked:
// between two turns, where the loop sleeps until there is work.
enum class LoopPhase : uint8_t {
  kParked,
  kInbox,
  kSchedule,
  kLaunch,
  kWait,
  kCommit,
  kMasks,
  kPublish,
  kEmit,
};
constexpr std::string_view loop_phase_name(LoopPhase phase) {
  constexpr std::string_view kNames[] = {"parked", "inbox", "schedule", "launch", "wait",
                                         "commit", "masks", "publish",  "emit"};
  return kNames[static_cast<size_t>(phase)];
}

struct LoopState {
  LoopPhase phase = LoopPhase::kParked;
  uint64_t turn = 0;                 // 1, 2, 3 ...
  TimePoint start{};                 // of the turn
  uint64_t step = 0;                 // launched last
  int32_t entries = 0, tokens = 0;   // of that step's batch
  int32_t running = 0, waiting = 0;  // samples, when the last turn ended
};

// One thread writes, any thread reads. A write is a plain store, so that a step pays a few
// instructions; the fields that a reader gets may be of two neighbouring turns.
class LoopProgress {
 public:
  void enter(LoopPhase phase) { phase_.store(phase, kRelaxed); }
  void begin_turn(TimePoint now) {
    start_.store(now, kRelaxed);
    turn_.store(turn_.load(kRelaxed) + 1, std::memory_order_release);  // start_ is there before
    enter(LoopPhase::kInbox);
  }
  void set_step(uint64_t step, size_t entries, size_t tokens) {
    step_.store(step, kRelaxed);
    entries_.store(static_cast<int32_t>(entries), kRelaxed);
    tokens_.store(static_cast<int32_t>(tokens), kRelaxed);
  }
  void set_load(int32_t running, int32_t waiting) {
    running_.store(running, kRelaxed);
    waiting_.store(waiting, kRelaxed);
  }

  LoopState read() const {
    return {.phase = phase_.load(kRelaxed),
            .turn = turn_.load(std::memory_order_acquire),
            .start = start_.load(kRelaxed),
            .step = step_.load(kRelaxed),
            .entries = entries_.load(kRelaxed),
            .tokens = tokens_.load(kRelaxed),
            .running = running_.load(kRelaxed),
            .waiting = waiting_.load(kRelaxed)};
  }

 private:
  static constexpr std::memory_order kRelaxed = std::memory_order_relaxed;
  std::atomic<LoopPhase> phase_{LoopPhase::kParked};
  std::atomic<uint64_t> turn_{0}, step_{0};
  std::atomic<TimePoint> start_{TimePoint{}};
  std::atomic<int32_t> entries_{0}, tokens_{0}, running_{0}, waiting_{0};
};

}  // namespace espalier
