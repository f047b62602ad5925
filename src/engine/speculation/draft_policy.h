// How often predictions of the next token are right, by source and length of the match, and by
// request. Predictions are compared with what is sampled whether they were verified or not, so a
// source that is not used is judged as well. What draft tokens cost is StepCost's part, and how
// many a step verifies is DraftPlanner's.
// Not thread-safe.
#pragma once

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

class DraftPolicy {
 public:
  // Of a predicted token: where it comes from, and how many tokens before it agree with what it
  // continues. Behind a draft token that is accepted one token more agrees.
  struct Origin {
    DraftSource source = DraftSource::kOwnText;
    int32_t match_length = 0;
  };

  void observe_token(const Origin& origin, AcceptanceRate& own, bool accepted);

  // The probability that the token is as predicted if all before it are; `own` is of its request
  // and source.
  double acceptance(const Origin& origin, const AcceptanceRate& own) const;

 private:
  static constexpr size_t kMatchClasses = 5;
  static size_t class_of(const Origin& origin);
  std::array<AcceptanceRate, kNumDraftSources * kMatchClasses> rates_;
};

}  // namespace espalier
