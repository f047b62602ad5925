#include "engine/speculation/draft_policy.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace espalier {

namespace {
// A draft token must be worth this much more than it costs: measurements are noisy.
constexpr double kMargin = 1.15;
// Of a plain step, where nothing has been measured: decode reads weights, a draft token does not.
constexpr double kAssumedCost = 0.3;
// What is believed of a source before it has been measured, and how many tokens that weighs. It is
// little, for predictions that are not verified are compared for nothing.
constexpr double kPriorRate = 0.4, kPriorWeight = 4;
// One refused draft in so many is verified with one token, to measure its cost again: below 1 % of
// the time. What is seldom right is not worth a probe.
constexpr uint32_t kProbePeriod = 128;
constexpr double kProbedRateLeast = 0.5;
// The same until the cost has been measured: a few probes then decide about all that follows.
constexpr uint32_t kFirstProbePeriod = 8;
constexpr double kFirstProbedRateLeast = 0.25;
// With others in the batch a drafting sequence misses the step that is built while its own runs, so
// it must accept more than the one token that it would have got there.
constexpr double kAcceptedLeastBesideOthers = 1.3;
// The device idles so long, of a plain step, when it awaits the host.
constexpr double kWaitCost = 0.05;
// Measured steps with draft tokens before their cost is believed: two may have been interrupted.
constexpr int32_t kDraftStepsLeast = 5;
}  // namespace

void AcceptanceRate::add(bool accepted) {
  if (offered_ >= kOfferedMax) {
    offered_ /= 2;
    accepted_ /= 2;
  }
  offered_ += 1;
  accepted_ += accepted ? 1 : 0;
}

void RecentMedian::add(double seconds) { kept_[num_added_++ % kNumKept] = seconds; }

double RecentMedian::value() const {
  if (num_added_ == 0) return 0;
  std::array<double, kNumKept> sorted = kept_;
  const auto middle = sorted.begin() + size() / 2;
  std::nth_element(sorted.begin(), middle, sorted.begin() + size());
  return *middle;
}

size_t DraftPolicy::class_of(const Origin& origin) {
  const size_t match = origin.match_length < 6    ? 0
                       : origin.match_length < 12 ? 1
                       : origin.match_length < 24 ? 2
                                                  : 3;
  return static_cast<size_t>(origin.source) * kMatchClasses + match;
}

void DraftPolicy::observe_token(const Origin& origin, AcceptanceRate& own, bool accepted) {
  rates_[class_of(origin)].add(accepted);
  own.add(accepted);
}

double DraftPolicy::acceptance(const Origin& origin, const AcceptanceRate& own) const {
  return own.rate(rates_[class_of(origin)].rate(kPriorRate, kPriorWeight), kPriorWeight);
}

size_t DraftPolicy::batch_class(int32_t num_entries) {
  const auto entries = static_cast<uint32_t>(std::max(num_entries, 1));
  return std::min<size_t>(std::bit_width(entries), kBatchClasses) - 1;
}

void DraftPolicy::observe_step(int32_t num_entries, int32_t num_draft_tokens, double seconds) {
  if (num_entries < 1 || !(seconds > 0)) return;
  StepCost& cost = costs_[batch_class(num_entries)];
  if (num_draft_tokens == 0) {
    cost.plain.add(seconds);
  } else if (cost.plain.size() > 0) {
    cost.draft_token.add(std::max(0.0, seconds - cost.plain.value()) / num_draft_tokens);
    if (cost.draft_token.size() >= kDraftStepsLeast)
      cost.relative = cost.draft_token.value() / cost.plain.value();
  }
}

double DraftPolicy::relative_cost(int32_t num_entries) const {
  const double measured = costs_[batch_class(num_entries)].relative;
  return measured >= 0 ? measured : kAssumedCost / std::max(num_entries, 1);
}

// `reached`: the probability that the tokens before the first are as predicted. A step yields
// num_running tokens without draft tokens.
DraftPolicy::Plan DraftPolicy::plan(Origin origin, double reached, const AcceptanceRate& own,
                                    int32_t most, int32_t num_running) const {
  const double least = kMargin * relative_cost(num_running) * num_running;
  Plan plan;
  for (; plan.length < most; ++plan.length, ++origin.match_length) {
    reached *= acceptance(origin, own);
    if (reached < least) break;
    plan.accepted += reached;
  }
  if (num_running > 1 && plan.accepted < kAcceptedLeastBesideOthers) return {};
  return plan;
}

bool DraftPolicy::may_pay(int32_t num_running) const {
  return kMargin * relative_cost(num_running) * num_running < 1;
}

bool DraftPolicy::probe_is_due(const Origin& first, const AcceptanceRate& own,
                               int32_t num_running) {
  const bool is_known = costs_[batch_class(num_running)].relative >= 0;
  if (acceptance(first, own) < (is_known ? kProbedRateLeast : kFirstProbedRateLeast)) return false;
  return ++num_refused_ % (is_known ? kProbePeriod : kFirstProbePeriod) == 0;
}

int32_t DraftPolicy::length(const Origin& first, const AcceptanceRate& own, int32_t most,
                            int32_t num_running) {
  if (most < 1) return 0;
  const Plan best = plan(first, 1, own, most, num_running);
  if (best.length > 0) return best.length;
  return std::exchange(probes_, false) || probe_is_due(first, own, num_running) ? 1 : 0;
}

bool DraftPolicy::pays_to_wait(const Origin& first, const AcceptanceRate& own, int32_t most,
                               int32_t num_running) {
  if (most < 1) return false;
  const Origin next{first.source, first.match_length + 1};
  const Plan best = plan(next, acceptance(first, own), own, most, num_running);
  const double cost = relative_cost(num_running) * num_running * best.length;
  if (best.length > 0 && best.accepted > cost + kWaitCost) return true;
  if (probe_is_due(first, own, num_running)) probes_ = true;
  return probes_;
}

}  // namespace espalier
