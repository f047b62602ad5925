// Two tenants in virtual time, one of them hostile: requests of up to 256 samples, long prompts and
// long answers, always more than fit. A step costs what its batch holds, so no figure depends on
// the system that runs it. Seeds are printed.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "cache/prefix_cache.h"
#include "engine/scheduler/scheduler.h"

namespace espalier {
namespace {

constexpr SequenceId kFriends = 1'000'000;  // the friend's ids begin here
constexpr uint64_t kVocab = 1000;

// A model of some billions of parameters on a processor: a step of 256 decode entries takes 40 ms,
// one of 512 prompt tokens 110.
double seconds_of(const ForwardBatch& batch) {
  double seconds = 0.008;
  for (const BatchEntry& entry : batch.entries)
    seconds += entry.num_query_tokens == 1 ? 0.000125 : 0.0002 * entry.num_query_tokens;
  return seconds;
}

struct Friend {
  int32_t streams, length;  // requests at once, and tokens of each
};

class Simulation : public SequenceObserver {
 public:
  Simulation(uint64_t seed, int32_t max_running) : rng_(seed) {
    // Memory for all slots' contexts, or for a part of them.
    const int32_t tokens = max_running * (rng_.below(2) == 0 ? 1500 : 150) + 4096;
    cache_ = make_prefix_cache({.num_pages = tokens / 16, .page_size = 16}).value();
    scheduler_ = std::make_unique<Scheduler>(SchedulerConfig{.max_running = max_running,
                                                             .max_waiting = 4096,
                                                             .chunked_prefill_size = 512,
                                                             .context_length = 4000,
                                                             .fair_share = FairShare::kTenant},
                                             *cache_, clock_, *this);
  }

  // The hostile tenant has the server to itself first. Counting begins 100 steps after the friend
  // has come.
  void run(const Friend& one) {
    constexpr int kAlone = 100, kSteps = 1500;
    for (int i = 0; i < 2 * kAlone + kSteps; ++i) {
      while (scheduler_->stats().num_waiting < 300) add_hostile();
      for (; i >= kAlone && num_open_ < one.streams; ++num_open_) add_friend(one.length);
      counts_ = i >= 2 * kAlone;
      step();
      if (testing::Test::HasFatalFailure()) return;
    }
    for (const auto& [id, since] : waiting_since_) add_wait(since);
    scheduler_->check_invariants();
  }

  double friends_share() const {
    return static_cast<double>(friend_tokens_) /
           static_cast<double>(friend_tokens_ + hostile_tokens_);
  }
  double first_token_max() const { return first_token_max_; }  // seconds
  int num_answers() const { return num_answers_; }

 private:
  // A request with n samples: as many sequences of one prompt.
  void add_hostile() {
    constexpr int kSamples[] = {256, 256, 48, 8, 1};
    const auto prompt = random_tokens(1 + rng_.below(rng_.below(2) == 0 ? 1500 : 20));
    const auto length = static_cast<int32_t>(1 + rng_.below(2000));
    const std::string key = "key " + std::to_string(rng_.below(3));
    for (int n = kSamples[rng_.below(std::size(kSamples))]; n > 0; --n)
      add(next_hostile_++, prompt, length, "foe", key);
  }
  void add_friend(int32_t length) {
    waiting_since_[next_friend_] = clock_.now();
    add(next_friend_++, random_tokens(12), length, "friend", "friend");
  }
  std::vector<TokenId> random_tokens(uint64_t count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(rng_.below(kVocab));
    return tokens;
  }
  void add(SequenceId id, std::vector<TokenId> prompt, int32_t length, std::string tenant,
           std::string key) {
    ASSERT_TRUE(scheduler_
                    ->add({.id = id,
                           .prompt_ids = std::move(prompt),
                           .sampling = std::make_shared<SamplingSpec>(),
                           .max_new_tokens = length,
                           .cache_namespace = std::move(key),
                           .tenant = std::move(tenant)})
                    .ok());
  }

  void step() {
    ASSERT_TRUE(scheduler_->next(batch_));
    StepResult result{.step = batch_.step, .entries = {}, .forward_seconds = seconds_of(batch_)};
    for (const BatchEntry& entry : batch_.entries) {
      result.entries.emplace_back();
      if (entry.sample) result.entries.back().token = static_cast<TokenId>(rng_.below(kVocab));
    }
    clock_.advance(std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(result.forward_seconds)));
    scheduler_->commit(batch_, result);
  }

  std::optional<FinishReason> on_token(SequenceId id, TokenId, TokenOrigin, TokenLogprobs&&,
                                       const RequestStats&) override {
    if (counts_) ++(id >= kFriends ? friend_tokens_ : hostile_tokens_);
    if (const auto since = waiting_since_.find(id); since != waiting_since_.end()) {
      add_wait(since->second);
      waiting_since_.erase(since);
    }
    return std::nullopt;
  }
  void on_input_logprobs(SequenceId, int32_t, std::vector<TokenLogprobs>&&) override {}
  void on_finish(SequenceId id, FinishReason reason, const RequestStats&) override {
    EXPECT_EQ(reason.type, FinishReason::Type::kLength);
    if (id < kFriends) return;
    --num_open_;
    ++num_answers_;
  }
  void add_wait(TimePoint since) {
    const double waited = std::chrono::duration<double>(clock_.now() - since).count();
    first_token_max_ = std::max(first_token_max_, waited);
  }

  Rng rng_;
  ManualClock clock_;
  std::unique_ptr<PrefixCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  ForwardBatch batch_;
  SequenceId next_hostile_ = 1, next_friend_ = kFriends;
  std::map<SequenceId, TimePoint> waiting_since_;  // requests of the friend without a token
  bool counts_ = false;
  int32_t num_open_ = 0;  // requests of the friend
  int num_answers_ = 0;
  int64_t hostile_tokens_ = 0, friend_tokens_ = 0;
  double first_token_max_ = 0;
};

// Streams that always ask for half of the slots and more.
TEST(FairnessSimulation, ATenantThatAsksForHalfHasIts) {
  for (int seed = 1; seed <= 8; ++seed) {
    const int32_t max_running = seed % 2 == 0 ? 16 : 64;
    Simulation simulation(static_cast<uint64_t>(seed), max_running);
    ASSERT_NO_FATAL_FAILURE(simulation.run({.streams = max_running * 3 / 4, .length = 40}));
    std::printf("seed %d, %d slots: %.1f %% of the tokens in %d answers\n", seed, max_running,
                100 * simulation.friends_share(), simulation.num_answers());
    EXPECT_GE(simulation.friends_share(), 0.45) << "seed " << seed;
  }
}

// One stream of short answers: each request finds all slots taken.
TEST(FairnessSimulation, ATenantWithOneStreamHasItsFirstTokenSoon) {
  for (int seed = 11; seed <= 18; ++seed) {
    const int32_t max_running = seed % 2 == 0 ? 16 : 256;
    Simulation simulation(static_cast<uint64_t>(seed), max_running);
    ASSERT_NO_FATAL_FAILURE(simulation.run({.streams = 1, .length = 1 + seed % 3}));
    std::printf("seed %d, %d slots: first token after %.3f s at most, %d answers\n", seed,
                max_running, simulation.first_token_max(), simulation.num_answers());
    EXPECT_LT(simulation.first_token_max(), 2.0) << "seed " << seed;
    EXPECT_GT(simulation.num_answers(), 100) << "seed " << seed;
  }
}

}  // namespace
}  // namespace espalier
