// One sequence in the scheduler's hands.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/check.h"
#include "cache/prefix_cache.h"
#include "engine/scheduler/scheduler.h"

namespace espalier {

// waiting -> running -> ending -> gone; running -> retracting -> waiting. An ending or retracting
// one gets no more entries and leaves when its last launched step is committed.
enum class SequenceState : uint8_t { kWaiting, kRunning, kEnding, kRetracting };

// Lowest goes first.
struct WaitingRank {
  int64_t tier = 0;
  int64_t order = 0;  // no two are equal
  friend auto operator<=>(const WaitingRank&, const WaitingRank&) = default;
};

//   tokens:  | prompt                     | output so far |
//            | num_computed | in flight | to come          |
//                           num_launched
struct WaitingNode;
struct WaitingShare;

// What a step of a running one reads and writes comes first and lies together: with a thousand
// running, the second-level cache holds little more than that (prefetch_step).
struct alignas(64) Sequence {
  std::vector<TokenId> tokens;  // prompt, then output
  int32_t prompt_len = 0;
  SequenceState state = SequenceState::kWaiting;
  bool needs_slot_init = false;
  bool entry_failed = false;
  bool finish_told = false;
  bool held = false;  // until its entry in flight is committed: tokens will be forced behind it
  SlotId slot = -1;
  int32_t num_pages_max = 0;
  int32_t num_computed = 0;          // tokens whose keys and values committed steps have written
  int32_t num_launched = 0;          // the same, with those in flight
  int32_t num_samples_launched = 0;  // output tokens, with those in flight
  int32_t prefill_end = 0;           // tokens.size() when it was admitted
  // Positions [next_logprob, logprob_end), of the prompt or forced, still need an entry that gives
  // their log-probabilities.
  int32_t next_logprob = 0, logprob_end = 0;
  // Moves when entries of its table, not only its length, may have changed.
  uint64_t table_version = 0;
  uint64_t last_step = 0;         // launched with it
  uint64_t stale_step = 0;        // what steps up to this one sample for it is dropped
  WaitingShare* share = nullptr;  // whom its service counts for, until it leaves
  SequencePages pages;
  RequestStats stats;
  SequenceSpec spec;  // its prompt_ids are moved to `tokens`

  std::optional<FinishReason> abort_reason;

  // While it waits.
  WaitingRank own_rank;      // by the policy
  WaitingRank waiting_rank;  // the same, but when it was retracted
  int32_t matched = 0;       // tokens, when the cache had `match_version`
  uint64_t match_version = kNeverMatched;
  int32_t match_bound = 0;  // where the cache has a sliding window
  uint64_t bound_version = kNeverMatched;
  WaitingNode* waiting_node = nullptr;  // in a WaitingTree
  Sequence* next_arrived = nullptr;     // in its share, of those that wait and were not retracted
  Sequence* prev_arrived = nullptr;
  int64_t overdue_at = 0;     // when so many of its share have left the queue, it goes first
  bool in_retracted = false;  // it waits before all others
  bool preempted = false;     // since it was admitted last: it goes back to its place
  int32_t num_preemptions = 0;
  bool keeps_its_place = false;  // it was overdue: it is not preempted
  RadixNode* promise = nullptr;  // while it prefills: its run in PromisedPrefixes

  static constexpr uint64_t kNeverMatched = ~0ull;

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_outputs() const { return num_tokens() - prompt_len; }
  bool prefilling() const { return num_launched < prefill_end; }
  bool was_retracted() const { return stats.num_retractions > num_preemptions; }
  std::span<const TokenId> first_tokens(int32_t count) const {
    ESP_CHECK(count <= num_tokens());
    return std::span(tokens).first(static_cast<size_t>(count));
  }

  // A decode entry is due unless its end by length is certain already.
  bool wants_decode_entry() const {
    return state == SequenceState::kRunning && !held && !prefilling() &&
           num_samples_launched < spec.max_new_tokens;
  }

  // Of its next decode entry: the last token's, and those of forced ones that none has computed
  // yet.
  int32_t num_due() const { return std::max(1, num_tokens() - num_launched); }

  // Ahead of a step's work on it, in two turns: what it holds, then what that points to.
  void prefetch_step() const {
    constexpr size_t kLine = 64, kHot = 384;  // up to spec.pooled
    const auto* const begin = reinterpret_cast<const std::byte*>(this);
    for (size_t at = 0; at < kHot; at += kLine) __builtin_prefetch(begin + at, 1);
  }
  void prefetch_ends() const {
    __builtin_prefetch(tokens.data() + tokens.size(), 1);
    __builtin_prefetch(pages.table().data() + pages.table().size(), 1);
  }

  // How many tokens may come from the cache. The last one's logits are wanted; and so are those of
  // the position before each position whose log-probability is; and of every token that is
  // pooled the state is, which no cache holds.
  int32_t match_limit() const {
    if (spec.pooled == PooledTokens::kAll) return 0;
    const int32_t most = num_tokens() - 1;
    return next_logprob < logprob_end ? std::min(most, std::max(next_logprob - 1, 0)) : most;
  }
};

// The match of a waiting sequence, looked up again only when the cache has changed.
inline int32_t current_match(Sequence& sequence, const PrefixCache& cache) {
  if (sequence.match_version != cache.version()) {
    sequence.matched =
        cache.match(sequence.spec.cache_namespace, sequence.first_tokens(sequence.match_limit()));
    sequence.match_version = cache.version();
  }
  return sequence.matched;
}

// The same for PrefixCache::match_bound, by which the waiting are ordered.
inline int32_t current_match_bound(Sequence& sequence, const PrefixCache& cache) {
  if (!cache.has_window()) return current_match(sequence, cache);
  if (sequence.bound_version != cache.version()) {
    sequence.match_bound = cache.match_bound(sequence.spec.cache_namespace,
                                             sequence.first_tokens(sequence.match_limit()));
    sequence.bound_version = cache.version();
  }
  return sequence.match_bound;
}

}  // namespace espalier
