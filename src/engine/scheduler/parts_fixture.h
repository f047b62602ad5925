// For tests of the scheduler's parts alone: the parts over a small cache, with sequences made by
// hand.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/scheduler/batch_builder.h"
#include "engine/scheduler/committer.h"
#include "engine/scheduler/scheduler_fixture.h"

namespace espalier {

class PartsTest : public testing::Test, public SequenceObserver, public TokenProposer {
 protected:
  void start(int32_t num_pages, SchedulerConfig config = {}) {
    config.max_running = 4;
    config.context_length = 1000;
    config_ = config;
    cache_ = make_prefix_cache({.num_pages = num_pages}).value();
    running_ = std::make_unique<RunningSet>(config.max_running);
    budget_ = std::make_unique<KvBudget>(config, *cache_, *running_, steps_);
    queue_ = std::make_unique<WaitQueue>(config, *cache_);
    inflight_ = std::make_unique<InflightPrefixes>(config, *cache_);
    builder_ = std::make_unique<BatchBuilder>(config, *cache_, *running_, steps_, *budget_, *this);
    committer_ = std::make_unique<Committer>(Committer::Parts{.clock = clock_,
                                                              .steps = steps_,
                                                              .running = *running_,
                                                              .budget = *budget_,
                                                              .inflight = *inflight_,
                                                              .queue = *queue_,
                                                              .observer = *this,
                                                              .proposer = *this});
  }
  ~PartsTest() override { sequences_.clear(); }

  Sequence& waiting(Tokens prompt, int32_t max_new_tokens, int32_t priority = 0) {
    Sequence& s = *sequences_.emplace_back(std::make_unique<Sequence>());
    s.tokens = std::move(prompt);
    s.prompt_len = s.logprobs.next = s.logprobs.end = s.num_tokens();
    s.spec.id = sequences_.size();
    s.spec.max_new_tokens = max_new_tokens;
    s.spec.priority = priority;
    s.spec.tenant = tenant_;
    s.spec.share_weight = share_weight_;
    s.spec.sampling = std::make_shared<SamplingSpec>();
    queue_->add(s);
    return s;
  }
  bool admit(Sequence& s) {
    budget_->begin_admission(steps_.launched() + 1);
    if (!budget_->try_reserve(s, false)) return false;
    queue_->remove(s);
    running_->take_slot(s);
    running_->start(s);
    return true;
  }
  ForwardBatch build(const PromptShares& shares = {}) {
    ForwardBatch batch;
    builder_->begin(batch, steps_.launched() + 1);
    builder_->add_running(batch, [&] { return shares; });
    builder_->end(batch);
    steps_.launch();
    return batch;
  }
  // Every sampling entry draws `token`.
  std::vector<Sequence*> commit(const ForwardBatch& batch, TokenId token,
                                std::vector<TokenId> draft_tokens = {}) {
    StepResult result{.step = batch.step};
    for (const BatchEntry& entry : batch.entries) {
      result.entries.push_back({.token = entry.sample ? token : -1, .draft_tokens = draft_tokens});
      result.entries.back().input_logprobs.resize(entry.input_logprob_targets.size());
    }
    steps_.commit(batch.step);
    const auto departing = committer_->commit(batch, result);
    budget_->reclaim();
    return {departing.begin(), departing.end()};
  }
  void check() const {
    running_->check_invariants();
    budget_->check_invariants();
    queue_->check_invariants();
    for (const Sequence* s : running_->running()) builder_->check_sequence(*s);
  }

  void on_input_logprobs(SequenceId, int32_t, std::vector<TokenLogprobs>&&) override {}
  std::optional<FinishReason> on_token(SequenceId id, TokenId token, TokenOrigin origin,
                                       TokenLogprobs&&, const RequestStats&) override {
    outputs_[id].push_back(token);
    origins_[id].push_back(origin);
    return std::nullopt;
  }
  void on_finish(SequenceId id, FinishReason reason, const RequestStats&) override {
    ends_[id] = reason.type;
  }
  void propose_forced(SequenceId, std::vector<TokenId>& forced) override {
    forced = std::exchange(forced_, {});
  }
  void propose_draft_tokens(const DraftSite&, DraftTokens& draft) override {
    limits_ = {draft.tokens_max, draft.samples_max};
    draft.is_planned = plan_.is_made;
    const auto count = std::min(draft_tokens_.size(), static_cast<size_t>(draft.tokens_max));
    for (size_t i = 0; i < count; ++i) {
      draft.tokens.push_back(draft_tokens_[i]);
      draft.samples.push_back(static_cast<int32_t>(i));
    }
  }

  bool plans_draft_tokens() const override { return plan_.is_made; }
  bool plan_draft_tokens(const DraftStep& step) override {
    plan_.sites.clear();
    for (const DraftSite& site : step.sites)
      plan_.sites.emplace_back(site.id, site.tokens_max, site.awaits_sample);
    return plan_.waits;
  }

  ManualClock clock_;
  SchedulerConfig config_;
  StepCounter steps_;
  std::unique_ptr<PrefixCache> cache_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::unique_ptr<RunningSet> running_;
  std::unique_ptr<KvBudget> budget_;
  std::unique_ptr<WaitQueue> queue_;
  std::unique_ptr<InflightPrefixes> inflight_;
  std::unique_ptr<BatchBuilder> builder_;
  std::unique_ptr<Committer> committer_;
  std::string tenant_;  // of what waiting() makes
  double share_weight_ = 1;
  Tokens forced_, draft_tokens_;
  struct Plan {
    bool is_made = false, waits = false;
    std::vector<std::tuple<SequenceId, int32_t, bool>> sites;  // of the last one
  };
  Plan plan_;
  std::pair<int32_t, int32_t> limits_;  // of the last call of propose_draft_tokens
  std::map<SequenceId, Tokens> outputs_;
  std::map<SequenceId, std::vector<TokenOrigin>> origins_;  // of outputs_
  std::map<SequenceId, FinishReason::Type> ends_;
};

}  // namespace espalier
