// How many draft tokens are worth verifying, from what was measured: the acceptance of draft tokens
// by source, length of the match and position, and the time of a step with and without them.
//
// The rule is marginal: one draft token more is worth its time if the probability that it and all
// before it are accepted exceeds its share of a step's time, over the tokens that the step yields
// without it. So no draft is verified where none pays, but for a rare probe that measures again.
// Not thread-safe. Times in seconds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace espalier {

enum class DraftSource : uint8_t { kOwnText, kHistory };
inline constexpr size_t kNumDraftSources = 2;

// Accepted draft tokens of those that were verified and whose predecessors were accepted. Older
// ones count less.
class AcceptanceRate {
 public:
  void add(bool accepted);
  // The rate with `weight` tokens of rate `prior` in front.
  double rate(double prior, double weight) const {
    return (accepted_ + prior * weight) / (offered_ + weight);
  }

 private:
  static constexpr double kOfferedMax = 64;
  double accepted_ = 0, offered_ = 0;
};

// The median of the latest durations. A step that the system interrupted moves a mean by so much that
// drafting would stay off for thousands of steps; it does not move the median.
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
  // Of a draft token: where it comes from, the tokens of the match that it continues, and its index
  // behind the known tokens.
  struct Origin {
    DraftSource source = DraftSource::kOwnText;
    int32_t match_length = 0;
    int32_t position = 0;
  };

  void observe_token(const Origin& origin, AcceptanceRate& own, bool accepted);
  // A step of decode entries alone, of which num_draft_tokens were query tokens.
  void observe_step(int32_t num_entries, int32_t num_draft_tokens, double seconds);

  // The probability that the draft token is accepted if all before it are; `own` is its request's.
  double acceptance(const Origin& origin, const AcceptanceRate& own) const;
  // How many of at most `most` draft tokens to verify beside `num_running` sequences, itself
  // included. `first.position` counts tokens that are drawn before the first can be verified.
  int32_t length(const Origin& first, const AcceptanceRate& own, int32_t most, int32_t num_running);
  // Whether to wait for the token in flight, which `first` predicts, to draft behind it.
  bool pays_to_wait(const Origin& first, const AcceptanceRate& own, int32_t most,
                    int32_t num_running) const;

  // Of one draft token, over a plain step with so many entries.
  double relative_cost(int32_t num_entries) const;

 private:
  static constexpr size_t kMatchClasses = 3, kPositionClasses = 3, kBatchClasses = 16;
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
  };
  static size_t batch_class(int32_t num_entries);
  std::array<AcceptanceRate, kNumDraftSources * kMatchClasses * kPositionClasses> rates_;
  std::array<StepCost, kBatchClasses> costs_;
  uint32_t num_refused_ = 0;
};

}  // namespace espalier
