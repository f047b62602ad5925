// The batches of ranks with data-parallel attention as one batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "seams/forward_batch.h"

namespace espalier {

// Makes `batch` of batch.ranks: entries and tokens of the first rank, then those of the second, and
// so on. Slots of rank r begin at r * slots_each. What describes pages stays in the parts. Keeps
// batch.step.
inline void join_ranks(int32_t slots_each, ForwardBatch& batch) {
  batch.slot_inits.clear();
  batch.entries.clear();
  batch.token_ids.clear();
  batch.positions.clear();
  batch.embedding_spans.clear();
  batch.rotary_spans.clear();
  batch.draft_samples.clear();
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (size_t rank = 0; rank < batch.ranks.size(); ++rank) {
    const ForwardBatch& part = batch.ranks[rank];
    const auto first_slot = static_cast<SlotId>(rank) * slots_each;
    const int32_t first_token = batch.num_tokens();
    const auto first_draft = static_cast<int32_t>(batch.draft_samples.size());
    for (const SlotInit& init : part.slot_inits)
      batch.slot_inits.emplace_back(init).slot += first_slot;
    for (const BatchEntry& of_rank : part.entries) {
      BatchEntry& entry = batch.entries.emplace_back(of_rank);
      entry.slot += first_slot;
      entry.query_begin += first_token;
      entry.draft_samples_begin += first_draft;
    }
    for (const EmbeddingSpan& span : part.embedding_spans)
      batch.embedding_spans.emplace_back(span).token_begin += first_token;
    for (const RotarySpan& span : part.rotary_spans)
      batch.rotary_spans.emplace_back(span).token_begin += first_token;
    append(batch.token_ids, part.token_ids);
    append(batch.positions, part.positions);
    append(batch.draft_samples, part.draft_samples);
  }
}

}  // namespace espalier
