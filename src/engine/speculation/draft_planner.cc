#include "engine/speculation/draft_planner.h"

#include <algorithm>
#include <utility>

namespace espalier {

namespace {
// Draft tokens must be expected to give so much more tokens a second than a step without them: what
// is measured and predicted is noisy.
constexpr double kMargin = 1.05;
// A draft token less probable than this never decides about a plan.
constexpr double kReachedLeast = 0.02;
// Verifying steps may lose this share of all time, so many steps of it in advance, and what they
// have gained up to so many steps. One of them counts as a loss of at most so many.
constexpr double kLostShare = 0.003, kLostSteps = 3, kGainedSteps = 32, kLostAtOnce = 1;
// The calibration is of so many expected tokens, of which so many were right beforehand.
constexpr double kCalibrationTokens = 512, kCalibrationPrior = 8, kCalibrationLeast = 0.25;
// What it knows loses weight in each step without draft tokens.
constexpr double kForgotten = 0.998;
}  // namespace

// The chain's next draft token, behind `length` of them that are right with probability `reached`.
// False: there is none.
bool DraftPlanner::next(const DraftChain& chain, int32_t at, double reached,
                        Candidate& candidate) const {
  if (chain.length >= chain.most) return false;
  DraftPolicy::Origin origin = chain.origin;
  origin.match_length += chain.length;
  candidate = {.reached = reached * policy_.acceptance(origin, *chain.own), .chain = at};
  return candidate.reached >= kReachedLeast;
}

// Whether a step that ends here makes the most tokens a second.
void DraftPlanner::consider(Choice& choice, const StepCost::Curve& curve,
                            int32_t num_entries) const {
  const double tokens = 1 + calibration_ * choice.expected / num_entries;
  const double rate = tokens / curve.ratio(choice.num);
  if (rate <= choice.best_rate) return;
  choice.best_rate = rate;
  choice.best_num = choice.num;
  choice.best_expected = choice.expected;
}

// Takes draft tokens in the order of their probability, into taken_. Plans end at few numbers of
// rows, because a device may prepare for each number anew, and where the draft tokens end.
void DraftPlanner::grow(Choice& choice, const StepCost::Curve& curve, int32_t num_entries,
                        int32_t samples_max, std::span<DraftChain> chains) {
  samples_max = std::min(samples_max, curve.most());
  heap_.clear();
  taken_.clear();
  Candidate candidate;
  for (size_t i = 0; i < chains.size(); ++i) {
    chains[i].length = 0;
    if (next(chains[i], static_cast<int32_t>(i), chains[i].reached, candidate))
      heap_.push_back(candidate);
  }
  std::make_heap(heap_.begin(), heap_.end());
  while (!heap_.empty() && choice.num < samples_max) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Candidate best = heap_.back();
    heap_.pop_back();
    taken_.push_back(best);
    ++choice.num;
    choice.expected += best.reached;
    DraftChain& chain = chains[static_cast<size_t>(best.chain)];
    ++chain.length;
    if (next(chain, best.chain, best.reached, candidate)) {
      heap_.push_back(candidate);
      std::push_heap(heap_.begin(), heap_.end());
    }
    const int32_t rows = num_entries + choice.num;
    if (heap_.empty() || choice.num == samples_max || StepCost::next_edge(rows) == rows)
      consider(choice, curve, num_entries);
  }
}

int32_t DraftPlanner::plan(int32_t num_entries, int32_t samples_max, std::span<DraftChain> chains,
                           bool awaits) {
  num_entries_ = std::max(num_entries, 1);
  num_planned_ = 0;
  expected_ = 0;
  Choice choice{.best_rate = kMargin};
  const StepCost::Curve curve = cost_.curve(num_entries_);
  if (credit_ >= 0 && !cost_.needs_plain_step(num_entries_))
    grow(choice, curve, num_entries_, samples_max, chains);
  for (DraftChain& chain : chains) chain.length = 0;
  const bool waited = std::exchange(waited_, awaits && choice.best_num > 0);
  if (!awaits) in_vain_ = waited && choice.best_num == 0;
  is_late_ |= in_vain_;
  if (choice.best_num == 0) return 0;
  for (const Candidate& taken : std::span(taken_).first(static_cast<size_t>(choice.best_num)))
    ++chains[static_cast<size_t>(taken.chain)].length;
  num_planned_ = choice.best_num;
  expected_ = choice.best_expected;
  return num_planned_;
}

int32_t DraftPlanner::extend(DraftChain& chain, int32_t samples_max) {
  chain.length = 0;
  if (credit_ < 0) return 0;
  const StepCost::Curve curve = cost_.curve(num_entries_);
  const double planned = (1 + calibration_ * expected_ / num_entries_) / curve.ratio(num_planned_);
  Choice choice{.num = num_planned_,
                .best_num = num_planned_,
                .expected = expected_,
                .best_expected = expected_,
                .best_rate = num_planned_ > 0 ? planned : kMargin};
  grow(choice, curve, num_entries_, num_planned_ + samples_max, {&chain, 1});
  chain.length = choice.best_num - num_planned_;
  num_planned_ = choice.best_num;
  expected_ = choice.best_expected;
  return chain.length;
}

bool DraftPlanner::may_pay(int32_t num_entries, int32_t samples_max) const {
  if (credit_ < 0) return false;
  const int32_t n = std::max(num_entries, 1);
  const StepCost::Curve curve = cost_.curve(n);
  for (int32_t rows = n + 1; rows <= n + samples_max; rows = StepCost::next_edge(rows + 1))
    if (static_cast<double>(rows) / n > kMargin * curve.ratio(rows - n)) return true;
  return false;
}

// Compares what the last plan expected with what was accepted.
void DraftPlanner::calibrate(const Step& step) {
  if (step.num_draft_tokens == 0) {
    offered_ *= kForgotten;  // so that what was expected too high is tried again
    accepted_ *= kForgotten;
  } else if (step.num_draft_tokens == num_planned_) {
    offered_ += expected_;
    accepted_ += step.num_accepted;
    if (offered_ > kCalibrationTokens) {
      offered_ /= 2;
      accepted_ /= 2;
    }
  }
  calibration_ = std::clamp((accepted_ + kCalibrationPrior) / (offered_ + kCalibrationPrior),
                            kCalibrationLeast, 1.0);
}

// A step counts as its range does, since one alone may have been interrupted.
void DraftPlanner::settle(const Step& step, double plain) {
  if (!std::exchange(has_credit_, true)) credit_ = kLostSteps * plain;
  if (credit_ < kLostSteps * plain) credit_ += kLostShare * plain;
  if (step.num_draft_tokens == 0) {
    if (std::exchange(in_vain_, false))
      credit_ -= std::clamp(step.seconds - plain, 0.0, kLostAtOnce * plain);
    return;
  }
  const double tokens = 1 + static_cast<double>(step.num_accepted) / step.num_entries;
  const RecentMedian& ratio = cost_.measured(step.num_entries, step.num_draft_tokens);
  const double gained = std::max(tokens - ratio.value(), -kLostAtOnce);
  credit_ = std::min(credit_ + plain * gained, kGainedSteps * plain);
}

// Of a step that was not launched ahead the time has the host's part in it, so it is left out.
void DraftPlanner::observe_step(const Step& step) {
  const bool verifies = step.num_draft_tokens > 0;
  if (!std::exchange(is_late_, verifies) || verifies)
    cost_.observe(step.num_entries, step.num_draft_tokens, step.seconds);
  calibrate(step);
  const double plain = cost_.plain_seconds(step.num_entries);
  if (plain > 0) settle(step, plain);
}

}  // namespace espalier
