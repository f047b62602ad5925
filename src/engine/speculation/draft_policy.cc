#include "engine/speculation/draft_policy.h"

namespace espalier {

namespace {
// What is believed of a source before it has been measured, and how many tokens that weighs. It is
// little, for predictions that are not verified are compared for nothing.
constexpr double kPriorRate = 0.3, kPriorWeight = 4;
}  // namespace

void AcceptanceRate::add(bool accepted) {
  if (offered_ >= kOfferedMax) {
    offered_ /= 2;
    accepted_ /= 2;
  }
  offered_ += 1;
  accepted_ += accepted ? 1 : 0;
}

size_t DraftPolicy::class_of(const Origin& origin) {
  const size_t match = origin.match_length < 3    ? 0
                       : origin.match_length < 6  ? 1
                       : origin.match_length < 12 ? 2
                       : origin.match_length < 24 ? 3
                                                  : 4;
  return static_cast<size_t>(origin.source) * kMatchClasses + match;
}

void DraftPolicy::observe_token(const Origin& origin, AcceptanceRate& own, bool accepted) {
  rates_[class_of(origin)].add(accepted);
  own.add(accepted);
}

double DraftPolicy::acceptance(const Origin& origin, const AcceptanceRate& own) const {
  return own.rate(rates_[class_of(origin)].rate(kPriorRate, kPriorWeight), kPriorWeight);
}

}  // namespace espalier
