// For tests: a scheduler over the fake executor, driven step by step.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cache/prefix_cache.h"
#include "engine/scheduler/fake_executor.h"
#include "engine/scheduler/scheduler.h"

namespace espalier {

using Tokens = std::vector<TokenId>;

inline Tokens counting(TokenId first, int count) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((first + i) % kFakeVocab);
  return tokens;
}

struct End {
  FinishReason reason;
  RequestStats stats;
};

class SchedulerTest : public testing::Test, public SequenceObserver {
 protected:
  void start(int32_t num_pages, SchedulerConfig config, PrefixCacheConfig cache_config = {}) {
    scheduler_.reset();  // before the cache that it borrows
    cache_config.num_pages = num_pages;
    cache_ = make_prefix_cache(cache_config).value();
    if (config.max_running == 0) config.max_running = 8;
    if (config.max_waiting == 0) config.max_waiting = 100;
    if (config.context_length == 0) config.context_length = 1000;
    scheduler_ = std::make_unique<Scheduler>(config, *cache_, clock_, *this);
    executor_ = std::make_unique<FakeExecutor>(cache_->page_size());
  }

  Status add(SequenceId id, Tokens prompt, int32_t max_new_tokens, int32_t logprob_start = -1,
             Tokens stop_ids = {}) {
    SamplingSpec sampling;
    sampling.seed = id;
    // So that slots are set up with histories, which are checked: they are the prompt.
    if (num_generated_ == 0) sampling.presence_penalty = 1;
    executor_->expect(id, cache_namespace_, prompt);
    SequenceSpec spec{.id = id,
                      .prompt_ids = std::move(prompt),
                      .sampling = std::make_shared<SamplingSpec>(sampling),
                      .max_new_tokens = max_new_tokens,
                      .stop_ids = std::move(stop_ids),
                      .num_generated = num_generated_,
                      .logprob_start_len = logprob_start,
                      .adapter = adapter_,
                      .cache_namespace = cache_namespace_,
                      .tenant = tenant_,
                      .share_weight = share_weight_,
                      .priority = priority_};
    return scheduler_->add(std::move(spec));
  }

  // The entries of the next step as "ID:PREFIX+QUERY", with "s" where it samples.
  std::vector<std::string> next() {
    ForwardBatch& batch = batches_[num_launched_ % 2];
    if (!scheduler_->next(batch)) return {};
    ++num_launched_;
    executor_->launch(batch);
    for (const SlotInit& init : batch.slot_inits) id_of_slot_[init.slot] = init.sampling->seed;
    std::vector<std::string> entries;
    for (const BatchEntry& entry : batch.entries)
      entries.push_back(std::to_string(id_of_slot_.at(entry.slot)) + ":" +
                        std::to_string(entry.prefix_len) + "+" +
                        std::to_string(entry.num_query_tokens) + (entry.sample ? "s" : ""));
    scheduler_->check_invariants();
    return entries;
  }
  void commit() {
    const ForwardBatch& batch = batches_[num_committed_++ % 2];
    StepResult result = executor_->wait(batch.step);
    if (seconds_of_ != nullptr) result.forward_seconds = seconds_of_(batch);
    scheduler_->commit(batch, result);
    scheduler_->check_invariants();
  }
  std::vector<std::string> step() {
    std::vector<std::string> entries = next();
    if (!entries.empty()) commit();
    return entries;
  }
  void run() {
    while (!step().empty()) {
    }
    ASSERT_TRUE(scheduler_->idle());
  }

  void on_input_logprobs(SequenceId id, int32_t first,
                         std::vector<TokenLogprobs>&& logprobs) override {
    for (size_t i = 0; i < logprobs.size(); ++i)
      input_positions_[id].push_back(first + static_cast<int32_t>(i));
  }
  std::optional<FinishReason> on_token(SequenceId id, TokenId token, TokenOrigin, TokenLogprobs&&,
                                       const RequestStats&) override {
    if (listening_) outputs_[id].push_back(token);
    return std::nullopt;
  }
  void on_finish(SequenceId id, FinishReason reason, const RequestStats& stats) override {
    ends_order_.push_back(id);
    ASSERT_TRUE(ends_.try_emplace(id, End{std::move(reason), stats}).second);
  }

  ManualClock clock_;
  std::unique_ptr<PrefixCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<FakeExecutor> executor_;
  ForwardBatch batches_[2];
  uint64_t num_launched_ = 0, num_committed_ = 0;
  bool listening_ = true;
  int32_t priority_ = 0;  // of what is added
  std::string cache_namespace_, tenant_;
  AdapterId adapter_ = kNoAdapter;
  double share_weight_ = 1;
  int32_t num_generated_ = 0;
  double (*seconds_of_)(const ForwardBatch&) = nullptr;  // what a step took
  std::vector<SequenceId> ends_order_;
  std::map<SlotId, SequenceId> id_of_slot_;
  std::map<SequenceId, Tokens> outputs_;
  std::map<SequenceId, End> ends_;
  std::map<SequenceId, std::vector<int32_t>> input_positions_;
};

}  // namespace espalier
