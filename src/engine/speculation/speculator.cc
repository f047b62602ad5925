#include "engine/speculation/speculator.h"

#include <algorithm>

namespace espalier {

Speculator::Speculator(const Config& config)
    : config_(config), history_(static_cast<size_t>(config.history_tokens)) {}

std::unique_ptr<SpeculativeText> Speculator::start(uint64_t scope, std::span<const TokenId> prompt,
                                                   int32_t max_new_tokens) {
  const size_t most = std::min(prompt.size() + static_cast<size_t>(max_new_tokens), kOwnTokensMax);
  auto text = std::make_unique<SpeculativeText>(scope, most);
  text->draft.reserve(static_cast<size_t>(config_.draft_tokens_max));
  for (const TokenId token : prompt.last(std::min(prompt.size(), kOwnTokensMax)))
    text->own.append(scope, token);
  ++num_live_;
  return text;
}

// A draft token counts as verified if all before it were accepted.
void Speculator::observe_token(SpeculativeText& text, TokenId token) {
  if (text.num_compared < text.draft.size()) {
    DraftPolicy::Origin origin = text.origin;
    origin.position = static_cast<int32_t>(text.num_compared);
    const bool accepted = text.draft[text.num_compared++] == token;
    policy_.observe_token(origin, text.acceptance, accepted);
    if (accepted) ++counts_[static_cast<size_t>(origin.source)].accepted;
    if (!accepted) text.draft.clear();
  }
  text.own.append(text.scope, token);
  ++text.num_outputs;
}

// With the end of the prompt, behind which the answer begins.
void Speculator::finish(SpeculativeText& text) {
  --num_live_;
  if (text.num_outputs == 0) return;
  int64_t first = std::max<int64_t>(0, text.own.size() - text.num_outputs - NgramIndex::kMatchMax);
  first = std::max(first, text.own.size() - static_cast<int64_t>(text.own.capacity()));
  history_.end_text();
  for (int64_t at = first; at < text.own.size(); ++at) history_.append(text.scope, text.own.at(at));
}

int32_t Speculator::num_running() const { return std::max({num_live_, num_entries_, 1}); }

// The longer match; of equal ones the request's own.
Speculator::Found Speculator::find(const SpeculativeText& text) const {
  const std::span<const TokenId> context = text.own.recent();
  const NgramIndex::Match own = text.own.find(text.scope, context);
  const NgramIndex::Match other =
      own.length < NgramIndex::kMatchMax ? history_.find(text.scope, context) : NgramIndex::Match{};
  if (own.next >= 0 && own.length >= other.length)
    return {&text.own, own, {.source = DraftSource::kOwnText, .match_length = own.length}};
  if (other.next < 0) return {};
  return {&history_, other, {.source = DraftSource::kHistory, .match_length = other.length}};
}

// A request's own text that repeats itself goes on behind its end with what was drafted.
void Speculator::propose(SpeculativeText& text, DraftTokens& draft) {
  text.draft.clear();
  text.num_compared = 0;
  const Found found = find(text);
  if (found.index == nullptr) return;
  const int32_t most = std::min({config_.draft_tokens_max, draft.tokens_max, draft.samples_max});
  const int32_t length = policy_.length(found.origin, text.acceptance, most, num_running());
  for (int32_t i = 0; i < length; ++i) {
    const int64_t at = found.match.next + i, beyond = at - found.index->size();
    const TokenId token = beyond >= 0 && found.index == &text.own
                              ? text.draft[static_cast<size_t>(beyond)]
                              : found.index->at(at);
    if (token < 0) break;
    text.draft.push_back(token);
    draft.tokens.push_back(token);
    draft.samples.push_back(i);
  }
  text.origin = found.origin;
  counts_[static_cast<size_t>(found.origin.source)].proposed += std::ssize(text.draft);
}

bool Speculator::pays_to_wait(const SpeculativeText& text) const {
  const Found found = find(text);
  return found.index != nullptr && policy_.pays_to_wait(found.origin, text.acceptance,
                                                        config_.draft_tokens_max, num_running());
}

void Speculator::observe_step(const ForwardBatch& batch, double seconds) {
  int32_t num_draft_tokens = 0;
  bool decodes = true;
  for (const BatchEntry& entry : batch.entries) {
    num_draft_tokens += entry.num_draft_tokens;
    decodes &= entry.sample && entry.num_query_tokens == 1 + entry.num_draft_tokens;
  }
  num_entries_ = static_cast<int32_t>(batch.entries.size());
  if (decodes) policy_.observe_step(num_entries_, num_draft_tokens, seconds);
}

}  // namespace espalier
