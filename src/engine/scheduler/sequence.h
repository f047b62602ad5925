// One sequence: what the scheduler's parts keep for it. The records inside name the part that
// writes them; other parts use that part's methods.
//
//   tokens:  | prompt                     | output so far |
//            | num_computed | in flight | still to compute |
//                           num_launched
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
#include "engine/scheduler/sequence_state.h"
#include "seams/draft_counts.h"

namespace espalier {

struct WaitingNode;
struct WaitingShare;
struct Sequence;

// The lowest rank is admitted first; no two sequences have equal `order`.
struct WaitingRank {
  int64_t tier = 0;
  int64_t order = 0;
  friend auto operator<=>(const WaitingRank&, const WaitingRank&) = default;
};

// Written by WaitQueue and WaitingTree alone, but for the two memos of matches and the last field.
struct QueueEntry {
  static constexpr uint64_t kNeverMatched = ~0ull;

  WaitingShare* share = nullptr;  // the share charged for its service, until the sequence is gone
  WaitingRank own_rank;           // by the policy
  WaitingRank rank;               // the same, unless it was retracted
  int32_t matched = 0;            // cached tokens when the cache had `match_version`
  uint64_t match_version = kNeverMatched;
  int32_t match_bound = 0;  // the same of PrefixCache::match_bound, with a sliding window
  uint64_t bound_version = kNeverMatched;
  WaitingNode* node = nullptr;       // in a WaitingTree
  Sequence* next_arrived = nullptr;  // list of its share's waiting sequences in order of arrival,
  Sequence* prev_arrived = nullptr;  // without the retracted ones
  int64_t overdue_at = 0;            // it is overdue once so many of its share have left the queue
  bool in_retracted = false;         // it waits in front of all others
  RadixNode* inflight_prefix = nullptr;  // while it prefills: its run in InflightPrefixes
};

// Written by KvBudget and RunningSet; hidden_next, which bounds what may come from the cache, by
// BatchBuilder.
struct KvPlacement {
  SlotId slot = -1;
  int32_t num_pages_max = 0;  // pages of the prompt and all output
  uint64_t table_version =
      0;  // changes when entries of the page table, not only its length, change
  bool needs_slot_init = false;
  int32_t hidden_next = -1;  // tokens whose hidden states launched entries return; -1: none do
  int32_t loading_end = 0;   // tokens that a load in progress will have filled; 0: there is none
  SequencePages pages;
};

// Prompt or forced positions [next, end) that still need an entry to compute their
// log-probabilities.
struct LogprobRange {
  int32_t next = 0, end = 0;
  bool empty() const { return next >= end; }
};

// Of its entries with draft tokens, one at a time.
struct Drafting {
  Drafter drafter = Drafter::kGrammar;  // of the last such entry
  AcceptedLengths<int32_t> accepted_lengths;
};

struct Preemption {
  bool pending = false;  // since its last admission: it returns to its former rank
  int32_t count = 0;
  bool exempt = false;  // it was overdue when admitted, and is never preempted
};

// What a step reads and writes for a running sequence comes first and lies together: with a
// thousand running sequences the L2 cache holds little more than that (prefetch_step).
struct alignas(64) Sequence {
  std::vector<TokenId> tokens;  // prompt, then output
  int32_t prompt_len = 0;
  CheckedState state;
  bool entry_failed = false;
  bool finish_reported = false;
  bool awaiting_commit = false;      // it gets no entry before its entry in flight is committed
  int32_t num_computed = 0;          // tokens whose keys and values committed steps have written
  int32_t num_launched = 0;          // the same, counting steps in flight
  int32_t num_samples_launched = 0;  // output tokens, counting those in flight
  int32_t prefill_end = 0;           // tokens.size() when it was admitted
  LogprobRange logprobs;
  uint64_t last_step = 0;   // the last step launched with an entry of it
  uint64_t stale_step = 0;  // what steps up to this one sample for it is dropped
  KvPlacement kv;
  RequestStats stats;
  SequenceSpec spec;  // its prompt_ids are moved to `tokens`

  std::optional<FinishReason> abort_reason;
  QueueEntry queue;
  Preemption preemption;
  Drafting drafting;

  int32_t num_tokens() const { return static_cast<int32_t>(tokens.size()); }
  int32_t num_outputs() const { return num_tokens() - prompt_len; }
  bool prefilling() const { return num_launched < prefill_end; }
  bool was_retracted() const { return stats.num_retractions > preemption.count; }
  std::span<const TokenId> first_tokens(int32_t count) const {
    ESP_CHECK(count <= num_tokens());
    return std::span(tokens).first(static_cast<size_t>(count));
  }

  // A decode entry is due unless the sequence's end by length is certain already.
  bool wants_decode_entry() const {
    return state == SequenceState::kRunning && !awaiting_commit && !prefilling() &&
           num_samples_launched < spec.max_new_tokens;
  }

  // Query tokens of its next decode entry: the last token, and forced tokens that no step has
  // computed yet.
  int32_t num_due() const { return std::max(1, num_tokens() - num_launched); }

  // Prefetches ahead of a step's work on the sequence: first the record, then what it points to.
  void prefetch_step() const {
    constexpr size_t kLine = 64, kHot = 384;  // up to spec.pooled
    const auto* const begin = reinterpret_cast<const std::byte*>(this);
    for (size_t at = 0; at < kHot; at += kLine) __builtin_prefetch(begin + at, 1);
  }
  void prefetch_ends() const {
    __builtin_prefetch(tokens.data() + tokens.size(), 1);
    __builtin_prefetch(kv.pages.table().data() + kv.pages.table().size(), 1);
  }

  // How many tokens may come from the cache: not the last one, whose logits are needed, nor the one
  // before any position whose log-probability is requested, nor any token whose hidden state is
  // pooled or still to be returned.
  int32_t match_limit() const {
    if (spec.pooled == PooledTokens::kAll) return 0;
    int32_t most = num_tokens() - 1;
    if (kv.hidden_next >= 0) most = std::min(most, kv.hidden_next);
    return logprobs.empty() ? most : std::min(most, std::max(logprobs.next - 1, 0));
  }
};

// With hundreds of running sequences a step's state exceeds the nearest caches, so loops over
// entries prefetch the record this many entries ahead, and what it points to when it has arrived.
// Measured at 1,024 running sequences; half and twice as many are no better.
inline constexpr size_t kStepsAhead = 12, kEndsAhead = 6;

// Cached tokens of a waiting sequence, looked up again only when the cache has changed.
inline int32_t current_match(Sequence& sequence, const PrefixCache& cache) {
  QueueEntry& memo = sequence.queue;
  if (memo.match_version != cache.version()) {
    memo.matched =
        cache.match(sequence.spec.cache_namespace, sequence.first_tokens(sequence.match_limit()));
    memo.match_version = cache.version();
  }
  return memo.matched;
}

// The same for PrefixCache::match_bound, by which waiting sequences are ordered.
inline int32_t current_match_bound(Sequence& sequence, const PrefixCache& cache) {
  if (!cache.has_window()) return current_match(sequence, cache);
  QueueEntry& memo = sequence.queue;
  if (memo.bound_version != cache.version()) {
    memo.match_bound = cache.match_bound(sequence.spec.cache_namespace,
                                         sequence.first_tokens(sequence.match_limit()));
    memo.bound_version = cache.version();
  }
  return memo.match_bound;
}

}  // namespace espalier
