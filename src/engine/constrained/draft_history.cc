#include "engine/constrained/draft_history.h"

#include <algorithm>

#include "base/rng.h"

namespace espalier {

namespace {
// How many tokens before a position distinguish it from others of the same automaton state.
constexpr size_t kContext = 2;
}  // namespace

TokenId DrawnTokens::likely(uint64_t place) const {
  const Entry& entry = entries_[place % kEntries];
  return entry.place == place && entry.confidence >= kConfident ? entry.token : -1;
}

void DrawnTokens::learn(uint64_t place, TokenId token) {
  Entry& entry = entries_[place % kEntries];
  if (entry.place == place && entry.token == token) {
    entry.confidence = std::min(entry.confidence + 1, kConfidenceMax);
  } else if (entry.place == place && entry.confidence > kConfident) {
    entry.confidence = kConfident - 1;  // once more, and it is another's
  } else {
    entry = {place, token, 0};
  }
}

uint64_t DraftHistory::place_of(uint64_t scope, const grammar::Matcher& matcher,
                                std::span<const TokenId> output) {
  uint64_t place = mix64(scope ^ mix64(matcher.state()));
  for (const TokenId token : output.last(std::min(output.size(), kContext)))
    place = mix64(place ^ static_cast<uint64_t>(token));
  return place;
}

void DraftHistory::learn(uint64_t scope, const grammar::Matcher& matcher,
                         std::span<const TokenId> output, TokenId token) {
  drawn_.learn(place_of(scope, matcher, output), token);
}

void DraftHistory::begin(std::span<const TokenId> output) {
  const auto recent = output.last(std::min(output.size(), JumpForward::kWindowMax));
  output_.assign(recent.begin(), recent.end());
}

template <typename Next>
void DraftHistory::walk(grammar::Matcher& matcher, bool forces, DraftTokens& draft,
                        const Next& next) {
  const size_t steps = matcher.steps();
  const auto most = static_cast<size_t>(draft.tokens_max);
  while (draft.tokens.size() < most && std::ssize(draft.samples) < draft.samples_max) {
    const TokenId token = next();
    if (token < 0 || !matcher.accept_token(token) || matcher.must_end()) break;
    forced_.assign(1, token);
    output_.push_back(token);
    if (forces) jump_.append_forced(matcher, output_, forced_);
    const size_t count = std::min(forced_.size(), most - draft.tokens.size());
    bool goes_on = count == forced_.size();
    for (size_t i = 1; i < count && goes_on; ++i)
      goes_on = matcher.accept_token(forced_[i]) && !matcher.must_end();
    draft.tokens.insert(draft.tokens.end(), forced_.begin(),
                        forced_.begin() + static_cast<std::ptrdiff_t>(count));
    if (!goes_on) break;
    output_.insert(output_.end(), forced_.begin() + 1, forced_.end());
    draft.samples.push_back(static_cast<int32_t>(draft.tokens.size()) - 1);
  }
  matcher.rollback(matcher.steps() - steps);
}

void DraftHistory::append(uint64_t scope, grammar::Matcher& matcher,
                          std::span<const TokenId> output, DraftTokens& draft) {
  begin(output);
  walk(matcher, true, draft, [&] { return drawn_.likely(place_of(scope, matcher, output_)); });
}

void DraftHistory::append_chain(grammar::Matcher& matcher, std::span<const TokenId> output,
                                std::span<const TokenId> chain, bool forces, DraftTokens& draft) {
  begin(output);
  walk(matcher, forces, draft, [&]() -> TokenId {
    const size_t count = draft.tokens.size();
    const bool follows =
        count < chain.size() && std::ranges::equal(draft.tokens, chain.first(count));
    return follows ? chain[count] : -1;
  });
}

bool DraftHistory::any(uint64_t scope, grammar::Matcher& matcher, std::span<const TokenId> output,
                       int32_t least) {
  begin(output);
  const size_t steps = matcher.steps();
  int32_t count = 0;
  for (; count < least; ++count) {
    const TokenId token = drawn_.likely(place_of(scope, matcher, output_));
    if (token < 0 || !matcher.accept_token(token) || matcher.must_end()) break;
    output_.push_back(token);
  }
  matcher.rollback(matcher.steps() - steps);
  return count == least;
}

}  // namespace espalier
