// The states of a sequence in the scheduler, and the transitions between them.
//
//   waiting -> loading -> running -> paused -> waiting
//   waiting -> running
//   any of them -> finished
#pragma once

#include <cstdint>
#include <string_view>

#include "base/check.h"

namespace espalier {

enum class SequenceState : uint8_t {
  kWaiting,   // in the wait queue; holds no slot and no pages
  kLoading,   // holds a slot and pages that a KvLoader is filling; no step may read them yet
  kRunning,   // gets entries
  kPaused,    // was retracted or preempted; keeps slot and pages until its last step is committed
  kFinished,  // gets no entries; keeps slot and pages until its last step or load is done
};
inline constexpr int kNumSequenceStates = 5;

constexpr std::string_view sequence_state_name(SequenceState state) {
  constexpr std::string_view kNames[] = {"waiting", "loading", "running", "paused", "finished"};
  return kNames[static_cast<size_t>(state)];
}

constexpr bool is_legal_transition(SequenceState from, SequenceState to) {
  using enum SequenceState;
  switch (from) {
    case kWaiting:
      return to == kLoading || to == kRunning || to == kFinished;
    case kLoading:
      return to == kRunning || to == kFinished;
    case kRunning:
      return to == kPaused || to == kFinished;
    case kPaused:
      return to == kWaiting || to == kFinished;
    case kFinished:
      return false;
  }
  return false;
}

// A state that changes by legal transitions only; another one aborts (ESP_CHECK).
class CheckedState {
 public:
  SequenceState get() const { return state_; }
  operator SequenceState() const { return state_; }  // NOLINT(google-explicit-constructor)
  void move_to(SequenceState next) {
    ESP_CHECK(is_legal_transition(state_, next), "a {} sequence cannot become {}",
              sequence_state_name(state_), sequence_state_name(next));
    state_ = next;
  }

 private:
  SequenceState state_ = SequenceState::kWaiting;
};

}  // namespace espalier
