// What one render may use: steps, time, text and depth.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace espalier::jinja {

struct Limits {
  int64_t steps_max = 10'000'000;  // nodes visited, and 64 bytes of any text or 8 items made
  int64_t output_bytes_max = 64 << 20;
  int depth_max = 500;     // evaluations within each other: macros that call themselves
  double seconds_max = 5;  // for what costs more than its steps
};

// Counts what a render uses against its limits, whose time begins with the constructor. Every
// failure is kResourceExhausted. Not thread-safe.
class RenderBudget {
 public:
  explicit RenderBudget(Limits limits);

  // Counts steps. Looks at the clock once in 4,096 of them.
  Status charge(size_t steps);
  // Counts the making of an intermediate text, which is at most output_bytes_max long.
  Status charge_bytes(size_t bytes);
  // Counts bytes that are appended to an output.
  Status charge_output(size_t bytes);

  // Counts a level of depth while it lives. The level is counted past the limit too, so the owner
  // asks too_deep() next.
  class Level {
   public:
    explicit Level(RenderBudget& budget) : depth_(budget.depth_) { ++depth_; }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& depth_;
  };
  bool too_deep() const { return depth_ > limits_.depth_max; }

 private:
  const Limits limits_;
  const std::chrono::steady_clock::time_point deadline_;
  int64_t steps_ = 0;
  int64_t clock_step_ = 0;  // the step that reads the clock next
  int64_t output_bytes_ = 0;
  int depth_ = 0;
};

}  // namespace espalier::jinja
