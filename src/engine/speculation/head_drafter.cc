#include "engine/speculation/head_drafter.h"

#include <algorithm>
#include <bit>

#include "seams/forward_batch.h"

namespace espalier {

namespace {
// What is believed of the head before it has been measured, and how many tokens that weighs.
constexpr double kHeadPriorRate = 0.6, kHeadPriorWeight = 4;
// The same of a request, whose rates begin at those of all.
constexpr double kOwnRateWeight = 8;
// A step with a chain must yield so much more than one without: measurements are noisy.
constexpr double kChainMargin = 1.04;
// Measured steps before a cost is believed.
constexpr int32_t kMeasuredStepsLeast = 5;
// Until then chains are of this length where they yield so much more tokens, and one step in so
// many has no draft tokens.
constexpr int32_t kFirstChainLength = 3;
constexpr double kFirstChainMargin = 1.2;
constexpr uint64_t kFirstPlainStepPeriod = 4, kPlainStepPeriod = 128;
// One request in so many has chains for its first tokens whatever was measured.
constexpr uint64_t kTryPeriod = 16;
constexpr int64_t kTryTokens = 4;
}  // namespace

HeadText HeadDrafter::start() {
  HeadText text;
  text.tries_ = num_texts_++ % kTryPeriod == 0;
  return text;
}

void HeadDrafter::observe_token(HeadText& text, TokenId token) {
  ++text.num_outputs_;
  if (text.begin_ == text.tokens_.size()) return;
  const bool right = text.tokens_[text.begin_] == token;
  rates_[text.begin_].add(right);
  text.rates_[text.begin_].add(right);
  if (right)
    ++text.begin_;
  else
    text.begin_ = text.tokens_.size();
}

HeadDrafter::StepCosts& HeadDrafter::costs() {
  const auto entries = static_cast<uint32_t>(std::max(num_entries_, 1));
  return costs_[std::min<size_t>(std::bit_width(entries), kBatchClasses) - 1];
}

// The length whose steps yield most tokens in a second; 0: none yields more than plain steps.
int32_t HeadDrafter::best_length(const HeadText& text) {
  const StepCosts& cost = costs();
  const int32_t most = std::min(config_.chain_max, config_.samples_max / std::max(num_entries_, 1));
  const bool is_measured = cost.plain.size() >= kMeasuredStepsLeast &&
                           cost.draft_token.size() >= kMeasuredStepsLeast &&
                           cost.head_pass.size() >= kMeasuredStepsLeast;
  double reached = 1, tokens = 1, best_yield = is_measured ? kChainMargin : kFirstChainMargin;
  int32_t best = 0;
  for (int32_t length = 1; length <= most; ++length) {
    const auto at = static_cast<size_t>(length - 1);
    reached *=
        text.rates_[at].rate(rates_[at].rate(kHeadPriorRate, kHeadPriorWeight), kOwnRateWeight);
    tokens += reached;
    const double added =
        is_measured ? length * (cost.draft_token.value() + cost.head_pass.value()) : 0;
    const double yield = added > 0 ? tokens / (1 + added / cost.plain.value()) : tokens;
    if (yield <= best_yield) continue;
    best_yield = yield;
    best = length;
  }
  return is_measured ? best : std::min(best, kFirstChainLength);
}

int32_t HeadDrafter::chain_length(HeadText& text, bool samples) {
  if (text.stopped_) return BatchEntry::kNoChain;
  int32_t length = best_length(text);
  if (length == 0 && text.tries_ && text.num_outputs_ < kTryTokens)
    length = std::min(kFirstChainLength, config_.chain_max);
  text.stopped_ = length == 0;
  if (text.stopped_) return BatchEntry::kNoChain;
  text.awaits_ = samples;
  return samples ? length : 0;
}

void HeadDrafter::take_chain(HeadText& text, std::span<const TokenId> chain) {
  text.awaits_ = false;
  text.begin_ = 0;
  text.tokens_.assign(chain.begin(), chain.end());
}

// Some steps have no draft tokens, so that the time of a plain step stays known.
bool HeadDrafter::is_plain_step() {
  const uint64_t period =
      costs().plain.size() < kMeasuredStepsLeast ? kFirstPlainStepPeriod : kPlainStepPeriod;
  return num_steps_ % period == period - 1;
}

void HeadDrafter::propose(HeadText& text, DraftTokens& draft) {
  if (text.stopped_ || is_plain_step()) return;
  const std::span<const TokenId> chain = text.chain();
  const auto most = static_cast<size_t>(std::max(std::min(draft.tokens_max, draft.samples_max), 0));
  for (const TokenId token : chain.first(std::min(chain.size(), most))) {
    draft.samples.push_back(static_cast<int32_t>(draft.tokens.size()));
    draft.tokens.push_back(token);
  }
  draft.drafter = Drafter::kHead;
  draft.is_planned = true;
}

void HeadDrafter::observe_step(const ForwardBatch& batch, const StepSeconds& seconds,
                               double draft_seconds) {
  ++num_steps_;
  int32_t num_draft_tokens = 0, num_passes = 0;
  bool decodes = true;
  for (const BatchEntry& entry : batch.entries) {
    num_draft_tokens += entry.num_draft_tokens;
    num_passes = std::max(num_passes, entry.chain_length);
    decodes &= entry.sample && entry.num_query_tokens == 1 + entry.num_draft_tokens;
  }
  num_entries_ = static_cast<int32_t>(batch.entries.size());
  if (!decodes || num_entries_ == 0 || !(seconds.device > 0) || seconds.is_first) return;
  StepCosts& cost = costs();
  if (num_passes > 0) cost.head_pass.add(draft_seconds / num_passes);
  if (num_draft_tokens == 0) {
    cost.plain.add(seconds.device);
  } else if (cost.plain.size() > 0) {
    cost.draft_token.add(std::max(0.0, seconds.device - cost.plain.value()) * num_entries_ /
                         num_draft_tokens);
  }
}

}  // namespace espalier
