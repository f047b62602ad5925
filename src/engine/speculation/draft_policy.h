// How many draft tokens are worth verifying, from what was measured: how often the next token was
// as predicted, by source and length of the match, and the time of a step with and without draft
// tokens.
//
// The rule is marginal: one draft token more is worth its time if the probability that it and all
// before it are accepted exceeds its share of a step's time, over the tokens that the step yields
// without it. So no draft is verified where none pays. Predictions are compared with what is
// sampled whether they were verified or not, so a source that is not used is judged as well; only
// the cost of a draft token takes a rare probe to measure again.
// Not thread-safe. Times in seconds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace espalier {

enum class DraftSource : uint8_t { kOwnText, kHistory, kRadix };
inline constexpr size_t kNumDraftSources = 3;

// How often predictions were right. Older ones count less.
class AcceptanceRate {
 public:
  void add(bool accepted);
  // The rate with `weight` predictions of rate `prior` in front.
  double rate(double prior, double weight) const {
    return (accepted_ + prior * weight) / (offered_ + weight);
  }

 private:
  static constexpr double kOfferedMax = 64;
  double accepted_ = 0, offered_ = 0;
};

// The median of the latest durations. A step that the system interrupted moves a mean by so much
// that drafting would stay off for thousands of steps; it does not move the median.
class RecentMedian {
 public:
  void add(double seconds);
  int32_t size() const { return static_cast<int32_t>(std::min(num_added_, kNumKept)); }
  double value() const;  // 0 while there is none

 private:
  static constexpr size_t kNumKept = 9;
  std::array<double, kNumKept> kept_{};
  size_t num_added_ = 0;
};

class DraftPolicy {
 public:
  // Of a predicted token: where it comes from, and how many tokens before it agree with what it
  // continues. Behind a draft token that is accepted one token more agrees.
  struct Origin {
    DraftSource source = DraftSource::kOwnText;
    int32_t match_length = 0;
  };

  void observe_token(const Origin& origin, AcceptanceRate& own, bool accepted);
  // A step of decode entries alone, of which num_draft_tokens were query tokens.
  void observe_step(int32_t num_entries, int32_t num_draft_tokens, double seconds);

  // The probability that the token is as predicted if all before it are; `own` is of its request
  // and source.
  double acceptance(const Origin& origin, const AcceptanceRate& own) const;
  // How many of at most `most` draft tokens to verify beside `num_running` sequences, itself
  // included.
  int32_t length(const Origin& first, const AcceptanceRate& own, int32_t most, int32_t num_running);
  // Whether to wait for the token in flight, which `first` predicts, to draft behind it.
  bool pays_to_wait(const Origin& first, const AcceptanceRate& own, int32_t most,
                    int32_t num_running);
  // False: no draft token pays beside so many sequences, however certain it is.
  bool may_pay(int32_t num_running) const;

  // Of one draft token, over a plain step with so many entries.
  double relative_cost(int32_t num_entries) const;

 private:
  static constexpr size_t kMatchClasses = 4, kBatchClasses = 16;
  static size_t class_of(const Origin& origin);
  // The draft tokens that pay, and their expected number of accepted ones.
  struct Plan {
    int32_t length = 0;
    double accepted = 0;
  };
  Plan plan(Origin origin, double reached, const AcceptanceRate& own, int32_t most,
            int32_t num_running) const;

  struct StepCost {
    RecentMedian plain, draft_token;
    double relative = -1;  // below 0: it is not known yet
  };
  static size_t batch_class(int32_t num_entries);
  std::array<AcceptanceRate, kNumDraftSources * kMatchClasses> rates_;
  std::array<StepCost, kBatchClasses> costs_;
  bool probe_is_due(const Origin& first, const AcceptanceRate& own, int32_t num_running);
  uint32_t num_refused_ = 0;
  bool probes_ = false;  // a sequence waits for its token in flight to probe
};

}  // namespace espalier
