#include "engine/executor/slot_lengths.h"

#include <algorithm>

#include "base/check.h"

namespace espalier {

AcceptedDraft accept_draft(const ForwardBatch& batch, const BatchEntry& entry,
                           const EntryResult& result) {
  AcceptedDraft out{.next = result.token};
  const auto first_token = static_cast<size_t>(entry.query_begin + entry.last_known() + 1);
  const auto first_sample = static_cast<size_t>(entry.draft_samples_begin);
  for (int32_t k = 0; k < entry.num_draft_samples; ++k) {
    const int32_t draft = batch.draft_samples[first_sample + static_cast<size_t>(k)];
    const TokenId sampled = result.draft_tokens[static_cast<size_t>(k)];
    if (draft != out.num_tokens || sampled < 0) break;
    if (batch.token_ids[first_token + static_cast<size_t>(draft)] != out.next) break;
    ++out.num_tokens;
    out.next = sampled;
  }
  return out;
}

SlotLengths::Slot& SlotLengths::at(SlotId slot) {
  const auto index = static_cast<size_t>(slot);
  if (slots_.size() <= index) slots_.resize(index + 1);
  return slots_[index];
}

const ForwardBatch& SlotLengths::resolve(const ForwardBatch& batch, int32_t page_size) {
  const auto from_slot = [](const BatchEntry& entry) {
    return entry.prefix_len == kLengthFromSlot;
  };
  if (std::ranges::none_of(batch.entries, from_slot)) return batch;
  resolved_ = batch;
  for (BatchEntry& entry : resolved_.entries) {
    if (!from_slot(entry)) continue;
    resolve_entry(entry, page_size);
    for (int32_t i = 0; i < entry.num_query_tokens; ++i)
      resolved_.positions[static_cast<size_t>(entry.query_begin + i)] = entry.prefix_len + i;
  }
  return resolved_;
}

void SlotLengths::resolve_entry(BatchEntry& entry, int32_t page_size) {
  const Slot& slot = at(entry.slot);
  ESP_CHECK(slot.length >= 0 && slot.length <= entry.prefix_len_max,
            "slot {} has a length of {}, and its entry allows at most {}", entry.slot, slot.length,
            entry.prefix_len_max);
  entry.prefix_len = slot.length;
  entry.output_index = slot.next_output_index;
  const int32_t end = entry.prefix_len + entry.num_query_tokens;
  entry.num_pages = (end + page_size - 1) / page_size;
}

TokenId SlotLengths::commit(const ForwardBatch& batch, const BatchEntry& entry,
                            EntryResult& result) {
  const AcceptedDraft accepted = accept_draft(batch, entry, result);
  Slot& slot = at(entry.slot);
  slot.length = entry.prefix_len + entry.last_known() + 1 + accepted.num_tokens;
  slot.next_output_index = entry.output_index + (entry.sample ? 1 + accepted.num_tokens : 0);
  result.length = slot.length;
  return accepted.next;
}

}  // namespace espalier
