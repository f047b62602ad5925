#include "engine/executor/null_executor.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/rng.h"

namespace espalier {
namespace {

constexpr uint64_t kEmptyHistory = 0x9ae16a3b2f90404full;

uint64_t extend(uint64_t history, TokenId token) {
  return mix64(history ^ mix64(static_cast<uint64_t>(token) + 1));
}

bool allowed(std::span<const uint32_t> mask, TokenId token) {
  const auto word = static_cast<size_t>(token / 32);
  return mask.empty() || (word < mask.size() && (mask[word] >> (token % 32) & 1));
}

}  // namespace

uint64_t NullExecutor::hash_history(std::span<const TokenId> tokens) {
  uint64_t history = kEmptyHistory;
  for (TokenId token : tokens) history = extend(history, token);
  return history;
}

TokenId NullExecutor::uniform_token(uint64_t history, int32_t vocab_size) {
  return static_cast<TokenId>(mix64(history) % static_cast<uint64_t>(vocab_size));
}

NullExecutor::NullExecutor(NullExecutorConfig config)
    : config_(std::move(config)),
      thread_("null-device",
              [this](const ForwardBatch& batch, StepResult& result) { run(batch, result); }) {}

void NullExecutor::launch(const ForwardBatch& batch) {
  launched_at_[batch.step % std::size(launched_at_)] = SteadyClock().now();
  thread_.launch(batch);
}

void NullExecutor::provide_masks(uint64_t step, const MaskView& masks) {
  thread_.provide_masks(step, masks);
}

const StepResult& NullExecutor::wait(uint64_t step) {
  ++num_waits_;
  return thread_.wait(step);
}

// The device's time runs from the end of the step before, not from when this thread woke up, so
// that wake-up delays do not add up.
void NullExecutor::run(const ForwardBatch& launched, StepResult& result) {
  const TimePoint launched_at = launched_at_[launched.step % std::size(launched_at_)];
  if (num_steps_++ > 0 && launched_at > busy_until_) ++num_late_steps_;
  const TimePoint start = std::max(launched_at, busy_until_);
  busy_until_ = start + config_.step_delay;
  for (const SlotInit& init : launched.slot_inits) {
    const auto slot = static_cast<size_t>(init.slot);
    if (slots_.size() <= slot) slots_.resize(slot + 1);
    slots_[slot] = {.sampling = init.sampling};
    lengths_.reset(init.slot);
  }
  const ForwardBatch& batch = lengths_.resolve(launched, config_.page_size);
  result.entries.assign(batch.entries.size(), {});
  read_histories(batch, result);
  const MaskView masks = thread_.await_masks(batch);
  size_t next_mask = 0, next_history = 0;
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const BatchEntry& entry = batch.entries[i];
    const auto mask = [&]() -> std::span<const uint32_t> {
      if (!entry.has_mask || masks.words.empty()) return {};
      const auto words = static_cast<size_t>(masks.words_per_mask);
      return masks.words.subspan(next_mask++ * words, words);
    };
    const uint64_t history = sample_histories_[next_history++];
    if (entry.sample) sample(entry, history, mask(), result.entries[i]);
    for (int32_t k = 0; k < entry.num_draft_samples; ++k)
      sample_draft(entry, sample_histories_[next_history++], mask(), result.entries[i]);
    const TokenId last = lengths_.commit(batch, entry, result.entries[i]);
    if (last >= 0) slots_[static_cast<size_t>(entry.slot)].last_token = last;
    if (entry.chain_length > 0 && last >= 0) draft_chain(batch, entry, result.entries[i]);
  }
  if (config_.step_delay.count() > 0) std::this_thread::sleep_until(busy_until_);
  result.forward_seconds = to_seconds(config_.step_delay);
  result.started = start;
}

// Computes the entries and collects the history before each token that is to be sampled.
void NullExecutor::read_histories(const ForwardBatch& batch, StepResult& result) {
  sample_histories_.clear();
  std::lock_guard lock(histories_mutex_);
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    run_entry(batch, batch.entries[i], result.entries[i]);
    const BatchEntry& entry = batch.entries[i];
    const int32_t last_known = entry.prefix_len + entry.last_known();
    sample_histories_.push_back(history_at(batch, entry, last_known));
    for (int32_t k = 0; k < entry.num_draft_samples; ++k)
      sample_histories_.push_back(
          history_at(batch, entry,
                     last_known + 1 +
                         batch.draft_samples[static_cast<size_t>(entry.draft_samples_begin + k)]));
  }
}

uint64_t& NullExecutor::history_at(const ForwardBatch& batch, const BatchEntry& entry,
                                   int32_t position) {
  const int32_t page_size = config_.page_size;
  const PageId page =
      batch.page_tables[static_cast<size_t>(entry.page_begin + position / page_size)];
  return history_in(page, position % page_size);
}

uint64_t& NullExecutor::history_in(PageId page, int32_t row) {
  const auto at =
      static_cast<size_t>(page) * static_cast<size_t>(config_.page_size) + static_cast<size_t>(row);
  if (histories_.size() <= at) histories_.resize(2 * at + 1);
  return histories_[at];
}

Status NullExecutor::copy_pages(std::span<const PageId> from, std::span<const PageId> to) {
  ESP_CHECK(from.size() == to.size());
  std::lock_guard lock(histories_mutex_);
  for (size_t i = 0; i < from.size(); ++i)
    for (int32_t row = 0; row < config_.page_size; ++row) {
      const uint64_t history = history_in(from[i], row);
      history_in(to[i], row) = history;
    }
  return {};
}

int64_t NullExecutor::Copier::page_bytes() const {
  return int64_t{device_.config_.page_size} * static_cast<int64_t>(sizeof(uint64_t));
}

PageCopier::Transfer NullExecutor::Copier::begin_read(PageId page, std::span<std::byte> to) {
  std::lock_guard lock(device_.histories_mutex_);
  for (int32_t row = 0; row < device_.config_.page_size; ++row)
    std::memcpy(to.data() + static_cast<size_t>(row) * sizeof(uint64_t),
                &device_.history_in(page, row), sizeof(uint64_t));
  return 0;
}

PageCopier::Transfer NullExecutor::Copier::begin_write(PageId page,
                                                       std::span<const std::byte> from) {
  std::lock_guard lock(device_.histories_mutex_);
  for (int32_t row = 0; row < device_.config_.page_size; ++row)
    std::memcpy(&device_.history_in(page, row),
                from.data() + static_cast<size_t>(row) * sizeof(uint64_t), sizeof(uint64_t));
  return 0;
}

void NullExecutor::run_entry(const ForwardBatch& batch, const BatchEntry& entry,
                             EntryResult& result) {
  const Slot& slot = slots_[static_cast<size_t>(entry.slot)];
  ESP_CHECK(entry.num_query_tokens >= 1 && slot.sampling != nullptr);
  const int32_t end = entry.prefix_len + entry.num_query_tokens;
  ESP_CHECK(entry.num_pages == (end + config_.page_size - 1) / config_.page_size);
  uint64_t history =
      entry.prefix_len == 0 ? kEmptyHistory : history_at(batch, entry, entry.prefix_len - 1);
  for (int32_t i = 0; i < entry.num_query_tokens; ++i) {
    const auto at = static_cast<size_t>(entry.query_begin + i);
    ESP_CHECK(batch.positions[at] == entry.prefix_len + i);
    const TokenId token =
        batch.token_ids[at] == kTokenFromSlot ? slot.last_token : batch.token_ids[at];
    ESP_CHECK(token >= 0, "slot {} has no token yet", entry.slot);
    history = extend(history, token);
    history_at(batch, entry, entry.prefix_len + i) = history;
  }
  for (TokenId target : entry.input_logprob_targets)
    result.input_logprobs.push_back(logprobs(*slot.sampling, target));
}

Result<TokenId> NullExecutor::draw(uint64_t history, std::span<const uint32_t> mask) const {
  Result<TokenId> next =
      config_.next_token ? config_.next_token(history) : uniform_token(history, config_.vocab_size);
  if (!next) return next;
  TokenId token = *next;
  for (int32_t i = 0; i < config_.vocab_size && !allowed(mask, token); ++i)
    token = (token + 1) % config_.vocab_size;
  return token;
}

void NullExecutor::sample(const BatchEntry& entry, uint64_t history, std::span<const uint32_t> mask,
                          EntryResult& result) {
  Slot& slot = slots_[static_cast<size_t>(entry.slot)];
  const Result<TokenId> next = draw(history, mask);
  if (!next) {
    result.status = next.error();
    slot.last_token = 0;  // the next step may already be launched and take it
    return;
  }
  const TokenId token = *next;
  result.token = slot.last_token = token;
  if (slot.sampling->return_logprob) result.logprobs = logprobs(*slot.sampling, token);
}

void NullExecutor::sample_draft(const BatchEntry& entry, uint64_t history,
                                std::span<const uint32_t> mask, EntryResult& result) const {
  const SamplingSpec& spec = *slots_[static_cast<size_t>(entry.slot)].sampling;
  const TokenId token = draw(history, mask).value_or(-1);
  result.draft_tokens.push_back(token);
  const bool wanted = spec.return_logprob && token >= 0;
  result.draft_logprobs.push_back(wanted ? logprobs(spec, token) : TokenLogprobs());
}

// Whether a token is wrong follows from the history, so that a chain does not depend on the batch.
void NullExecutor::draft_chain(const ForwardBatch& batch, const BatchEntry& entry,
                               EntryResult& result) {
  std::lock_guard lock(histories_mutex_);
  uint64_t history = history_at(batch, entry, result.length - 1);
  history = extend(history, slots_[static_cast<size_t>(entry.slot)].last_token);
  for (int32_t i = 0; i < entry.chain_length; ++i) {
    const TokenId token = draw(history, {}).value_or(0);
    const bool right = history % 4 != 0;
    result.chain.push_back(right ? token : (token + 1) % config_.vocab_size);
    history = extend(history, result.chain.back());
  }
}

TokenLogprobs NullExecutor::logprobs(const SamplingSpec& spec, TokenId token) const {
  TokenLogprobs out{.logprob = logprob_of(token)};
  for (TokenId id = 0; id < spec.top_logprobs_num; ++id) out.top.emplace_back(id, logprob_of(id));
  for (TokenId id : spec.token_ids_logprob) out.wanted.emplace_back(id, logprob_of(id));
  return out;
}

}  // namespace espalier
