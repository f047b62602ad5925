#include "engine/executor/cuda/draft_rows.h"

#include <algorithm>
#include <utility>

namespace espalier {

const ForwardBatch& DraftRows::expand(const ForwardBatch& batch) {
  if (batch.draft_samples.empty()) return batch;
  rows_.clear();
  first_row_.clear();
  rows_.step = batch.step;
  rows_.token_ids = batch.token_ids;
  for (const BatchEntry& entry : batch.entries) {
    first_row_.push_back(rows_.entries.size());
    add_rows(batch, entry);
  }
  first_row_.push_back(rows_.entries.size());
  add_prefixes(batch);
  return rows_;
}

void DraftRows::add_rows(const ForwardBatch& batch, const BatchEntry& entry) {
  rows_.entries.push_back(entry);
  if (entry.num_draft_samples == 0) return;
  const auto samples = batch.draft_samples.begin() + entry.draft_samples_begin;
  const int32_t num_known = entry.last_known() + 1;
  const auto end_row = [&](int32_t end) {  // the row that is last so far ends before this token
    BatchEntry& row = rows_.entries.back();
    row.num_query_tokens = entry.query_begin + end - row.query_begin;
    row.num_draft_tokens = row.num_draft_samples = 0;
  };
  // A draft token that nothing is sampled behind has its row together with the next that is.
  int32_t begin = num_known;
  for (int32_t k = 0; k < entry.num_draft_samples; ++k) {
    end_row(begin);
    BatchEntry row = entry;
    if (row.prefix_len != kLengthFromSlot) row.prefix_len += begin;
    row.prefix_len_max += begin;
    row.query_begin += begin;
    row.output_index += 1 + samples[k];
    row.input_logprob_begin = -1;
    row.input_logprob_targets.clear();
    row.pooled_begin = -1;
    row.pooled_end = false;
    rows_.entries.push_back(std::move(row));
    begin = num_known + samples[k] + 1;
  }
  end_row(entry.num_query_tokens);
  rows_.entries.back().num_draft_tokens = entry.num_query_tokens - begin;
}

void DraftRows::append_members(size_t entry) {
  for (size_t row = first_row_[entry]; row < first_row_[entry + 1]; ++row) {
    if (rows_.entries[row].num_query_tokens != 1) continue;
    rows_.shared_entries.push_back(static_cast<int32_t>(row));
    ++rows_.shared_prefixes.back().num_entries;
  }
}

void DraftRows::add_prefixes(const ForwardBatch& batch) {
  deepest_.assign(batch.entries.size(), -1);
  for (const SharedPrefixSegment& prefix : batch.shared_prefixes) {
    const auto index = static_cast<int32_t>(rows_.shared_prefixes.size());
    rows_.shared_prefixes.push_back(prefix);
    rows_.shared_prefixes.back().first_entry = static_cast<int32_t>(rows_.shared_entries.size());
    rows_.shared_prefixes.back().num_entries = 0;
    for (int32_t i = 0; i < prefix.num_entries; ++i) {
      const auto entry =
          static_cast<size_t>(batch.shared_entries[static_cast<size_t>(prefix.first_entry + i)]);
      deepest_[entry] = index;
      append_members(entry);
    }
  }
  for (size_t entry = 0; entry < batch.entries.size(); ++entry) add_own_prefix(batch, entry);
}

void DraftRows::add_own_prefix(const ForwardBatch& batch, size_t entry) {
  if (first_row_[entry + 1] - first_row_[entry] < 2) return;
  const int32_t parent = deepest_[entry];
  const int32_t begin = parent < 0 ? 0 : rows_.shared_prefixes[static_cast<size_t>(parent)].end;
  const int32_t end = batch.entries[entry].prefix_len;
  if (end <= begin) return;
  rows_.shared_prefixes.push_back(
      {.begin = begin,
       .end = end,
       .parent = parent,
       .first_entry = static_cast<int32_t>(rows_.shared_entries.size())});
  append_members(entry);
  if (rows_.shared_prefixes.back().num_entries >= 2) return;
  rows_.shared_entries.resize(static_cast<size_t>(rows_.shared_prefixes.back().first_entry));
  rows_.shared_prefixes.pop_back();
}

void DraftRows::fold(const ForwardBatch& batch, StepResult& result) {
  result.entries.assign(batch.entries.size(), {});
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    EntryResult& out = result.entries[i];
    out = std::move(results_.entries[first_row_[i]]);
    const size_t num_rows = first_row_[i + 1] - first_row_[i] - 1;
    out.draft_tokens.reserve(num_rows);
    out.draft_logprobs.reserve(num_rows);
    for (size_t row = first_row_[i] + 1; row < first_row_[i + 1]; ++row) {
      EntryResult& draft = results_.entries[row];
      out.draft_tokens.push_back(draft.status.ok() ? draft.token : -1);
      out.draft_logprobs.push_back(std::move(draft.logprobs));
    }
  }
}

}  // namespace espalier
