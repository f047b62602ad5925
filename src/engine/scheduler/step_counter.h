// The numbers of the steps launched and committed so far. A page or a slot may be reused only after
// the last step that names it is committed, so every part of the scheduler measures time in steps.
//
// Not thread-safe. Owned by the scheduler; its parts hold a reference to read it.
#pragma once

#include <cstdint>

#include "base/check.h"

namespace espalier {

class StepCounter {
 public:
  // Steps that may be launched and not committed when another one is built.
  static constexpr uint64_t kUncommittedMax = 1;

  uint64_t launched() const { return launched_; }
  uint64_t committed() const { return committed_; }
  bool any_in_flight() const { return launched_ > committed_; }
  bool in_flight(uint64_t step) const { return step > committed_; }

  void launch() { ++launched_; }
  void commit(uint64_t step) {
    ESP_CHECK(step == committed_ + 1 && step <= launched_, "step {} committed after {} of {}", step,
              committed_, launched_);
    committed_ = step;
  }

 private:
  uint64_t launched_ = 0, committed_ = 0;
};

}  // namespace espalier
