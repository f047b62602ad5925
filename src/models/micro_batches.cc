#include "models/micro_batches.h"

#include <algorithm>

#include "base/check.h"

namespace espalier {

TokenCosts token_costs(const DecoderSpec& spec) {
  double weights = 0, per_position = 0;
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& a = layer.attention;
    if (a.sliding_window == 0) per_position += 2.0 * a.num_heads * a.head_dim;
    weights +=
        static_cast<double>(spec.hidden_size) * (a.q_dim() + 2 * a.kv_dim() + a.output_dim());
    const MlpSpec& mlp = layer.experts ? layer.experts->expert : layer.mlp;
    const int32_t used = layer.experts ? layer.experts->router.top_k : 1;
    weights += 3.0 * spec.hidden_size * mlp.intermediate_size * used;
  }
  return {.per_position = per_position / weights};
}

namespace {

// The query tokens of an entry in front of which it may be cut: 1 to this one.
int32_t last_cut(const BatchEntry& entry) {
  return entry.sample ? entry.last_known() : entry.num_query_tokens - 1;
}

// Query tokens [first, first + count) of an entry.
BatchEntry part_of(const BatchEntry& whole, int32_t first, int32_t count) {
  BatchEntry part;
  part.slot = whole.slot;
  part.sequence = whole.sequence;
  part.num_query_tokens = count;
  part.prefix_len = whole.prefix_len + first;
  part.table_version = whole.table_version;
  part.adapter = whole.adapter;
  if (whole.pooled_begin >= 0 && whole.pooled_begin < first + count)
    part.pooled_begin = std::max(whole.pooled_begin - first, 0);
  if (!whole.input_logprob_targets.empty()) {
    const auto all = static_cast<int32_t>(whole.input_logprob_targets.size());
    const int32_t begin = std::max(whole.input_logprob_begin, first);
    const int32_t end = std::min(whole.input_logprob_begin + all, first + count);
    if (begin < end) {
      const auto at = whole.input_logprob_targets.begin() + (begin - whole.input_logprob_begin);
      part.input_logprob_begin = begin - first;
      part.input_logprob_targets.assign(at, at + (end - begin));
    }
  }
  if (first + count < whole.num_query_tokens) return part;
  part.sample = whole.sample;
  part.has_mask = whole.has_mask;
  part.output_index = whole.output_index;
  part.pooled_end = whole.pooled_end;
  part.num_draft_tokens = whole.num_draft_tokens;
  part.num_draft_samples = whole.num_draft_samples;
  return part;
}

void skip(EmbeddingSpan& span, int32_t rows) { span.first_row += rows; }
void skip(RotarySpan& span, int32_t rows) {
  (span.columns == 0 ? span.position : span.first_row) += rows;
}

template <typename T>
void append(const std::vector<T>& from, int32_t first, int32_t count, std::vector<T>& to) {
  to.insert(to.end(), from.begin() + first, from.begin() + first + count);
}

}  // namespace

double MicroBatches::total_cost(const ForwardBatch& batch) const {
  double cost = 0;
  for (const int32_t position : batch.positions) cost += 1 + position * costs_.per_position;
  return cost;
}

MicroBatch& MicroBatches::begin_part(int32_t first_token) {
  if (count_ == parts_.size()) parts_.emplace_back();
  MicroBatch& part = parts_[count_++];
  part.batch.clear();
  part.origins.clear();
  part.first_token = first_token;
  return part;
}

void MicroBatches::add(const ForwardBatch& batch, int32_t entry, int32_t first, int32_t count) {
  MicroBatch& part = parts_[count_ - 1];
  const BatchEntry& whole = batch.entries[static_cast<size_t>(entry)];
  BatchEntry own = part_of(whole, first, count);
  own.query_begin = part.batch.num_tokens();
  own.page_begin = static_cast<int32_t>(part.batch.page_tables.size());
  const int32_t tokens = whole.prefix_len + first + count;
  own.num_pages = (tokens + page_size_ - 1) / page_size_;
  append(batch.page_tables, whole.page_begin, own.num_pages, part.batch.page_tables);
  if (!batch.window_page_tables.empty())
    append(batch.window_page_tables, whole.page_begin, own.num_pages,
           part.batch.window_page_tables);
  append(batch.token_ids, whole.query_begin + first, count, part.batch.token_ids);
  append(batch.positions, whole.query_begin + first, count, part.batch.positions);
  own.draft_samples_begin = static_cast<int32_t>(part.batch.draft_samples.size());
  if (own.num_draft_samples > 0)
    append(batch.draft_samples, whole.draft_samples_begin, own.num_draft_samples,
           part.batch.draft_samples);
  const int32_t skipped = own.input_logprob_targets.empty()
                              ? 0
                              : own.input_logprob_begin + first - whole.input_logprob_begin;
  part.origins.push_back({.entry = entry, .first_target = skipped});
  part.batch.entries.push_back(std::move(own));
}

// Spans of pictures, and of rotary positions, that touch the part's tokens.
void MicroBatches::end_part(const ForwardBatch& batch) {
  MicroBatch& part = parts_[count_ - 1];
  part.batch.step = batch.step;
  const int32_t begin = part.first_token, end = begin + part.batch.num_tokens();
  const auto clip = [&](const auto& spans, auto& to) {
    for (auto span : spans) {
      const int32_t first = std::max(span.token_begin, begin);
      const int32_t last = std::min(span.token_begin + span.count, end);
      if (first >= last) continue;
      skip(span, first - span.token_begin);
      span.token_begin = first - begin;
      span.count = last - first;
      to.push_back(std::move(span));
    }
  };
  clip(batch.embedding_spans, part.batch.embedding_spans);
  clip(batch.rotary_spans, part.batch.rotary_spans);
}

void MicroBatches::cut(const ForwardBatch& batch, int32_t page_size) {
  cut_into(batch, page_size, num_parts(batch));
}

int32_t MicroBatches::num_parts(const ForwardBatch& batch) const {
  const int32_t by_tokens = std::min(batch.num_tokens() / rows_min_, count_max_);
  const auto entries = static_cast<int32_t>(batch.entries.size());
  const int32_t by_entries = std::min(entries / entry_parts_.entries_min, entry_parts_.count_max);
  return std::max({by_tokens, by_entries, 1});
}

// The batch's segments that some of the part's entries share. A parent's entries include those of
// its children, so no child is left without its parent.
void MicroBatches::share_prefixes(const ForwardBatch& batch, MicroBatch& part) {
  ForwardBatch& to = part.batch;
  const int32_t begin = part.origins.front().entry, end = part.origins.back().entry + 1;
  kept_segments_.clear();
  for (const SharedPrefixSegment& whole : batch.shared_prefixes) {
    SharedPrefixSegment own = whole;
    own.first_entry = static_cast<int32_t>(to.shared_entries.size());
    for (int32_t i = 0; i < whole.num_entries; ++i) {
      const int32_t entry = batch.shared_entries[static_cast<size_t>(whole.first_entry + i)];
      if (begin <= entry && entry < end) to.shared_entries.push_back(entry - begin);
    }
    own.num_entries = static_cast<int32_t>(to.shared_entries.size()) - own.first_entry;
    if (own.num_entries < 2) {
      to.shared_entries.resize(static_cast<size_t>(own.first_entry));
      kept_segments_.push_back(-1);
      continue;
    }
    if (whole.parent >= 0) own.parent = kept_segments_[static_cast<size_t>(whole.parent)];
    kept_segments_.push_back(static_cast<int32_t>(to.shared_prefixes.size()));
    to.shared_prefixes.push_back(own);
  }
}

void MicroBatches::cut_steps(const ForwardBatch& batch, int32_t page_size, uint64_t first_step) {
  const bool masked = std::ranges::any_of(batch.entries, &BatchEntry::has_mask);
  cut_into(batch, page_size, masked ? 1 : num_parts(batch));
  for (size_t i = 0; i < count_; ++i) {
    parts_[i].batch.step = first_step + i;
    if (!batch.shared_prefixes.empty()) share_prefixes(batch, parts_[i]);
  }
  parts_.front().batch.slot_inits = batch.slot_inits;
}

void MicroBatches::cut_into(const ForwardBatch& batch, int32_t page_size, int32_t wanted) {
  page_size_ = page_size;
  count_ = 0;
  const double share = total_cost(batch) / wanted;
  double cost = 0;  // so far
  begin_part(0);
  for (int32_t index = 0; std::cmp_less(index, batch.entries.size()); ++index) {
    const BatchEntry& entry = batch.entries[static_cast<size_t>(index)];
    ESP_CHECK(entry.prefix_len != kLengthFromSlot, "a length that is not known yet");
    int32_t first = 0;  // of the entry's tokens that are in no part
    for (int32_t token = 0; token < entry.num_query_tokens; ++token) {
      const auto at = static_cast<size_t>(entry.query_begin + token);
      const bool may_cut = token == 0 || token <= last_cut(entry);
      if (may_cut && at > 0 && cost >= share * static_cast<double>(count_)) {
        if (token > first) add(batch, index, first, token - first);
        end_part(batch);
        begin_part(static_cast<int32_t>(at));
        first = token;
      }
      cost += 1 + batch.positions[at] * costs_.per_position;
    }
    add(batch, index, first, entry.num_query_tokens - first);
  }
  end_part(batch);
}

}  // namespace espalier
