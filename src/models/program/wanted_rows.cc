#include "models/program/wanted_rows.h"

#include <algorithm>

namespace espalier::program {
namespace {

// The first of the entry's query tokens whose row is wanted.
int32_t first_wanted(const BatchEntry& entry) {
  int32_t first = entry.num_query_tokens;
  if (entry.sample) first = entry.last_known();
  if (!entry.input_logprob_targets.empty()) first = std::min(first, entry.input_logprob_begin);
  if (entry.pooled_begin >= 0) first = std::min(first, entry.pooled_begin);
  if (entry.hidden_begin >= 0) first = std::min(first, entry.hidden_begin);
  return first;
}

}  // namespace

void WantedRows::reserve(size_t max_entries) {
  tails_.reserve(max_entries);
  entries_.resize(max_entries);
}

void WantedRows::plan(std::span<const BatchEntry> entries) {
  tails_.clear();
  num_rows_ = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const BatchEntry& entry = entries[i];
    const int32_t first = first_wanted(entry), count = entry.num_query_tokens - first;
    if (count == 0) continue;
    BatchEntry& tail = entries_[tails_.size()];
    tail.num_query_tokens = count;
    tail.prefix_len = entry.prefix_len + first;
    tail.query_begin = num_rows_;
    tail.page_begin = entry.page_begin;
    tail.num_pages = entry.num_pages;
    tail.slot = entry.slot;
    tails_.push_back({static_cast<int32_t>(i), first, entry.query_begin + first, num_rows_, count});
    num_rows_ += count;
  }
}

}  // namespace espalier::program
