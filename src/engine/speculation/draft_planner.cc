#include "engine/speculation/draft_planner.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace espalier {

namespace {
// A step with draft tokens must be expected to be so much better than one without: what is measured
// and predicted is noisy.
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

// Of the requests' speeds over those of a step without draft tokens, the geometric mean.
double DraftPlanner::rate(const Ends& ends, const StepCost::Curve& curve,
                          int32_t num_entries) const {
  return std::exp(ends.gain / num_entries) / curve.ratio(ends.num);
}

// The chain's next draft token, behind `length` of them of which the last is right with probability
// `reached`, and `expected` are. False: there is none.
bool DraftPlanner::next(const DraftChain& chain, int32_t at, double reached, double expected,
                        Candidate& candidate) const {
  if (chain.length >= chain.most) return false;
  DraftPolicy::Origin origin = chain.origin;
  origin.match_length += chain.length;
  candidate = {.reached = reached * policy_.acceptance(origin, *chain.own), .chain = at};
  candidate.expected = expected + candidate.reached;
  candidate.gain = std::log1p(calibration_ * candidate.reached / (1 + calibration_ * expected));
  return candidate.reached >= kReachedLeast;
}

// Whether a step that ends here is the best so far.
void DraftPlanner::consider(Choice& choice, const StepCost::Curve& curve,
                            int32_t num_entries) const {
  const double rate_now = rate(choice.now, curve, num_entries);
  if (rate_now <= choice.best_rate) return;
  choice.best_rate = rate_now;
  choice.best = choice.now;
}

// Takes draft tokens in the order of what they add, into taken_: a chain's next one never adds more
// than the one before it. Plans end at few numbers of rows, because a device may prepare for each
// number anew, and where the draft tokens end.
void DraftPlanner::grow(Choice& choice, const StepCost::Curve& curve, int32_t num_entries,
                        int32_t samples_max, std::span<DraftChain> chains) {
  samples_max = std::min(samples_max, curve.most());
  heap_.clear();
  taken_.clear();
  Candidate candidate;
  for (size_t i = 0; i < chains.size(); ++i) {
    chains[i].length = 0;
    if (next(chains[i], static_cast<int32_t>(i), chains[i].reached, 0, candidate))
      heap_.push_back(candidate);
  }
  std::make_heap(heap_.begin(), heap_.end());
  while (!heap_.empty() && choice.now.num < samples_max) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Candidate best = heap_.back();
    heap_.pop_back();
    taken_.push_back(best);
    ++choice.now.num;
    choice.now.expected += best.reached;
    choice.now.gain += best.gain;
    DraftChain& chain = chains[static_cast<size_t>(best.chain)];
    ++chain.length;
    if (next(chain, best.chain, best.reached, best.expected, candidate)) {
      heap_.push_back(candidate);
      std::push_heap(heap_.begin(), heap_.end());
    }
    const int32_t rows = num_entries + choice.now.num;
    if (heap_.empty() || choice.now.num == samples_max || StepCost::next_edge(rows) == rows)
      consider(choice, curve, num_entries);
  }
}

int32_t DraftPlanner::plan(int32_t num_entries, int32_t samples_max, std::span<DraftChain> chains,
                           bool awaits) {
  num_entries_ = std::max(num_entries, 1);
  Choice choice{.best_rate = kMargin};
  const StepCost::Curve curve = cost_.curve(num_entries_);
  if (credit_ >= 0 && !cost_.needs_plain_step(num_entries_))
    grow(choice, curve, num_entries_, samples_max, chains);
  planned_ = choice.best;
  for (DraftChain& chain : chains) chain.length = 0;
  const bool waited = std::exchange(waited_, awaits && planned_.num > 0);
  is_late_ |= waited && !awaits && planned_.num == 0;
  for (const Candidate& taken : std::span(taken_).first(static_cast<size_t>(planned_.num)))
    ++chains[static_cast<size_t>(taken.chain)].length;
  return planned_.num;
}

int32_t DraftPlanner::extend(DraftChain& chain, int32_t samples_max) {
  chain.length = 0;
  if (credit_ < 0) return 0;
  const StepCost::Curve curve = cost_.curve(num_entries_);
  const int32_t before = planned_.num;
  Choice choice{.now = planned_,
                .best = planned_,
                .best_rate = before > 0 ? rate(planned_, curve, num_entries_) : kMargin};
  grow(choice, curve, num_entries_, before + samples_max, {&chain, 1});
  planned_ = choice.best;
  chain.length = planned_.num - before;
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
  } else if (step.num_draft_tokens == planned_.num) {
    offered_ += planned_.expected;
    accepted_ += step.num_accepted;
    if (offered_ > kCalibrationTokens) {
      offered_ /= 2;
      accepted_ /= 2;
    }
  }
  calibration_ = std::clamp((accepted_ + kCalibrationPrior) / (offered_ + kCalibrationPrior),
                            kCalibrationLeast, 1.0);
}

// Each step counts with its own time, not with its range's, so that what only some steps pay (a
// graph that is recorded, the host's part of a step that was not launched ahead) is paid for too.
void DraftPlanner::settle(const Step& step, bool is_late, double plain) {
  if (!std::exchange(has_credit_, true)) credit_ = kLostSteps * plain;
  if (credit_ < kLostSteps * plain) credit_ += kLostShare * plain;
  const double took = step.seconds / plain;
  if (step.num_draft_tokens > 0) {
    const double tokens = 1 + static_cast<double>(step.num_accepted) / step.num_entries;
    const double gained = std::max(tokens - took, -kLostAtOnce);
    credit_ = std::min(credit_ + plain * gained, kGainedSteps * plain);
  } else if (is_late) {
    credit_ -= plain * std::clamp(took - 1, 0.0, kLostAtOnce);
  }
}

// A step without draft tokens is late where the one before it verified some, or was waited for in
// vain: its time has the host's part in it, so that no cost is learnt from it.
void DraftPlanner::observe_step(const Step& step) {
  const bool verifies = step.num_draft_tokens > 0;
  const bool is_late = std::exchange(is_late_, verifies);
  if (!step.is_first && (!is_late || verifies))
    cost_.observe(step.num_entries, step.num_draft_tokens, step.seconds);
  calibrate(step);
  const double plain = cost_.plain_seconds(step.num_entries);
  if (plain > 0) settle(step, is_late, plain);
}

}  // namespace espalier
