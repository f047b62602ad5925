#include "engine/executor/cuda/stage_exchange.h"

#include <algorithm>

namespace espalier {

StageExchange::StageExchange(StageLink& link, const CudaDecoder& model, int32_t* slot_tokens,
                             int32_t max_slots)
    : link_(link),
      rows_(model.stage_rows()),
      row_bytes_(model.info().hidden_size * static_cast<int64_t>(dtype_size(model.type()))),
      slot_tokens_(slot_tokens) {
  if (rows_.received != nullptr) return;
  link_.set_slot_tokens(slot_tokens);
  sampled_in_.assign(static_cast<size_t>(max_slots), 0);
}

Status StageExchange::begin(const ForwardBatch& batch, int32_t num_tokens,
                            const cuda::Stream& stream) {
  if (rows_.received == nullptr) return await_tokens(batch, stream);
  return link_.receive(rows_.received, bytes(num_tokens), stream);
}

// Tokens of slots come from the steps that sampled them last: a later step that the last stage
// still computes delays nothing.
Status StageExchange::await_tokens(const ForwardBatch& batch, const cuda::Stream& stream) {
  uint64_t step = 0;
  for (const BatchEntry& entry : batch.entries) {
    const auto first = batch.token_ids.begin() + entry.query_begin;
    const auto end = first + entry.num_query_tokens;
    uint64_t& sampled_in = sampled_in_[static_cast<size_t>(entry.slot)];
    if (std::find(first, end, kTokenFromSlot) != end) step = std::max(step, sampled_in);
    if (entry.sample) sampled_in = batch.step;
  }
  return step == 0 ? Status() : link_.await_tokens(step, stream);
}

Status StageExchange::end(int32_t num_tokens, const cuda::Stream& stream) {
  return is_last() ? Status() : link_.send(rows_.handed_on, bytes(num_tokens), stream);
}

Status StageExchange::send_tokens(uint64_t step, const cuda::Stream& stream) {
  return is_last() ? link_.send_tokens(step, slot_tokens_, stream) : Status();
}

}  // namespace espalier
