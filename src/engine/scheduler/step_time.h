// How long a step takes, learnt from those that were: its decode rows, and so much for each prompt
// token, by how many tokens are before it. From this comes how many prompt tokens a step may take
// beside decode entries, so that these do not wait longer than they may. It is measured because a
// prompt's token may cost anything between a thousandth of a decode step, where the device has
// cores to spare, and a whole one, behind a long text on a CPU.
//
// Not thread-safe. Allocates nothing. Times in seconds.
#pragma once

#include <cstdint>

#include "engine/scheduler/plain_steps.h"
#include "seams/forward_batch.h"

namespace espalier {

// What a token of a prompt costs: a line over the number of tokens before it, and a factor that
// follows the latest steps.
class PromptCost {
 public:
  // `depth`: how many tokens each of them had before it, in the mean.
  void observe(int32_t num_tokens, double depth, double seconds);
  bool is_known() const { return weight_ > 0; }
  double seconds(int32_t num_tokens, double depth) const {
    return num_tokens * factor_ * (base_ + slope_ * depth);
  }
  // Tokens behind `prefix` others that fit; may be none.
  int32_t tokens_within(double seconds, int32_t prefix) const;

 private:
  void fit();

  double base_ = 0, slope_ = 0;  // seconds of a token, and for each one before it
  double factor_ = 1;
  // Sums over the steps so far, the older the less: of 1, of depths, of seconds a token.
  double weight_ = 0, depth_ = 0, depth_squared_ = 0, seconds_ = 0, depth_seconds_ = 0;
  int32_t num_surprises_ = 0;  // steps running that took far longer than expected
};

class StepTime {
 public:
  struct Bound {
    double seconds = 0;  // of a step with decode entries; 0: none
    // To the same step without prompts, above 1: from `ratio` to `ratio_most`, by how many wait for
    // their prompts; 0: none.
    double ratio = 0, ratio_most = ratio;
    bool is_set() const { return seconds > 0 || ratio > 0; }
  };
  explicit StepTime(Bound bound) : bound_(bound) {}

  bool is_bounded() const { return bound_.is_set(); }

  // A step that was alone on the device. Nothing is learnt where `seconds` is 0, on devices that
  // measure no steps.
  void observe(const ForwardBatch& batch, double seconds);

  // How many prompt tokens a step may take that is to have the entries in `batch`, none of them a
  // chunk of a prompt; `prefix`: the tokens before them; `prompts_per_decode`: those who wait for
  // their prompts over those who wait for their next token; a step's time is divided among both. A
  // few while nothing is known, and at least kLeast, so that prompts advance whatever the bound is;
  // but none in a step now and then, from which is learnt what such steps take without prompts.
  // REQUIRES is_bounded().
  int32_t prompt_tokens(const ForwardBatch& batch, int32_t prefix, double prompts_per_decode = 1);
  // The same for one prompt, in the step for which prompt_tokens() was called last.
  int32_t chunk_tokens(int32_t prefix) const;

  static constexpr int32_t kUnknown = 64;
  static constexpr int32_t kLeast = 4;

 private:
  const Bound bound_;
  PlainSteps plain_;
  PromptCost prompt_cost_;
  bool has_mixed_ = false;  // prompt_cost_ is of steps with decode entries
  uint64_t num_steps_ = 0;  // observed
  uint64_t asked_ = 0, tried_ = 0;
  double prompt_seconds_ = 0;  // that the step being built has for prompts; below 0: not known
};

}  // namespace espalier
