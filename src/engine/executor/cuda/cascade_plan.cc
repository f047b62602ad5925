#include "engine/executor/cuda/cascade_plan.h"

#include <algorithm>

namespace espalier {
namespace {

constexpr int64_t kBytesPerStep = 18 << 20;
// Multiprocessors, each of which has an equal part of all runs. One request's rows of 8 draft
// tokens at 8,192 positions of an 8 B shape: 7.09 ms a step by a run, 5.23 without, 4.76 a plain
// step; 16 requests at 1,024: 8.29, and 8.39 without runs.
constexpr int32_t kBlocksOfSegments = 128;

// Whether all of the prefix's rows are of one slot, for these are adjacent.
bool is_own(const ForwardBatch& batch, const SharedPrefixSegment& prefix) {
  if (prefix.num_entries == 0) return true;
  const auto slot_of = [&](int32_t i) {
    return batch.entries[static_cast<size_t>(batch.shared_entries[static_cast<size_t>(i)])].slot;
  };
  return slot_of(prefix.first_entry) == slot_of(prefix.first_entry + prefix.num_entries - 1);
}

// How often decode attention reads the prefix where it is not a segment: rows of one slot, which
// are adjacent, are read together.
int64_t num_reads(const ForwardBatch& batch, const SharedPrefixSegment& prefix,
                  int32_t rows_per_read) {
  const auto slot_of = [&](int32_t i) {
    const int32_t entry = batch.shared_entries[static_cast<size_t>(prefix.first_entry + i)];
    return batch.entries[static_cast<size_t>(entry)].slot;
  };
  int64_t reads = 0;
  for (int32_t i = 0, rows = 0; i < prefix.num_entries; ++i, ++rows) {
    if (i == 0 || rows == rows_per_read || slot_of(i) != slot_of(i - 1)) ++reads, rows = 0;
  }
  return reads;
}

constexpr auto kLevels = static_cast<size_t>(kernels::cuda::kSegmentsPerEntry);

}  // namespace

CascadeCosts CascadeCosts::of(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim) {
  const int64_t token_bytes = int64_t{4} * head_dim * num_kv_heads;
  const int64_t part_bytes = int64_t{8} * head_dim * num_heads;
  return {.tokens_per_part = (part_bytes + token_bytes - 1) / token_bytes,
          .tokens_per_step = kBytesPerStep / token_bytes,
          .rows_per_read = draft_rows_of(num_heads, num_kv_heads),
          .own_prefixes_least = kBlocksOfSegments / num_kv_heads};
}

int32_t draft_rows_of(int32_t num_heads, int32_t num_kv_heads) {
  constexpr int32_t kRowsOfDecode = 16;
  return std::max(1, kRowsOfDecode / (num_heads / num_kv_heads));
}

void CascadePlan::clear(size_t num_entries) {
  segments_.clear();
  members_.clear();
  places_.assign(num_entries * kLevels * 2, -1);
  own_begins_.assign(num_entries, 0);
  saved_tokens_ = 0;
}

void CascadePlan::choose(const ForwardBatch& batch, const CascadeCosts& costs) {
  clear(batch.shared_prefixes.empty() ? 0 : batch.entries.size());
  choices_.clear();
  const auto num_own = std::ranges::count_if(
      batch.shared_prefixes,
      [&](const SharedPrefixSegment& prefix) { return is_own(batch, prefix); });
  for (const SharedPrefixSegment& prefix : batch.shared_prefixes) {
    Choice choice;
    if (prefix.parent >= 0) {
      const Choice& above = choices_[static_cast<size_t>(prefix.parent)];
      choice.begin = above.chosen ? prefix.begin : above.begin;
      choice.depth = above.depth;
    }
    const int64_t saved =
        (num_reads(batch, prefix, costs.rows_per_read) - 1) * (prefix.end - choice.begin) -
        prefix.num_entries * costs.tokens_per_part;
    choice.chosen = saved > 0 && choice.depth < kernels::cuda::kSegmentsPerEntry &&
                    (num_own >= costs.own_prefixes_least || !is_own(batch, prefix));
    if (choice.chosen) {
      ++choice.depth;
      saved_tokens_ += saved;
    }
    choices_.push_back(choice);
  }
  if (saved_tokens_ <= costs.tokens_per_step) return clear(0);
  for (size_t i = 0; i < choices_.size(); ++i)
    if (choices_[i].chosen) add_run(batch, batch.shared_prefixes[i], choices_[i]);
}

void CascadePlan::add_run(const ForwardBatch& batch, const SharedPrefixSegment& prefix,
                          const Choice& choice) {
  const auto entries = batch.shared_entries.begin() + prefix.first_entry;
  const auto run = static_cast<int32_t>(segments_.size());
  segments_.push_back({.begin = choice.begin,
                       .end = prefix.end,
                       .page_begin = *entries,
                       .first_member = static_cast<int32_t>(members_.size()),
                       .num_members = prefix.num_entries});
  for (int32_t i = 0; i < prefix.num_entries; ++i) {
    const auto entry = static_cast<size_t>(entries[i]);
    const size_t place = (entry * kLevels + static_cast<size_t>(choice.depth - 1)) * 2;
    places_[place] = run;
    places_[place + 1] = i;
    own_begins_[entry] = prefix.end;
    members_.push_back(entries[i]);
  }
}

}  // namespace espalier
