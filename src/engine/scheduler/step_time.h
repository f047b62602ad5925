// How long a step takes, learnt from those that were: a base for its decode entries and so much for
// each prompt token. From this comes how many prompt tokens a step may take beside decode entries,
// so that these do not wait longer than they may.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace espalier {

class StepTime {
 public:
  // A step that was alone on the device, of which `num_prompt_tokens` were of prompts.
  void observe(int32_t num_prompt_tokens, double seconds) {
    if (num_prompt_tokens == 0) {
      blend(base_, seconds);
    } else if (base_ >= 0) {
      blend(per_token_, std::max(seconds - base_, 0.0) / num_prompt_tokens);
    }
  }

  // Prompt tokens that keep a step within `seconds`; few while nothing is known, and one page's
  // worth at least, so that prompts advance whatever the bound is.
  int32_t tokens_within(double seconds) const {
    if (base_ < 0 || per_token_ < 0) return kUnknown;
    const double fits = (seconds - base_) / std::max(per_token_, 1e-12);
    if (fits >= std::numeric_limits<int32_t>::max()) return std::numeric_limits<int32_t>::max();
    return std::max(static_cast<int32_t>(fits), kLeast);
  }

  static constexpr int32_t kUnknown = 64;
  static constexpr int32_t kLeast = 16;

 private:
  // The mean of about the last eight; what is slower than that counts more, for a bound is meant.
  static void blend(double& mean, double value) {
    if (mean < 0) mean = value;
    mean += (value - mean) * (value > mean ? 0.25 : 0.125);
  }
  double base_ = -1, per_token_ = -1;  // seconds; -1: not known yet
};

}  // namespace espalier
