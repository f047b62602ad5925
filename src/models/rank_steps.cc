#include "models/rank_steps.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace espalier {
namespace {

// The pages of one of the ranks that share a layer's planes evenly.
KvView::Layer pages_of(const KvView::Layer& all, int32_t rank, int32_t num_ranks) {
  KvView::Layer out = all;
  out.num_pages = all.num_pages / num_ranks;
  const int64_t offset = int64_t{rank} * out.num_pages * all.page_bytes();
  out.k = static_cast<std::byte*>(all.k) + offset;
  out.v = static_cast<std::byte*>(all.v) + offset;
  return out;
}

int64_t num_samples(const ForwardBatch& batch) {
  int64_t count = 0;
  for (const BatchEntry& entry : batch.entries)
    if (entry.sample) count += 1 + entry.num_draft_samples;
  return count;
}

}  // namespace

Status RankSteps::reserve(int32_t max_entries, int32_t vocab_size) {
  wanted_.reserve(static_cast<size_t>(max_entries));
  vocab_size_ = vocab_size;
  if (vocab_size == 0) return Status();
  const auto size = static_cast<size_t>(max_entries) * static_cast<size_t>(vocab_size);
  ESP_ASSIGN_OR_RETURN(sample_logits_, Buffer::allocate(size * sizeof(float)));
  return Status();
}

void RankSteps::begin(const ForwardBatch& batch, std::span<const TokenId> token_ids,
                      const KvView& kv) {
  const auto num_ranks = static_cast<int32_t>(parts_.size());
  ESP_CHECK(batch.ranks.size() == parts_.size(), "{} parts of a batch for {} ranks",
            batch.ranks.size(), parts_.size());
  size_t first_token = 0;
  int32_t first_entry = 0;
  num_samples_ = 0;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    Part& part = parts_[static_cast<size_t>(rank)];
    part.batch = &batch.ranks[static_cast<size_t>(rank)];
    part.token_ids = token_ids.subspan(first_token, part.batch->token_ids.size());
    part.first_entry = first_entry;
    part.output = {};
    part.kv.page_size = kv.page_size;
    part.kv.layers.clear();
    for (const KvView::Layer& layer : kv.layers)
      part.kv.layers.push_back(pages_of(layer, rank, num_ranks));
    part.rows.sample_logits = sample_logits_.as<float>() + num_samples_ * vocab_size_;
    first_token += part.token_ids.size();
    first_entry += static_cast<int32_t>(part.batch->entries.size());
    num_samples_ += num_samples(*part.batch);
  }
  plan_rows();
}

void RankSteps::plan_rows() {
  num_tokens_.clear();
  num_wanted_.clear();
  positions_.clear();
  wanted_positions_.clear();
  for (const Part& part : parts_) {
    const std::vector<int32_t>& positions = part.batch->positions;
    num_tokens_.push_back(std::ssize(positions));
    positions_.insert(positions_.end(), positions.begin(), positions.end());
    wanted_.plan(part.batch->entries);
    num_wanted_.push_back(wanted_.num_rows());
    for (const program::WantedRows::Tail& tail : wanted_.tails()) {
      const auto first = positions.begin() + tail.source_row;
      wanted_positions_.insert(wanted_positions_.end(), first, first + tail.count);
    }
  }
  for (Part& part : parts_) {
    part.rows.num_tokens = num_tokens_;
    part.rows.num_wanted = num_wanted_;
    part.rows.positions = positions_;
    part.rows.wanted_positions = wanted_positions_;
  }
}

InputLogitsSink RankSteps::sink_of(int32_t rank, const InputLogitsSink& sink) {
  return [this, first = part(rank).first_entry, &sink](int32_t entry, int32_t target,
                                                       std::span<const float> logits) {
    const std::lock_guard lock(sink_mutex_);
    sink(first + entry, target, logits);
  };
}

ForwardOutput RankSteps::output() {
  ForwardOutput out{.sample_logits = {sample_logits_.as<float>(),
                                      static_cast<size_t>(num_samples_ * vocab_size_)}};
  pooled_rows_.clear();
  for (const Part& part : parts_) {
    const std::span<const float> rows = part.output.pooled_rows;
    pooled_rows_.insert(pooled_rows_.end(), rows.begin(), rows.end());
  }
  out.pooled_rows = pooled_rows_;
  return out;
}

}  // namespace espalier
