// Theorem 3.1 of the SGLang paper: for a batch known in advance, served one at a time with a cache
// that holds no more than the longest prompt, longest-prefix-first and depth-first order compute
// every edge of the prompts' radix tree once. A prompt that an earlier one covers computes one
// token more, for its logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/rng.h"
#include "cache/prefix_cache.h"
#include "engine/scheduler/fake_executor.h"
#include "engine/scheduler/scheduler.h"

namespace espalier {
namespace {

using Tokens = std::vector<TokenId>;

class Silent final : public SequenceObserver {
 public:
  void on_input_logprobs(SequenceId, int32_t, std::vector<TokenLogprobs>&&) override {}
  std::optional<FinishReason> on_token(SequenceId, TokenId, TokenOrigin, TokenLogprobs&&,
                                       const RequestStats&) override {
    return std::nullopt;
  }
  void on_finish(SequenceId, FinishReason, const RequestStats&) override {}
};

// Prompt tokens computed when the prompts arrive at once, in this order.
int64_t num_computed(const std::vector<Tokens>& prompts, SchedulePolicy policy) {
  size_t longest = 0;
  for (const Tokens& prompt : prompts) longest = std::max(longest, prompt.size());
  auto cache = make_prefix_cache({.num_pages = static_cast<int32_t>(longest)}).value();
  const ManualClock clock;
  Silent silent;
  Scheduler scheduler(
      {.max_running = 1, .max_waiting = 1000, .context_length = 1000, .policy = policy}, *cache,
      clock, silent);
  FakeExecutor executor(1);
  const auto sampling = [](uint64_t seed) {
    SamplingSpec spec;
    spec.seed = seed;
    return std::make_shared<SamplingSpec>(spec);
  };
  for (SequenceId id = 1; id <= prompts.size(); ++id) {
    executor.expect(id, "", prompts[id - 1]);
    EXPECT_TRUE(
        scheduler.add({.id = id, .prompt_ids = prompts[id - 1], .sampling = sampling(id)}).ok());
  }
  ForwardBatch batch;
  while (scheduler.next(batch)) {
    executor.launch(batch);
    scheduler.commit(batch, executor.wait(batch.step));
    scheduler.check_invariants();
  }
  EXPECT_TRUE(scheduler.idle());
  return executor.num_prompt_tokens_computed();
}

// One for each edge's token, and one for each prompt that another one covers.
int64_t optimum(const std::vector<Tokens>& prompts) {
  std::set<Tokens> prefixes;
  std::set<Tokens> whole;
  int64_t num_covered = 0;
  for (const Tokens& prompt : prompts) {
    for (size_t n = 1; n <= prompt.size(); ++n)
      prefixes.insert(Tokens(prompt.begin(), prompt.begin() + static_cast<long>(n)));
    if (!whole.insert(prompt).second) ++num_covered;
  }
  for (auto at = whole.begin(); at != whole.end(); ++at) {  // an extension comes next in the order
    const auto next = std::next(at);
    if (next != whole.end() && next->size() > at->size() &&
        std::equal(at->begin(), at->end(), next->begin()))
      ++num_covered;
  }
  return static_cast<int64_t>(prefixes.size()) + num_covered;
}

std::vector<Tokens> random_batch(Rng& rng) {
  std::vector<Tokens> prompts;
  for (uint64_t count = 2 + rng.below(40); count > 0; --count) {
    Tokens prompt;
    if (!prompts.empty() && rng.below(4) != 0) {
      prompt = prompts[rng.below(prompts.size())];
      prompt.resize(rng.below(prompt.size() + 1));
    }
    for (uint64_t n = rng.below(12) + (prompt.empty() ? 1 : 0); n > 0; --n)
      prompt.push_back(static_cast<TokenId>(rng.below(3)));
    prompts.push_back(prompt);
  }
  return prompts;
}

TEST(OptimalOrder, LongestPrefixAndDepthFirstReachTheOptimum) {
  int64_t num_lost_by_arrival = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    std::vector<Tokens> prompts = random_batch(rng);
    const int64_t best = optimum(prompts);
    num_lost_by_arrival += num_computed(prompts, SchedulePolicy::kFcfs) - best;

    // Longest first among equals, so that who is covered comes after who covers it.
    std::stable_sort(prompts.begin(), prompts.end(),
                     [](const Tokens& a, const Tokens& b) { return a.size() > b.size(); });
    ASSERT_EQ(num_computed(prompts, SchedulePolicy::kLpm), best);
    ASSERT_EQ(num_computed(prompts, SchedulePolicy::kDfsWeight), best);
    std::sort(prompts.begin(), prompts.end(), std::greater<>());  // depth first, deepest before
    ASSERT_EQ(num_computed(prompts, SchedulePolicy::kFcfs), best);
  }
  EXPECT_GT(num_lost_by_arrival, 1000);  // order matters for these batches
}

}  // namespace
}  // namespace espalier
