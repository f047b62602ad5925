#include "engine/executor/cuda/step_results.h"

#include <algorithm>
#include <utility>

#include "engine/sampling/sampler.h"

namespace espalier {
namespace {

// Of the widest request, on average over the rows of the fullest step; kernels/sampling/cuda.h
// allows 1,024 in a row.
constexpr int32_t kTopPerRow = 32;
constexpr int32_t kMostTop = 1024;

// The rows of a batch as the packer orders them: sampled ones in entry order, then inputs'.
template <typename Visit>
void for_each_row(const ForwardBatch& batch, const Visit& visit) {
  for (size_t entry = 0; entry < batch.entries.size(); ++entry) {
    if (batch.entries[entry].sample) visit(entry, -1);
  }
  for (size_t entry = 0; entry < batch.entries.size(); ++entry) {
    const auto targets = static_cast<int32_t>(batch.entries[entry].input_logprob_targets.size());
    for (int32_t target = 0; target < targets; ++target) visit(entry, target);
  }
}

Status status_of(int32_t code, const SamplingSpec& spec) {
  switch (code) {
    case kernels::cuda::kSampleOk:
      return Status();
    case kernels::cuda::kSampleNotFinite:
      return not_finite_logits();
    case kernels::cuda::kSampleNoToken:
      return no_token_left(spec);
    default:
      return error(StatusCode::kInternal, "the sampler gave the status {}", code);
  }
}

TokenLogprobs logprobs_at(const SamplingSpec& spec, const LogprobPlan& plan,
                          const ResultArrays& host, size_t row, float logprob) {
  TokenLogprobs out{.logprob = logprob};
  const size_t top = row * static_cast<size_t>(plan.max_top);
  for (size_t i = 0; i < static_cast<size_t>(spec.top_logprobs_num); ++i) {
    if (host.top_ids[top + i] < 0) break;
    out.top.emplace_back(host.top_ids[top + i], host.top_logprobs[top + i]);
  }
  for (size_t i = 0; i < spec.token_ids_logprob.size(); ++i) {
    const auto at = static_cast<size_t>(plan.wanted_begin[row]) + i;
    out.wanted.emplace_back(spec.token_ids_logprob[i], host.wanted[at]);
  }
  return out;
}

}  // namespace

int64_t ResultArrays::top_capacity(const StepLimits& limits) {
  return std::max<int64_t>(kMostTop,
                           int64_t{kTopPerRow} * (limits.max_entries + limits.max_tokens));
}

void ResultArrays::lay_out(cuda::Arena& arena, const StepLimits& limits) {
  tokens = arena.take<int32_t>(limits.max_entries);
  statuses = arena.take<int32_t>(limits.max_entries);
  logprobs = arena.take<float>(limits.max_entries);
  input_logprobs = arena.take<float>(limits.max_tokens);
  input_statuses = arena.take<int32_t>(limits.max_tokens);
  top_ids = arena.take<int32_t>(top_capacity(limits));
  top_logprobs = arena.take<float>(top_capacity(limits));
  wanted = arena.take<float>(kWantedCapacity);
}

Status copy_results(const ResultArrays& device, const ResultArrays& host,
                    const ResultCounts& counts, const cuda::Stream& stream) {
  const auto copy = [&](auto* to, const auto* from, int64_t count) {
    return cuda::copy_to_host(to, from, count * static_cast<int64_t>(sizeof(*to)), stream);
  };
  // Tokens, statuses and log-probabilities lie one behind the other.
  const int64_t heads = reinterpret_cast<const std::byte*>(device.input_logprobs) -
                        reinterpret_cast<const std::byte*>(device.tokens);
  if (counts.num_samples > 0)
    ESP_RETURN_IF_ERROR(cuda::copy_to_host(host.tokens, device.tokens, heads, stream));
  ESP_RETURN_IF_ERROR(copy(host.input_logprobs, device.input_logprobs, counts.num_inputs));
  ESP_RETURN_IF_ERROR(copy(host.input_statuses, device.input_statuses, counts.num_inputs));
  ESP_RETURN_IF_ERROR(copy(host.top_ids, device.top_ids, counts.num_top));
  ESP_RETURN_IF_ERROR(copy(host.top_logprobs, device.top_logprobs, counts.num_top));
  return copy(host.wanted, device.wanted, counts.num_wanted);
}

MaskedRows pack_masks(const ForwardBatch& batch, const MaskView& masks, int32_t mask_words,
                      uint32_t* to) {
  const auto given = static_cast<size_t>(masks.words_per_mask);
  const size_t kept = std::min(given, static_cast<size_t>(mask_words));
  const uint32_t* from = masks.words.data();
  MaskedRows rows{.begin = -1};
  int32_t row = 0;
  for (const BatchEntry& entry : batch.entries) {
    if (!entry.sample) continue;
    uint32_t* const words = to + static_cast<int64_t>(row++) * mask_words;
    if (!entry.has_mask) continue;
    std::copy_n(from, kept, words);
    std::fill(words + kept, words + mask_words, 0u);
    from += given;
    if (rows.begin < 0) rows.begin = row - 1;
    rows.end = row;
  }
  rows.begin = std::max(rows.begin, 0);
  return rows;
}

LogprobPlan plan_logprobs(const ForwardBatch& batch, const SlotTable& slots,
                          const StepLimits& limits, std::vector<Status>& refused) {
  LogprobPlan plan;
  refused.assign(batch.entries.size(), Status());
  int64_t rows = 0, wanted = 0;
  for (const BatchEntry& entry : batch.entries) {
    rows += (entry.sample ? 1 : 0) + std::ssize(entry.input_logprob_targets);
  }
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const BatchEntry& entry = batch.entries[i];
    const SamplingSpec& spec = slots.spec(entry.slot);
    refused[i] = slots.status(entry.slot);
    if (entry.prefix_len == kLengthFromSlot)
      refused[i] = error(StatusCode::kUnimplemented,
                         "the GPU executor takes no prefix length from a slot; launch the entry "
                         "after its slot's last step has been waited for");
    if (!spec.return_logprob) continue;
    plan.sampled |= entry.sample;
    const int64_t entry_rows = (entry.sample ? 1 : 0) + std::ssize(entry.input_logprob_targets);
    const int64_t entry_wanted = entry_rows * std::ssize(spec.token_ids_logprob);
    if (spec.top_logprobs_num > kMostTop ||
        spec.top_logprobs_num * rows > ResultArrays::top_capacity(limits) ||
        wanted + entry_wanted > ResultArrays::kWantedCapacity) {
      refused[i] = error(
          StatusCode::kUnimplemented,
          "top_logprobs_num {} and {} token_ids_logprob for {} positions of one step are more than "
          "a GPU gives back; ask for fewer, or raise logprob_start_len",
          spec.top_logprobs_num, spec.token_ids_logprob.size(), rows);
      continue;
    }
    wanted += entry_wanted;
    plan.max_top = std::max(plan.max_top, spec.top_logprobs_num);
  }
  plan.num_wanted = wanted;
  if (wanted == 0) return plan;
  for_each_row(batch, [&](size_t entry, int32_t) {
    plan.wanted_begin.push_back(static_cast<int32_t>(plan.wanted_ids.size()));
    const SamplingSpec& spec = slots.spec(batch.entries[entry].slot);
    if (!spec.return_logprob || !refused[entry].ok()) return;
    plan.wanted_ids.insert(plan.wanted_ids.end(), spec.token_ids_logprob.begin(),
                           spec.token_ids_logprob.end());
  });
  plan.wanted_begin.push_back(static_cast<int32_t>(plan.wanted_ids.size()));
  return plan;
}

void read_results(const ForwardBatch& batch, const SlotTable& slots, const LogprobPlan& plan,
                  const ResultArrays& host, const std::vector<Status>& refused,
                  StepResult& result) {
  result.entries.assign(batch.entries.size(), {});
  for (size_t i = 0; i < batch.entries.size(); ++i) result.entries[i].status = refused[i];
  size_t row = 0, first_input = 0;
  for (const BatchEntry& entry : batch.entries) first_input += entry.sample ? 1 : 0;
  for_each_row(batch, [&](size_t entry, int32_t target) {
    const size_t at = row++;
    EntryResult& out = result.entries[entry];
    const SamplingSpec& spec = slots.spec(batch.entries[entry].slot);
    const bool input = target >= 0;
    const int32_t code = input ? host.input_statuses[at - first_input] : host.statuses[at];
    if (out.status.ok()) out.status = status_of(code, spec);
    if (input) {
      out.input_logprobs.emplace_back();
      if (!out.status.ok()) return;
      out.input_logprobs.back() =
          logprobs_at(spec, plan, host, at, host.input_logprobs[at - first_input]);
      return;
    }
    if (!out.status.ok()) return;
    out.token = host.tokens[at];
    if (spec.return_logprob) out.logprobs = logprobs_at(spec, plan, host, at, host.logprobs[at]);
  });
  for (EntryResult& entry : result.entries) {
    if (!entry.status.ok()) entry.token = -1;
  }
}

}  // namespace espalier
