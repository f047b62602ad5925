// Which rank gets a sequence, and what several ranks' schedulers say together. Whole lives of
// sequences on several ranks are in simulation_test.cc.
#include "engine/scheduler/rank_schedulers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "engine/scheduler/fake_executor.h"
#include "engine/scheduler/scheduler_fixture.h"

namespace espalier {
namespace {

class RankSchedulersTest : public testing::Test, public SequenceObserver {
 protected:
  void SetUp() override {
    std::vector<std::unique_ptr<PrefixCache>> caches;
    for (int rank = 0; rank < kRanks; ++rank) {
      caches.push_back(make_prefix_cache({.num_pages = 500}).value());
      executors_.push_back(std::make_unique<FakeExecutor>(1));
    }
    caches_ = RankCaches(std::move(caches));
    scheduler_ = std::make_unique<RankSchedulers>(
        SchedulerConfig{.max_running = 64, .max_waiting = 100, .context_length = 200}, caches_,
        clock_, *this);
  }

  void add(SequenceId id, const Tokens& prompt, int32_t max_new_tokens) {
    SamplingSpec sampling;
    sampling.seed = id;
    for (const auto& executor : executors_) executor->expect(id, "", prompt);
    const Status status = scheduler_->add({.id = id,
                                           .prompt_ids = prompt,
                                           .sampling = std::make_shared<SamplingSpec>(sampling),
                                           .max_new_tokens = max_new_tokens});
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // One step, without overlap. Returns how many entries each rank has.
  std::vector<size_t> step() {
    std::vector<size_t> counts;
    if (!scheduler_->next(batch_)) return counts;
    StepResult result{.step = batch_.step};
    for (size_t rank = 0; rank < executors_.size(); ++rank) {
      const ForwardBatch& part = batch_.ranks[rank];
      counts.push_back(part.entries.size());
      if (part.entries.empty()) continue;
      executors_[rank]->launch(part);
      StepResult of_rank = executors_[rank]->wait(part.step);
      std::ranges::move(of_rank.entries, std::back_inserter(result.entries));
    }
    scheduler_->commit(batch_, result);
    scheduler_->check_invariants();
    return counts;
  }
  void run() {
    while (!scheduler_->idle()) step();
  }

  void on_input_logprobs(SequenceId, int32_t, std::vector<TokenLogprobs>&&) override {}
  std::optional<FinishReason> on_token(SequenceId, TokenId, TokenOrigin, TokenLogprobs&&,
                                       const RequestStats&) override {
    return std::nullopt;
  }
  void on_finish(SequenceId, FinishReason, const RequestStats& stats) override {
    cached_tokens_ += stats.cached_tokens;
  }

  static constexpr int kRanks = 2;
  ManualClock clock_;
  RankCaches caches_;
  std::vector<std::unique_ptr<FakeExecutor>> executors_;
  std::unique_ptr<RankSchedulers> scheduler_;
  ForwardBatch batch_;
  int32_t cached_tokens_ = 0;
};

TEST_F(RankSchedulersTest, NewPromptsGoToTheRankWithTheFewest) {
  for (SequenceId id = 1; id <= 10; ++id) add(id, counting(static_cast<TokenId>(5 * id), 4), 30);
  EXPECT_EQ(step(), (std::vector<size_t>{5, 5}));
  const SchedulerStats stats = scheduler_->stats();
  EXPECT_EQ(stats.num_running, 10);
  EXPECT_EQ(stats.steps, 1);
  EXPECT_EQ(stats.entries, 10);
  run();
  EXPECT_EQ(scheduler_->stats().generated_tokens, 300);
  EXPECT_EQ(caches_.sizes().in_use(), 0);
}

TEST_F(RankSchedulersTest, ContinuationsGoWhereTheirPrefixIs) {
  add(1, counting(0, 30), 1);
  add(2, counting(20, 30), 1);
  run();
  Tokens other = counting(20, 30), third = counting(33, 10);
  other.insert(other.end(), third.begin(), third.end());
  add(3, counting(20, 40), 1);
  add(4, other, 1);
  add(5, counting(0, 40), 1);
  EXPECT_EQ(step(), (std::vector<size_t>{1, 2}));
  run();
  EXPECT_EQ(cached_tokens_, 3 * 30);
}

// Of 40 sequences with one prefix a rank gets a tenth more than the mean and four.
TEST_F(RankSchedulersTest, NoRankGetsMuchMoreThanItsShare) {
  add(100, counting(0, 40), 1);
  run();
  for (SequenceId id = 1; id <= 40; ++id) add(id, counting(0, 41), 5);
  std::array<std::set<SequenceId>, kRanks> sequences;
  while (!scheduler_->idle()) {
    step();
    for (size_t rank = 0; rank < sequences.size(); ++rank)
      for (const BatchEntry& entry : batch_.ranks[rank].entries)
        sequences[rank].insert(entry.sequence);
  }
  const size_t least = std::min(sequences[0].size(), sequences[1].size());
  EXPECT_EQ(sequences[0].size() + sequences[1].size(), 40u);
  EXPECT_GE(least, 12u);
  EXPECT_LT(least, 20u);
  EXPECT_EQ(caches_.sizes().in_use(), 0);
}

TEST_F(RankSchedulersTest, ARankWithoutEntriesHasAnEmptyPart) {
  add(1, counting(0, 10), 3);
  while (!scheduler_->idle()) {
    const std::vector<size_t> counts = step();
    EXPECT_EQ(counts, (std::vector<size_t>{1, 0}));
    EXPECT_EQ(batch_.entries.size(), 1u);
  }
}

}  // namespace
}  // namespace espalier
