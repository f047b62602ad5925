// How much of the output still to come is reserved when a sequence is admitted: a share that starts
// cautious, grows bolder while all goes well, and is set back by a retraction.
#pragma once

#include <algorithm>

#include "engine/scheduler/scheduler.h"

namespace espalier {

class NewTokenRatio {
 public:
  explicit NewTokenRatio(const SchedulerConfig& config)
      : init_(std::min(config.new_token_ratio_init * config.conservativeness, 1.0)),
        min_(std::min(config.new_token_ratio_min * config.conservativeness, init_)),
        step_((init_ - min_) / std::max(config.new_token_ratio_decay_steps, 1)),
        value_(init_) {}

  double value() const { return value_; }
  void decay() { value_ = std::max(value_ - step_, min_); }
  void reset() { value_ = init_; }

  // After a retraction: `used` of the `allowed` output tokens of those that run are out. A share so
  // low that memory ran out is raised in any case.
  void raise(int64_t used, int64_t allowed) {
    const double seen =
        static_cast<double>(used) / static_cast<double>(std::max<int64_t>(allowed, 1));
    value_ = std::min(std::max(seen, value_ + kRaise), 1.0);
  }

 private:
  static constexpr double kRaise = 0.1;  // a tenth: ten retractions at most reach certainty
  double init_, min_, step_, value_;
};

}  // namespace espalier
