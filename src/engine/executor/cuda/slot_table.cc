#include "engine/executor/cuda/slot_table.h"

#include <limits>

namespace espalier {

Result<SlotTable> SlotTable::create(int32_t max_slots, int32_t vocab_size) {
  SlotTable table;
  table.vocab_size_ = vocab_size;
  table.slots_.resize(static_cast<size_t>(max_slots));
  cuda::Arena measured;
  table.lay_out(measured, max_slots);
  ESP_ASSIGN_OR_RETURN(table.block_,
                       cuda::DeviceBuffer::allocate(measured.used_bytes(), "sampling parameters"));
  cuda::Arena arena(table.block_.data());
  table.lay_out(arena, max_slots);
  ESP_ASSIGN_OR_RETURN(const cuda::Stream stream, cuda::Stream::create());
  ESP_RETURN_IF_ERROR(cuda::fill_bytes(table.block_.data(), 0, table.block_.size_bytes(), stream));
  ESP_RETURN_IF_ERROR(stream.synchronize());
  return table;
}

void SlotTable::lay_out(cuda::Arena& arena, int64_t max_slots) {
  sampling_ = arena.take<kernels::cuda::SlotSampling>(max_slots);
  tokens_ = arena.take<int32_t>(max_slots);
  bias_ids_ = arena.take<int32_t>(max_slots * kMostBias);
  bias_values_ = arena.take<float>(max_slots * kMostBias);
  banned_ids_ = arena.take<int32_t>(max_slots * kMostBanned);
  counts_ = arena.take<uint16_t>(max_slots * vocab_size_);
}

// Host memory here is pageable: CUDA stages it before the call returns, so nothing must be kept.
Status SlotTable::init(const SlotInit& init, const cuda::Stream& stream) {
  const auto at = static_cast<size_t>(init.slot);
  const SamplingSpec& spec = *init.sampling;
  slots_[at] = {init.sampling, Status()};
  if (std::ssize(spec.logit_bias) > kMostBias || std::ssize(spec.banned_before_min) > kMostBanned) {
    slots_[at].status = error(
        StatusCode::kUnimplemented,
        "logit_bias has {} entries and {} ids are banned before min_new_tokens, but a GPU takes "
        "at most {} and {}",
        spec.logit_bias.size(), spec.banned_before_min.size(), kMostBias, kMostBanned);
  }
  const SamplingValues& values = spec;
  kernels::cuda::SlotSampling out{values};
  out.logprobs_mode = spec.logprobs_mode;
  if (slots_[at].status.ok()) ESP_RETURN_IF_ERROR(copy_lists(spec, at, out, stream));
  if (spec.has_penalties()) ESP_RETURN_IF_ERROR(copy_counts(init, out, stream));
  return cuda::copy_to_device(sampling_ + at, &out, sizeof(out), stream);
}

Status SlotTable::copy_lists(const SamplingSpec& spec, size_t slot,
                             kernels::cuda::SlotSampling& out, const cuda::Stream& stream) {
  const auto row = static_cast<int64_t>(slot);
  if (!spec.logit_bias.empty()) {
    std::vector<int32_t> ids;
    std::vector<float> values;
    for (const auto& [id, value] : spec.logit_bias) {
      ids.push_back(id);
      values.push_back(value);
    }
    out.num_bias = static_cast<int32_t>(ids.size());
    out.bias_ids = bias_ids_ + row * kMostBias;
    out.bias_values = bias_values_ + row * kMostBias;
    ESP_RETURN_IF_ERROR(
        cuda::copy_to_device(bias_ids_ + row * kMostBias, ids.data(), std::ssize(ids) * 4, stream));
    ESP_RETURN_IF_ERROR(cuda::copy_to_device(bias_values_ + row * kMostBias, values.data(),
                                             std::ssize(values) * 4, stream));
  }
  if (spec.min_new_tokens == 0 || spec.banned_before_min.empty()) return Status();
  out.num_banned = static_cast<int32_t>(spec.banned_before_min.size());
  out.banned_ids = banned_ids_ + row * kMostBanned;
  return cuda::copy_to_device(banned_ids_ + row * kMostBanned, spec.banned_before_min.data(),
                              out.num_banned * 4ll, stream);
}

Status SlotTable::copy_counts(const SlotInit& init, kernels::cuda::SlotSampling& out,
                              const cuda::Stream& stream) {
  std::vector<uint16_t> counts(static_cast<size_t>(vocab_size_));
  for (const TokenId id : init.prompt_ids) counts[static_cast<size_t>(id)] = 1;
  for (const TokenId id : init.output_ids) {
    uint16_t& count = counts[static_cast<size_t>(id)];
    if (count == 0) count = 1;
    if (count < std::numeric_limits<uint16_t>::max()) ++count;
  }
  out.counts = counts_ + int64_t{init.slot} * vocab_size_;
  return cuda::copy_to_device(out.counts, counts.data(), std::ssize(counts) * 2, stream);
}

}  // namespace espalier
