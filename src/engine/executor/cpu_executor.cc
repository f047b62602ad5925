#include "engine/executor/cpu_executor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "base/clock.h"
#include "engine/executor/host_kv_memory.h"
#include "kernels/kv_layer.h"

namespace espalier {

Result<std::unique_ptr<CpuExecutor>> CpuExecutor::create(CpuExecutorParts parts,
                                                         const CpuExecutorConfig& config) {
  ESP_RETURN_IF_ERROR(kernels::check_kv_view(parts.kv.view(), kernels::KvKernels::kCpu));
  ESP_RETURN_IF_ERROR(parts.model->reserve(config.max_tokens, config.max_slots + kDraftSamplesMax));
  return std::unique_ptr<CpuExecutor>(new CpuExecutor(std::move(parts), config));
}

CpuExecutor::CpuExecutor(CpuExecutorParts parts, const CpuExecutorConfig& config)
    : parts_(std::move(parts)),
      page_copier_(make_host_page_copier(parts_.kv.view()).value_or(nullptr)),
      slots_(static_cast<size_t>(config.max_slots)),
      thread_("cpu-executor",
              [this](const ForwardBatch& batch, StepResult& result) { run(batch, result); }) {
  if (DraftHead* const head = parts_.model->draft_head(); head != nullptr)
    chains_.emplace(*head, config.first_chain_page);
  const int32_t vocab_size = parts_.model->info().vocab_size;
  samplers_.reserve(static_cast<size_t>(parts_.pool->num_threads()));
  for (int i = 0; i < parts_.pool->num_threads(); ++i) samplers_.emplace_back(vocab_size);
  counts_.resize(samplers_.size());
  token_ids_.reserve(static_cast<size_t>(config.max_tokens));
  jobs_.reserve(static_cast<size_t>(config.max_slots + kDraftSamplesMax));
}

void CpuExecutor::run(const ForwardBatch& launched, StepResult& result) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  init_slots(launched);
  const ForwardBatch& batch = lengths_.resolve(launched, parts_.kv.view().page_size);
  resolve_tokens(batch);
  result.entries.assign(batch.entries.size(), {});
  result.draft_seconds = 0;
  for (size_t i = 0; i < batch.entries.size(); ++i)
    result.entries[i].input_logprobs.resize(batch.entries[i].input_logprob_targets.size());
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const auto num_samples = static_cast<size_t>(batch.entries[i].num_draft_samples);
    result.entries[i].draft_tokens.assign(num_samples, -1);
    result.entries[i].draft_logprobs.resize(num_samples);
  }
  const ForwardOutput output =
      parts_.model->forward(batch, token_ids_, parts_.kv.view(),
                            [&](int32_t entry, int32_t target, std::span<const float> logits) {
                              take_input_logits(batch, result, entry, target, logits);
                            });
  pool(batch, output.pooled_rows, result);
  take_hidden_states(batch, output.hidden_states, parts_.model->info().hidden_size, result);
  list_samples(batch, thread_.await_masks(batch));
  sample_entries(batch, output, result);
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const BatchEntry& entry = batch.entries[i];
    const TokenId last = lengths_.commit(batch, entry, result.entries[i]);
    if (last >= 0) slots_[static_cast<size_t>(entry.slot)].last_token = last;
    note_outputs(batch, entry, result.entries[i]);
  }
  if (chains_) chains_->run(batch, token_ids_, parts_.kv.view(), result);
  result.forward_seconds = to_seconds(clock.now() - start);
  result.started = start;
}

Result<int64_t> CpuExecutor::release_memory() { return give_back_planes(parts_.kv.view()); }

Status CpuExecutor::copy_pages(std::span<const PageId> from, std::span<const PageId> to) {
  ESP_CHECK(from.size() == to.size());
  const auto copy = [](void* plane, int64_t page_bytes, PageId a, PageId b) {
    auto* const bytes = static_cast<std::byte*>(plane);
    std::memcpy(bytes + b * page_bytes, bytes + a * page_bytes, static_cast<size_t>(page_bytes));
  };
  for (const KvView::Layer& layer : parts_.kv.view().layers)
    for (size_t i = 0; i < from.size(); ++i) {
      copy(layer.k, layer.page_bytes(), from[i], to[i]);
      if (layer.v != layer.k) copy(layer.v, layer.page_bytes(), from[i], to[i]);
    }
  return {};
}

void CpuExecutor::init_slots(const ForwardBatch& batch) {
  for (const SlotInit& init : batch.slot_inits) {
    Slot& slot = slots_[static_cast<size_t>(init.slot)];
    slot.sampling = init.sampling;
    parts_.model->set_control(init.slot, init.sampling->control);
    slot.last_token = 0;
    lengths_.reset(init.slot);
    slot.counts.reset(init.prompt_ids, init.output_ids);
    slot.history.reset(init.prompt_ids, init.output_ids);
    slot.pooled_sum.clear();
    slot.num_pooled = 0;
  }
}

void CpuExecutor::resolve_tokens(const ForwardBatch& batch) {
  token_ids_ = batch.token_ids;
  for (const BatchEntry& entry : batch.entries)
    for (int32_t i = 0; i < entry.num_query_tokens; ++i) {
      TokenId& token = token_ids_[static_cast<size_t>(entry.query_begin + i)];
      if (token == kTokenFromSlot) token = slots_[static_cast<size_t>(entry.slot)].last_token;
    }
}

void CpuExecutor::take_input_logits(const ForwardBatch& batch, StepResult& result, int32_t entry,
                                    int32_t target, std::span<const float> logits) {
  const BatchEntry& from = batch.entries[static_cast<size_t>(entry)];
  const SamplingSpec& spec = *slots_[static_cast<size_t>(from.slot)].sampling;
  const auto at = static_cast<size_t>(target);
  EntryResult& to = result.entries[static_cast<size_t>(entry)];
  auto logprobs = samplers_[0].logprobs(logits, from.input_logprob_targets[at], spec);
  if (logprobs)
    to.input_logprobs[at] = std::move(*logprobs);
  else
    to.status = std::move(logprobs).error();
}

void CpuExecutor::pool(const ForwardBatch& batch, std::span<const float> rows, StepResult& result) {
  const auto count_of = [](const BatchEntry& entry) {
    return static_cast<size_t>(
        entry.pooled_begin < 0 ? 0 : entry.num_query_tokens - entry.pooled_begin);
  };
  size_t num_rows = 0;
  for (const BatchEntry& entry : batch.entries) num_rows += count_of(entry);
  if (num_rows == 0) return;
  const size_t size = rows.size() / num_rows;
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const BatchEntry& entry = batch.entries[i];
    const size_t of_entry = count_of(entry) * size;
    pool_rows(slots_[static_cast<size_t>(entry.slot)], entry, rows.first(of_entry),
              result.entries[i]);
    rows = rows.subspan(of_entry);
  }
}

void CpuExecutor::pool_rows(Slot& slot, const BatchEntry& entry, std::span<const float> rows,
                            EntryResult& result) {
  if (rows.empty()) return;
  const int64_t count = entry.num_query_tokens - entry.pooled_begin;
  const size_t size = rows.size() / static_cast<size_t>(count);
  slot.pooled_sum.resize(size);
  for (size_t i = 0; i < rows.size(); ++i) slot.pooled_sum[i % size] += double{rows[i]};
  slot.num_pooled += count;
  if (!entry.pooled_end) return;
  std::vector<float> mean(size);
  for (size_t i = 0; i < size; ++i)
    mean[i] = static_cast<float>(slot.pooled_sum[i] / static_cast<double>(slot.num_pooled));
  result.pooled = parts_.model->finish_pooled(mean);
  if (!std::ranges::all_of(result.pooled, [](float v) { return std::isfinite(v); }))
    result.status = not_finite_vector();
}

void CpuExecutor::take_hidden_states(const ForwardBatch& batch, std::span<const float> states,
                                     int32_t hidden_size, StepResult& result) {
  for (size_t i = 0; i < batch.entries.size() && !states.empty(); ++i) {
    const BatchEntry& entry = batch.entries[i];
    if (entry.hidden_begin < 0) continue;
    const auto rows = static_cast<size_t>(entry.num_query_tokens - entry.hidden_begin);
    const size_t count = rows * entry.hidden_layers.size() * static_cast<size_t>(hidden_size);
    const auto own = states.first(count);
    result.entries[i].hidden_states.assign(own.begin(), own.end());
    states = states.subspan(count);
  }
}

void CpuExecutor::list_samples(const ForwardBatch& batch, const MaskView& masks) {
  jobs_.clear();
  const auto words = static_cast<size_t>(masks.words_per_mask);
  size_t next_mask = 0;
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const BatchEntry& entry = batch.entries[i];
    const auto add = [&](int32_t num_before, int32_t draft_sample) {
      std::span<const uint32_t> mask;
      if (entry.has_mask && words > 0) mask = masks.words.subspan(next_mask++ * words, words);
      if (entry.sample) jobs_.push_back({static_cast<int32_t>(i), mask, num_before, draft_sample});
    };
    add(0, 0);
    for (int32_t k = 0; k < entry.num_draft_samples; ++k)
      add(1 + batch.draft_samples[static_cast<size_t>(entry.draft_samples_begin + k)], k);
  }
}

// Rows of logits are in the order of jobs_. A free thread takes the next row; no result depends on
// which thread that is.
void CpuExecutor::sample_entries(const ForwardBatch& batch, const ForwardOutput& output,
                                 StepResult& result) {
  const auto vocab_size = static_cast<size_t>(parts_.model->info().vocab_size);
  ESP_CHECK(output.sample_logits.size() == jobs_.size() * vocab_size);
  std::atomic<size_t> next{0};
  const auto work = [&](int thread) {
    for (size_t row = next++; row < jobs_.size(); row = next++) {
      const SampleJob& job = jobs_[row];
      const auto at = static_cast<size_t>(job.entry);
      const BatchEntry& entry = batch.entries[at];
      const Slot& slot = slots_[static_cast<size_t>(entry.slot)];
      Sampler& sampler = samplers_[static_cast<size_t>(thread)];
      const SampleInput input{.logits = output.sample_logits.subspan(row * vocab_size, vocab_size),
                              .spec = slot.sampling.get(),
                              .counts = counts_before(batch, entry, job.num_before, thread),
                              .history = &slot.history,
                              .mask = job.mask,
                              .output_index = entry.output_index + job.num_before};
      const auto draft_sample = static_cast<size_t>(job.draft_sample);
      if (job.num_before == 0)
        sample_entry(sampler, entry, input, result.entries[at]);
      else
        sample_draft(sampler, input, result.entries[at].draft_tokens[draft_sample],
                     result.entries[at].draft_logprobs[draft_sample]);
    }
  };
  if (jobs_.size() < 2)
    work(0);
  else
    parts_.pool->run(work);
}

// A failure is not reported here: the draft token before it is not accepted, so the next step
// samples behind that token again and fails with the status.
void CpuExecutor::sample_draft(Sampler& sampler, const SampleInput& input, TokenId& token,
                               TokenLogprobs& logprobs) {
  const auto drawn = sampler.sample(input);
  if (!drawn) return;
  if (input.spec->return_logprob) {
    auto computed = sampler.sampled_logprobs(input, *drawn);
    if (!computed) return;
    logprobs = std::move(*computed);
  }
  token = *drawn;
}

void CpuExecutor::sample_entry(Sampler& sampler, const BatchEntry& entry, const SampleInput& input,
                               EntryResult& result) {
  Slot& slot = slots_[static_cast<size_t>(entry.slot)];
  slot.last_token = 0;  // the next step may already be launched and take it, though this fails
  if (!result.status.ok()) return;
  const auto fail_entry = [&](Status status) { result.status = std::move(status); };
  auto token = sampler.sample(input);
  if (!token) return fail_entry(std::move(token).error());
  if (input.spec->return_logprob) {
    auto logprobs = sampler.sampled_logprobs(input, *token);
    if (!logprobs) return fail_entry(std::move(logprobs).error());
    result.logprobs = std::move(*logprobs);
  }
  result.token = slot.last_token = *token;
}

// What penalties count before a sample behind so many draft tokens of the entry.
const TokenCounts* CpuExecutor::counts_before(const ForwardBatch& batch, const BatchEntry& entry,
                                              int32_t num_before, int thread) {
  const Slot& slot = slots_[static_cast<size_t>(entry.slot)];
  if (num_before == 0 || !slot.sampling->has_penalties()) return &slot.counts;
  TokenCounts& counts = counts_[static_cast<size_t>(thread)];
  counts = slot.counts;
  const auto first = static_cast<size_t>(entry.query_begin + entry.last_known() + 1);
  for (const TokenId token :
       std::span(batch.token_ids).subspan(first, static_cast<size_t>(num_before)))
    counts.add_output(token);
  return &counts;
}

// Once all are drawn, for the entry's samples read the same counts: its token and those behind
// accepted draft tokens.
void CpuExecutor::note_outputs(const ForwardBatch& batch, const BatchEntry& entry,
                               const EntryResult& result) {
  Slot& slot = slots_[static_cast<size_t>(entry.slot)];
  if (result.token < 0 || !slot.sampling->reads_history()) return;
  const auto note = [&](TokenId token) {
    if (slot.sampling->has_penalties()) slot.counts.add_output(token);
    if (slot.sampling->reads_order()) slot.history.tokens.push_back(token);
  };
  note(result.token);
  const int32_t num_accepted = accept_draft(batch, entry, result).num_tokens;
  for (int32_t i = 0; i < num_accepted; ++i) note(result.draft_tokens[static_cast<size_t>(i)]);
}

}  // namespace espalier
