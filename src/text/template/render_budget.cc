#include "text/template/render_budget.h"

#include <algorithm>

namespace espalier::jinja {

RenderBudget::RenderBudget(Limits limits)
    : limits_(limits),
      deadline_(std::chrono::steady_clock::now() +
                std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                    std::chrono::duration<double>(limits.seconds_max))) {}

Status RenderBudget::charge(size_t steps) {
  steps_ += static_cast<int64_t>(std::min<size_t>(steps, 1u << 30));
  if (steps_ > limits_.steps_max) {
    return error(StatusCode::kResourceExhausted, "the template takes more than {} steps",
                 limits_.steps_max);
  }
  constexpr int64_t kStepsBetweenClockReads = 4096;
  if (steps_ < clock_step_) return {};
  clock_step_ = steps_ + kStepsBetweenClockReads;
  if (std::chrono::steady_clock::now() < deadline_) return {};
  return error(StatusCode::kResourceExhausted, "the template takes more than {} s",
               limits_.seconds_max);
}

Status RenderBudget::charge_bytes(size_t bytes) {
  if (bytes > static_cast<size_t>(limits_.output_bytes_max)) {
    return error(StatusCode::kResourceExhausted, "the template makes a text of more than {} bytes",
                 limits_.output_bytes_max);
  }
  return charge(bytes / 64);
}

Status RenderBudget::charge_output(size_t bytes) {
  output_bytes_ += static_cast<int64_t>(bytes);
  if (output_bytes_ <= limits_.output_bytes_max) return {};
  return error(StatusCode::kResourceExhausted, "the template makes more than {} bytes",
               limits_.output_bytes_max);
}

}  // namespace espalier::jinja
