#include "engine/executor/cuda/host_sampling.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "kernels/sampling/cuda.h"

namespace espalier {
namespace {

// Of a vocabulary of 128,256 tokens 16 MB of pinned memory.
constexpr size_t kRowsOfPart = 32;

}  // namespace

HostSampling::HostSampling(const Limits& limits)
    : limits_(limits),
      slots_(static_cast<size_t>(limits.max_slots)),
      pool_(limits.num_threads, limits.first_cpu) {
  samplers_.reserve(static_cast<size_t>(pool_.num_threads()));
  for (int i = 0; i < pool_.num_threads(); ++i) samplers_.emplace_back(limits.vocab_size);
}

Result<std::unique_ptr<HostSampling>> HostSampling::create(const Limits& limits) {
  std::unique_ptr<HostSampling> out(new HostSampling(limits));
  const int64_t bytes = int64_t{kRowsOfPart} * limits.vocab_size * 4;
  ESP_ASSIGN_OR_RETURN(out->logits_,
                       cuda::PinnedBuffer::allocate(bytes, "logits that the host samples from"));
  return out;
}

Status HostSampling::allocate(Step& step) const {
  ESP_ASSIGN_OR_RETURN(step.tokens,
                       cuda::PinnedBuffer::allocate(4ll * limits_.max_rows, "a step's tokens"));
  return Status();
}

void HostSampling::init(const SlotInit& init) {
  Slot& slot = slots_[static_cast<size_t>(init.slot)];
  slot.spec = needs_host(*init.sampling) ? init.sampling : nullptr;
  if (slot.spec == nullptr) return;
  slot.counts.reset(init.prompt_ids, init.output_ids);
  slot.history.reset(init.prompt_ids, init.output_ids);
}

void HostSampling::begin(const ForwardBatch& rows, Step& step) const {
  step.rows.clear();
  step.parts.clear();
  step.masks = nullptr;
  int32_t row = 0;
  for (size_t i = 0; i < rows.entries.size(); ++i) {
    const BatchEntry& entry = rows.entries[i];
    if (!entry.sample) continue;
    if (slots_[static_cast<size_t>(entry.slot)].spec != nullptr)
      step.rows.push_back({.entry = i,
                           .row = row,
                           .slot = entry.slot,
                           .output_index = entry.output_index,
                           .has_mask = entry.has_mask});
    ++row;
  }
}

Status HostSampling::enqueue(Step& step, int32_t num_rows, const Device& device,
                             const cuda::Stream& stream) {
  auto* const tokens = reinterpret_cast<int32_t*>(step.tokens.data());
  std::fill_n(tokens, num_rows, -1);
  const int64_t row_bytes = 4ll * limits_.vocab_size;
  for (size_t begin = 0; begin < step.rows.size(); begin += kRowsOfPart) {
    const size_t end = std::min(begin + kRowsOfPart, step.rows.size());
    for (size_t i = begin; i < end; ++i)
      ESP_RETURN_IF_ERROR(cuda::copy_to_host(
          logits_.data() + static_cast<int64_t>(i - begin) * row_bytes,
          device.logits + step.rows[i].row * device.logits_stride, row_bytes, stream));
    Step::Part& part = step.parts.emplace_back(Step::Part{this, &step, begin, end});
    const auto run = [](void* data) {
      const auto& own = *static_cast<const Step::Part*>(data);
      own.sampling->sample(own);
    };
    ESP_RETURN_IF_ERROR(stream.run_on_host(run, &part));
  }
  return kernels::cuda::put_tokens({.from = tokens,
                                    .row_slots = device.row_slots,
                                    .rows = num_rows,
                                    .tokens = device.tokens,
                                    .slot_tokens = device.slot_tokens},
                                   {.stream = stream.get()});
}

// A failure of one row is that row's; the next step may already be launched and take its token.
void HostSampling::sample(const Step::Part& part) {
  auto* const tokens = reinterpret_cast<int32_t*>(part.step->tokens.data());
  const auto vocab_size = static_cast<size_t>(limits_.vocab_size);
  const auto* const logits = reinterpret_cast<const float*>(logits_.data());
  std::atomic<size_t> next{part.begin};
  const auto work = [&](int thread) {
    for (size_t i = next++; i < part.end; i = next++) {
      Row& row = part.step->rows[i];
      try {
        sample_row(samplers_[static_cast<size_t>(thread)],
                   {logits + (i - part.begin) * vocab_size, vocab_size}, *part.step, row);
      } catch (const std::exception& problem) {  // bad_alloc
        row.status =
            error(StatusCode::kResourceExhausted, "the host cannot sample: {}", problem.what());
      }
      tokens[row.row] = row.status.ok() ? row.token : 0;
    }
  };
  if (part.end - part.begin < 2)
    work(0);
  else
    pool_.run(work);
}

void HostSampling::sample_row(Sampler& sampler, std::span<const float> logits, const Step& step,
                              Row& row) {
  Slot& slot = slots_[static_cast<size_t>(row.slot)];
  SampleInput input{.logits = logits,
                    .spec = slot.spec.get(),
                    .counts = &slot.counts,
                    .history = &slot.history,
                    .output_index = row.output_index};
  if (row.has_mask && step.masks != nullptr) {
    const auto words = static_cast<size_t>(step.mask_words);
    input.mask = {step.masks + static_cast<size_t>(row.row) * words, words};
  }
  auto token = sampler.sample(input);
  if (!token) {
    row.status = std::move(token).error();
    return;
  }
  if (slot.spec->return_logprob) {
    auto logprobs = sampler.sampled_logprobs(input, *token);
    if (!logprobs) {
      row.status = std::move(logprobs).error();
      return;
    }
    row.logprobs = *std::move(logprobs);
  }
  row.token = *token;
  if (slot.spec->has_penalties()) slot.counts.add_output(*token);
  if (slot.spec->reads_order()) slot.history.tokens.push_back(*token);
}

void HostSampling::read(Step& step, const std::vector<Status>& refused, StepResult& result) {
  for (Row& row : step.rows) {
    if (!refused[row.entry].ok()) continue;
    EntryResult& entry = result.entries[row.entry];
    entry.status = std::move(row.status);
    entry.token = entry.status.ok() ? row.token : -1;
    entry.logprobs = std::move(row.logprobs);
  }
}

}  // namespace espalier
