#include "engine/scheduler/step_time.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace espalier {

namespace {
constexpr double kKept = 0.95;  // of a step's weight, with each further one: about twenty count
// A step that the system interrupted is no measure of its tokens. So many running are no accident:
// what was learnt before them was wrong.
constexpr double kSurpriseMax = 4;
constexpr int32_t kSurprisesMax = 3;
// Depths that differ by less than this, over their mean, do not determine the slope.
constexpr double kDepthsDiffer = 0.05;
// Of the steps whose plain time is to be learnt, one in so many has no prompts.
constexpr uint64_t kTrySteps = 4;
constexpr int32_t kMost = std::numeric_limits<int32_t>::max();

struct StepWork {
  int32_t num_rows = 0;  // decode's, with draft tokens
  int32_t num_prompt_tokens = 0;
  double depths = 0;  // the sum of the prompt tokens' numbers of tokens before them
  double depth() const { return num_prompt_tokens > 0 ? depths / num_prompt_tokens : 0; }
};

// Forced tokens are computed as a prompt's are.
StepWork work_of(const ForwardBatch& batch) {
  StepWork work;
  for (const BatchEntry& entry : batch.entries) {
    const int32_t known = entry.num_query_tokens - entry.num_draft_tokens;
    work.num_rows += entry.num_draft_tokens + (known == 1 ? 1 : 0);
    if (known == 1) continue;
    work.num_prompt_tokens += known;
    work.depths += known * (entry.prefix_len_bound() + 0.5 * known);
  }
  return work;
}

// The mean of about the last eight; what is slower than that counts more, for a bound is meant.
void blend(double& mean, double value) { mean += (value - mean) * (value > mean ? 0.25 : 0.125); }
}  // namespace

void PromptCost::observe(int32_t num_tokens, double depth, double seconds) {
  double per_token = seconds / num_tokens;
  if (is_known() && per_token > kSurpriseMax * factor_ * (base_ + slope_ * depth)) {
    if (++num_surprises_ == kSurprisesMax) *this = {};
  } else {
    num_surprises_ = 0;
  }
  if (const double expected = base_ + slope_ * depth; expected > 0) {
    per_token = std::min(per_token, kSurpriseMax * factor_ * expected);
    blend(factor_, per_token / expected);
  }
  weight_ = kKept * weight_ + 1;
  depth_ = kKept * depth_ + depth;
  depth_squared_ = kKept * depth_squared_ + depth * depth;
  seconds_ = kKept * seconds_ + per_token;
  depth_seconds_ = kKept * depth_seconds_ + depth * per_token;
  fit();
}

// Least squares. Where all depths are alike the slope stays what it was.
void PromptCost::fit() {
  const double mean_depth = depth_ / weight_, mean_seconds = seconds_ / weight_;
  const double variance = depth_squared_ / weight_ - mean_depth * mean_depth;
  if (std::sqrt(std::max(variance, 0.0)) > kDepthsDiffer * mean_depth && variance > 1)
    slope_ = std::max(0.0, (depth_seconds_ / weight_ - mean_depth * mean_seconds) / variance);
  base_ = mean_seconds - slope_ * mean_depth;
  if (base_ >= 0) return;
  base_ = 0;
  slope_ = mean_seconds / mean_depth;
}

// n tokens take n * (base + slope * (prefix + n / 2)).
int32_t PromptCost::tokens_within(double seconds, int32_t prefix) const {
  if (seconds <= 0) return 0;
  const double first = base_ + slope_ * prefix, s = seconds / factor_;
  const double divisor = first + std::sqrt(first * first + 2 * slope_ * s);
  return 2 * s < divisor * kMost ? static_cast<int32_t>(2 * s / divisor) : kMost;
}

void StepTime::observe(const ForwardBatch& batch, double seconds) {
  if (!is_bounded() || !(seconds > 0)) return;
  ++num_steps_;
  const StepWork work = work_of(batch);
  if (work.num_prompt_tokens == 0) return plain_.observe(work.num_rows, seconds, num_steps_);
  // Large chunks in steps of their own cost less a token than small ones, so they count only until
  // there are others.
  const bool is_mixed = work.num_rows > 0;
  const double plain = is_mixed ? plain_.seconds(work.num_rows) : 0;
  if (is_mixed ? plain <= 0 : has_mixed_) return;
  if (is_mixed && !has_mixed_) prompt_cost_ = {};
  has_mixed_ = is_mixed;
  prompt_cost_.observe(work.num_prompt_tokens, work.depth(), std::max(0.0, seconds - plain));
}

int32_t StepTime::prompt_tokens(const ForwardBatch& batch, int32_t prefix,
                                double prompts_per_decode) {
  prompt_seconds_ = -1;
  if (num_steps_ == 0) return kMost;
  const StepWork work = work_of(batch);
  const int32_t num_rows = std::max(work.num_rows, 1);
  ++asked_;
  if (!batch.entries.empty() && plain_.need_step(num_rows, num_steps_) &&
      asked_ - tried_ >= kTrySteps) {
    tried_ = asked_;
    return 0;
  }
  const double plain = plain_.seconds(num_rows);
  if (plain <= 0 || !prompt_cost_.is_known()) return kUnknown;
  double most = std::numeric_limits<double>::infinity();
  if (bound_.ratio > 0)
    most = std::clamp(prompts_per_decode, bound_.ratio - 1, bound_.ratio_most - 1) * plain;
  if (bound_.seconds > 0) most = std::min(most, bound_.seconds - plain);
  prompt_seconds_ =
      std::max(0.0, most - prompt_cost_.seconds(work.num_prompt_tokens, work.depth()));
  return chunk_tokens(prefix);
}

int32_t StepTime::chunk_tokens(int32_t prefix) const {
  if (prompt_seconds_ < 0) return kMost;
  return std::max(prompt_cost_.tokens_within(prompt_seconds_, prefix), kLeast);
}

}  // namespace espalier
