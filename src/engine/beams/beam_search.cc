#include "engine/beams/beam_search.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace espalier {

int32_t num_beam_candidates(int32_t num_beams, size_t num_stop_ids) {
  return num_beams * std::max(2, 1 + static_cast<int32_t>(num_stop_ids));
}

int32_t candidates_of_one_beam(int32_t num_beams, size_t num_stop_ids, int32_t vocab_size) {
  const int32_t most = num_beams + std::max(num_beams, static_cast<int32_t>(num_stop_ids));
  return std::min(most, vocab_size);
}

BeamSearch::BeamSearch(const BeamOptions& options, int32_t max_new_tokens)
    : options_(options), max_new_tokens_(max_new_tokens), distributions_(1) {
  ESP_CHECK(options.num_beams >= 1 && max_new_tokens >= 1);
}

void BeamSearch::take(int32_t beam, TokenLogprobs&& distribution) {
  distributions_[static_cast<size_t>(beam)] = std::move(distribution);
}

// Equal sums in the order of beams, then of tokens' probabilities.
void BeamSearch::rank_candidates() {
  candidates_.clear();
  for (size_t i = 0; i < beams_.size(); ++i) {
    const auto& top = distributions_[i].top;
    for (size_t rank = 0; rank < top.size(); ++rank) {
      const auto [token, logprob] = top[rank];
      if (logprob <= -FLT_MAX) break;
      candidates_.push_back({.beam = static_cast<int32_t>(i),
                             .token = token,
                             .logprob = beams_[i].logprob + logprob,
                             .rank = rank});
    }
  }
  std::ranges::stable_sort(candidates_, std::ranges::greater(), &Candidate::logprob);
  const auto most = static_cast<size_t>(options_.num_candidates);
  if (candidates_.size() > most) candidates_.resize(most);
}

std::span<const BeamSearch::Candidate> BeamSearch::advance(const EndOf& end_of) {
  rank_candidates();
  next_.clear();
  const auto num_beams = static_cast<size_t>(options_.num_beams);
  const bool takes_ended =
      improvable_ && !(is_full() && options_.early_stopping == EarlyStopping::kYes);
  for (size_t i = 0; i < candidates_.size() && (i < num_beams || next_.size() < num_beams); ++i) {
    const Candidate& candidate = candidates_[i];
    std::optional<FinishReason> finish;
    if (length_ + 1 == max_new_tokens_)
      finish = FinishReason{.type = FinishReason::Type::kLength};
    else
      finish = end_of(candidate);
    if (!finish)
      next_.push_back(candidate);
    else if (i < num_beams && takes_ended)
      add_hypothesis(candidate, std::move(*finish));
  }
  if (next_.size() > num_beams) next_.resize(num_beams);
  ++length_;
  improvable_ = improvable_ && !next_.empty() && may_improve(next_.front().logprob);
  if (!improvable_ || (is_full() && options_.early_stopping == EarlyStopping::kYes)) next_.clear();
  std::vector<Beam> beams;
  for (const Candidate& candidate : next_) beams.push_back(continued(candidate));
  beams_ = std::move(beams);
  distributions_.assign(beams_.size(), {});
  return next_;
}

BeamSearch::Beam BeamSearch::continued(const Candidate& candidate) const {
  const auto parent = static_cast<size_t>(candidate.beam);
  Beam beam = beams_[parent];
  beam.tokens.push_back(candidate.token);
  beam.logprob = candidate.logprob;
  if (!options_.return_logprob) return beam;
  const TokenLogprobs& distribution = distributions_[parent];
  TokenLogprobs& own = beam.logprobs.emplace_back();
  own.logprob = distribution.top[candidate.rank].second;
  const size_t num_top =
      std::min(distribution.top.size(), static_cast<size_t>(options_.top_logprobs_num));
  own.top.assign(distribution.top.begin(),
                 distribution.top.begin() + static_cast<std::ptrdiff_t>(num_top));
  own.wanted = distribution.wanted;
  return beam;
}

// Behind those of equal score.
void BeamSearch::add_hypothesis(const Candidate& candidate, FinishReason&& finish) {
  const double divisor = std::pow(double{1} + length_, double{options_.length_penalty});
  const auto score = static_cast<float>(candidate.logprob / divisor);
  const auto place = std::ranges::find_if(
      hypotheses_, [&](const Hypothesis& other) { return other.score < score; });
  if (place == hypotheses_.end() && is_full()) return;
  hypotheses_.insert(place,
                     {.beam = continued(candidate), .score = score, .finish = std::move(finish)});
  if (std::ssize(hypotheses_) > options_.num_beams) hypotheses_.pop_back();
}

// Whether the best beam could still displace the worst hypothesis. With early_stopping kNo it is
// judged as if it ended now; with kNever, and a penalty that favours length, at the last length.
bool BeamSearch::may_improve(float best_logprob) const {
  if (!is_full()) return true;
  const bool at_most =
      options_.early_stopping == EarlyStopping::kNever && options_.length_penalty > 0;
  const double length = at_most ? max_new_tokens_ : length_;
  const double best = best_logprob / std::pow(length, double{options_.length_penalty});
  return best > hypotheses_.back().score;
}

}  // namespace espalier
