#include "engine/speculation/speculator.h"

#include <algorithm>
#include <utility>

#include "cache/prefix_cache.h"
#include "seams/forward_batch.h"

namespace espalier {

namespace {

// Where no draft token can pay, one chance in so many is looked at in any case, so that the policy
// can measure again.
constexpr uint32_t kLookPeriod = 16;

// So many look-ups that found nothing are assumed before any behind a wrong prediction.
constexpr double kFoundWeight = 4;

constexpr DraftSource source_at(size_t index) { return static_cast<DraftSource>(index); }

constexpr Drafter drafter_of(DraftSource source) {
  return source == DraftSource::kRadix ? Drafter::kRadix : Drafter::kNgram;
}

}  // namespace

void Prediction::take(std::span<const TokenId> found, int32_t match_length, int64_t num_outputs,
                      bool rests) {
  // What goes on as was predicted before has agreed for longer than a look-up compares.
  const bool goes_on = size_ > 0 && !found.empty() && found[0] == tokens_[begin_];
  match_length_ = goes_on ? std::max(match_length, match_length_) : match_length;
  begin_ = 0;
  size_ = std::min(found.size(), tokens_.size());
  std::copy_n(found.begin(), size_, tokens_.begin());
  next_look_ = num_outputs + 1;
  if (found.empty() && rests) pause(num_outputs);
}

void Prediction::observe(TokenId token, int64_t num_outputs, DraftSource source,
                         DraftPolicy& policy) {
  const bool right = tokens_[begin_] == token;
  policy.observe_token({source, match_length_}, acceptance_, right);
  if (right) {
    ++begin_;
    --size_;
    ++match_length_;
    pause_ = 0;
    return;
  }
  size_ = 0;
  if (acceptance_.rate(1, 1) < kSeldomRight) pause(num_outputs);
}

void Prediction::pause(int64_t num_outputs) {
  pause_ = std::min(2 * pause_ + 1, kPauseMax);
  next_look_ = num_outputs + pause_;
}

NgramIndex& SpeculativeText::own() {
  if (own_) return *own_;
  own_.emplace(capacity_);
  for (const TokenId token : prompt_.last(std::min(prompt_.size(), capacity_)))
    own_->append(scope, token);
  return *own_;
}

Speculator::Speculator(const Config& config)
    : config_(config),
      history_(config.uses_ngrams ? static_cast<size_t>(config.history_tokens) : 0) {}

std::unique_ptr<SpeculativeText> Speculator::start(uint64_t scope, std::span<const TokenId> prompt,
                                                   int32_t max_new_tokens) {
  const size_t most = std::min(prompt.size() + static_cast<size_t>(max_new_tokens), kOwnTokensMax);
  return std::make_unique<SpeculativeText>(scope, prompt, most);
}

void Speculator::observe_token(SpeculativeText& text, TokenId token) {
  ++text.num_outputs;
  if (std::exchange(text.last_step, num_steps_) == num_steps_) ++num_accepted_;
  bool any = false, any_right = false;
  for (size_t i = 0; i < kNumDraftSources; ++i) {
    Prediction& prediction = text.predictions[i];
    if (prediction.size() == 0) continue;
    any = true;
    any_right |= prediction.tokens()[0] == token;
    prediction.observe(token, text.num_outputs, source_at(i), policy_);
  }
  text.missed = any && !any_right;
  if (config_.uses_ngrams) text.own().append(text.scope, token);
}

// With the end of the prompt, behind which the answer begins.
void Speculator::finish(SpeculativeText& text) {
  if (text.num_outputs == 0 || !config_.uses_ngrams) return;
  const NgramIndex& own = text.own();
  int64_t first = std::max<int64_t>(0, own.size() - text.num_outputs - NgramIndex::kMatchMax);
  first = std::max(first, own.size() - static_cast<int64_t>(own.capacity()));
  history_.end_text();
  for (int64_t at = first; at < own.size(); ++at) history_.append(text.scope, own.at(at));
}

bool Speculator::may_pay(int32_t num_entries, int32_t samples_max) {
  const int32_t most = std::min(samples_max, num_entries * config_.draft_tokens_max);
  return planner_.may_pay(num_entries, most) || ++num_refused_ % kLookPeriod == 0;
}

// A request's own text that repeats itself goes on behind its end with what is predicted.
void Speculator::look_up_ngrams(const NgramIndex& index, SpeculativeText& text,
                                Prediction& prediction) {
  const NgramIndex& own = text.own();
  const NgramIndex::Match match = index.find(text.scope, own.recent());
  std::array<TokenId, Prediction::kTokensMax> found;
  size_t count = 0;
  for (int64_t at = match.next; match.next >= 0 && count < found.size(); ++at) {
    const int64_t beyond = at - index.size();
    const TokenId token =
        beyond >= 0 && &index == &own ? found[static_cast<size_t>(beyond)] : index.at(at);
    if (token < 0) break;
    found[count++] = token;
  }
  prediction.take(std::span(found).first(count), match.length, text.num_outputs, /*rests=*/false);
}

void Speculator::look_up(DraftSource source, SpeculativeText& text, const DraftSite& site) {
  Prediction& prediction = text.predictions[static_cast<size_t>(source)];
  if (source != DraftSource::kRadix)
    return look_up_ngrams(source == DraftSource::kOwnText ? text.own() : history_, text,
                          prediction);
  std::array<TokenId, Prediction::kTokensMax> found;
  const int32_t count =
      read_continuation(*config_.tree, site.pages.lock(), site.tokens, text.position, found);
  // Keys of pictures are no tokens and cannot be proposed.
  const auto end = std::find_if(found.begin(), found.begin() + count,
                                [](TokenId token) { return token >= kFirstSpanKey; });
  prediction.take(std::span(found.begin(), end), 0, text.num_outputs, /*rests=*/true);
}

// The source that is right most often, of equal ones the one whose match is longer.
Speculator::Best Speculator::predict(SpeculativeText& text, const DraftSite& site) {
  Best best;
  double best_rate = 0;
  for (size_t i = 0; i < kNumDraftSources; ++i) {
    if (!uses(source_at(i))) continue;
    const Prediction& prediction = text.predictions[i];
    if (prediction.wants(config_.draft_tokens_max + 1, text.num_outputs))
      look_up(source_at(i), text, site);
    if (prediction.size() == 0) continue;
    const DraftPolicy::Origin origin{source_at(i), prediction.match_length()};
    const double rate = policy_.acceptance(origin, prediction.acceptance());
    const bool longer = rate == best_rate && origin.match_length > best.origin.match_length;
    if (rate < best_rate || (rate == best_rate && !longer)) continue;
    best = {&prediction, origin};
    best_rate = rate;
  }
  return best;
}

void Speculator::begin_plan(int32_t num_entries, int32_t samples_max) {
  ++num_plans_;
  chains_.clear();
  planned_.clear();
  awaits_ = false;
  num_entries_ = num_entries;
  samples_max_ = samples_max;
  looks_ = may_pay(num_entries, samples_max);
}

// Behind a token that is being sampled go draft tokens if it is the one predicted, or if something
// is predicted behind the one that comes instead.
void Speculator::add_to_plan(SpeculativeText& text, const DraftSite& site) {
  text.planned_by = num_plans_;
  text.num_planned = 0;
  awaits_ |= site.awaits_sample;
  if (!looks_ || site.tokens_max < 1) return;
  const Best best = predict(text, site);
  if (std::exchange(text.missed, false)) found_anew_.add(best.prediction != nullptr);
  if (best.prediction == nullptr) return;
  DraftChain chain{.origin = best.origin,
                   .own = &best.prediction->acceptance(),
                   .most = best.prediction->size()};
  if (site.awaits_sample) {
    const double right = policy_.acceptance(best.origin, *chain.own);
    chain.reached = right + (1 - right) * found_anew_.rate(0, kFoundWeight);
    ++chain.origin.match_length;
    --chain.most;
  }
  chain.most = std::min({chain.most, config_.draft_tokens_max, site.tokens_max});
  if (chain.most < 1) return;
  chains_.push_back(chain);
  planned_.push_back(&text);
}

bool Speculator::end_plan() {
  const int32_t num_planned = planner_.plan(num_entries_, samples_max_, chains_, awaits_);
  if (awaits_) return num_planned > 0;
  for (size_t i = 0; i < chains_.size(); ++i) planned_[i]->num_planned = chains_[i].length;
  return false;
}

void Speculator::propose(SpeculativeText& text, const DraftSite& site, DraftTokens& draft) {
  const bool is_planned = text.planned_by == num_plans_;
  int32_t length = std::exchange(text.num_planned, 0);
  const int32_t most = std::min({config_.draft_tokens_max, draft.tokens_max, draft.samples_max});
  if (most < 1 || (is_planned ? length < 1 : !may_pay(num_entries_, most))) return;
  const Best best = predict(text, site);
  if (best.prediction == nullptr) return;
  const auto tokens = best.prediction->tokens();
  DraftChain chain{.origin = best.origin,
                   .own = &best.prediction->acceptance(),
                   .most = std::min(most, best.prediction->size())};
  if (!is_planned) length = planner_.extend(chain, most);
  length = std::min(length, chain.most);
  for (int32_t i = 0; i < length; ++i) {
    draft.tokens.push_back(tokens[static_cast<size_t>(i)]);
    draft.samples.push_back(i);
  }
  draft.drafter = drafter_of(best.origin.source);
  draft.is_planned = length > 0;
}

void Speculator::observe_step(const ForwardBatch& batch, const StepSeconds& seconds) {
  ++num_steps_;
  DraftPlanner::Step step{.num_entries = static_cast<int32_t>(batch.entries.size()),
                          .num_accepted = std::exchange(num_accepted_, 0),
                          .seconds = seconds.since_commit,
                          .is_first = seconds.is_first};
  bool decodes = true;
  for (const BatchEntry& entry : batch.entries) {
    step.num_draft_tokens += entry.num_draft_tokens;
    decodes &= entry.sample && entry.num_query_tokens == 1 + entry.num_draft_tokens;
  }
  if (decodes && seconds.device > 0 && config_.measures_cost) planner_.observe_step(step);
}

}  // namespace espalier
