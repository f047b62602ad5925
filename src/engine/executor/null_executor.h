// An executor without a model: a device with a fixed step time whose tokens are a pure function of
// each sequence's whole history. It replaces a device in tests and where host time is measured.
// Thread safety as Executor's, unless a method states another.
//
// Its keys and values are hashes: the page row of each token contains the hash of all tokens up to
// it, and the next token is computed from that hash. A wrong page table, a page freed too early or
// a prefix shared by mistake therefore gives other tokens, as it would with a model. The expected
// ones need no executor: next_token(hash_history(tokens)).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/executor/executor.h"
#include "engine/executor/slot_lengths.h"
#include "engine/executor/step_thread.h"

namespace espalier {

struct NullExecutorConfig {
  int32_t vocab_size = 0;
  int32_t page_size = 1;
  int32_t chain_max = 0;  // above 0: a draft head that is right three times in four
  Duration step_delay{};  // of each step on the device, independent of its size
  // Returns the token that follows a history with this hash; a failure fails the entry. Called on
  // the device's thread. Null: uniform over the vocabulary.
  std::function<Result<TokenId>(uint64_t history)> next_token;
};

class NullExecutor final : public Executor {
 public:
  explicit NullExecutor(NullExecutorConfig config);

  void launch(const ForwardBatch& batch) override;
  void provide_masks(uint64_t step, const MaskView& masks) override;
  const StepResult& wait(uint64_t step) override;
  Status copy_pages(std::span<const PageId> from, std::span<const PageId> to) override;

  PageCopier* page_copier() override { return &copier_; }
  int32_t draft_samples_max() const override { return 16; }
  bool penalises_draft_tokens() const override { return true; }  // it has none
  int32_t chain_max() const override { return config_.chain_max; }
  bool takes_lengths_from_slots() const override { return true; }

  // The values that a test expects.
  static uint64_t hash_history(std::span<const TokenId> tokens);
  static TokenId uniform_token(uint64_t history, int32_t vocab_size);
  static float logprob_of(TokenId token) { return -0.01f * static_cast<float>(1 + token % 100); }

  // Counts up to now. Thread-safe.
  int64_t num_steps() const { return num_steps_; }
  int64_t num_waits() const { return num_waits_; }
  // Steps that were launched after the step before them was done, so the device was idle.
  int64_t num_late_steps() const { return num_late_steps_; }

 private:
  struct Slot {
    std::shared_ptr<const SamplingSpec> sampling;
    TokenId last_token = -1;
  };
  // A page's bytes are its rows' hashes.
  class Copier final : public PageCopier {
   public:
    explicit Copier(NullExecutor& device) : device_(device) {}
    int64_t page_bytes() const override;
    Transfer begin_read(PageId page, std::span<std::byte> to) override;
    Transfer begin_write(PageId page, std::span<const std::byte> from) override;
    Status finish(Transfer) override { return {}; }

   private:
    NullExecutor& device_;
  };
  void run(const ForwardBatch& launched, StepResult& result);
  void read_histories(const ForwardBatch& batch, StepResult& result);
  void run_entry(const ForwardBatch& batch, const BatchEntry& entry, EntryResult& result);
  uint64_t& history_at(const ForwardBatch& batch, const BatchEntry& entry, int32_t position);
  uint64_t& history_in(PageId page, int32_t row);
  Result<TokenId> draw(uint64_t history, std::span<const uint32_t> mask) const;
  void sample(const BatchEntry& entry, uint64_t history, std::span<const uint32_t> mask,
              EntryResult& result);
  void sample_draft(const BatchEntry& entry, uint64_t history, std::span<const uint32_t> mask,
                    EntryResult& result) const;
  void draft_chain(const ForwardBatch& batch, const BatchEntry& entry, EntryResult& result);
  TokenLogprobs logprobs(const SamplingSpec& spec, TokenId token) const;

  const NullExecutorConfig config_;
  std::vector<Slot> slots_;
  Copier copier_{*this};
  std::mutex histories_mutex_;       // locked while a step computes, and while pages are copied
  std::vector<uint64_t> histories_;  // [page, page_size], grown to the largest page seen
  std::vector<uint64_t> sample_histories_;  // of each entry, followed by those of its draft samples
  SlotLengths lengths_;
  TimePoint busy_until_{};
  std::atomic<int64_t> num_steps_{0}, num_waits_{0}, num_late_steps_{0};
  TimePoint launched_at_[kMaxInFlight + 1];  // by step; written before the step is handed over
  StepThread thread_;                        // last, for it uses all of the above
};

}  // namespace espalier
