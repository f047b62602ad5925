#include "engine/speculation/speculator.h"

#include <gtest/gtest.h>

#include <vector>

#include "cache/prefix_cache.h"

namespace espalier {
namespace {

using Tokens = std::vector<TokenId>;

Tokens count_up(TokenId first, int count) {
  Tokens tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

// A sample that an engine would run: its text, and its lock on the cache's prefix.
class Sample {
 public:
  Sample(Speculator& speculator, uint64_t scope, const Tokens& prompt, PrefixCache* cache = nullptr)
      : speculator_(speculator),
        prompt_(prompt),
        text_(speculator.start(scope, prompt_, 50)),
        tokens_(prompt) {
    if (cache != nullptr) pages_ = cache->begin("", prompt);
  }
  // In a step of this sample alone, whose tokens are all known.
  Tokens propose(int32_t most = 16) {
    draft_ = {.tokens_max = most, .samples_max = 16};
    EXPECT_FALSE(plan(/*awaits_sample=*/false));
    speculator_.propose(*text_, site(), draft_);
    EXPECT_EQ(draft_.tokens.size(), draft_.samples.size());
    for (size_t i = 0; i < draft_.samples.size(); ++i)
      EXPECT_EQ(draft_.samples[i], static_cast<int32_t>(i));
    return draft_.tokens;
  }
  bool has_index() const { return text_->has_index(); }
  Drafter drafter() const { return draft_.drafter; }
  bool pays_to_wait() { return plan(/*awaits_sample=*/true); }
  void say(TokenId token) {
    tokens_.push_back(token);
    speculator_.observe_token(*text_, token);
  }
  void finish(PrefixCache* cache = nullptr) {
    speculator_.finish(*text_);
    if (cache == nullptr) return;
    ASSERT_TRUE(cache->grow(pages_, static_cast<int32_t>(tokens_.size())));
    cache->finish(std::move(pages_), tokens_);
  }

 private:
  DraftSite site(bool awaits_sample = false) const {
    return {.id = 1,
            .tokens = tokens_,
            .pages = pages_,
            .tokens_max = 16,
            .awaits_sample = awaits_sample};
  }
  bool plan(bool awaits_sample) {
    speculator_.begin_plan(1, 16);
    speculator_.add_to_plan(*text_, site(awaits_sample));
    return speculator_.end_plan();
  }
  Speculator& speculator_;
  const Tokens prompt_;
  std::unique_ptr<SpeculativeText> text_;
  Tokens tokens_;
  SequencePages pages_;
  DraftTokens draft_;
};

TEST(Speculator, CopiesFromTheOwnText) {
  Speculator speculator({.draft_tokens_max = 4});
  Sample sample(speculator, 1, count_up(10, 30));
  EXPECT_TRUE(sample.propose().empty());
  size_t num_drafted = 0;
  for (const TokenId token : {12, 13, 14}) sample.say(token);
  for (TokenId token = 15; token < 35;) {
    const Tokens draft = sample.propose();
    for (size_t i = 0; i < draft.size(); ++i) EXPECT_EQ(draft[i], token + static_cast<TokenId>(i));
    num_drafted += draft.size();
    for (size_t i = 0; i <= draft.size(); ++i) sample.say(token++);
  }
  EXPECT_GT(num_drafted, 12u);
  EXPECT_EQ(sample.drafter(), Drafter::kNgram);
  sample.finish();
}

// A request that waits to be admitted holds no index; its first plan or token makes it.
TEST(Speculator, IndexesATextWhenItRuns) {
  const Tokens prompt = {5, 6, 7, 5, 6};
  Speculator speculator({.draft_tokens_max = 4});
  Sample waits(speculator, 1, prompt), plans(speculator, 1, prompt), says(speculator, 1, prompt);
  const Tokens first = plans.propose();
  ASSERT_FALSE(first.empty());
  EXPECT_EQ(first[0], 7);
  says.say(7);
  EXPECT_FALSE(waits.has_index());
  EXPECT_TRUE(plans.has_index());
  EXPECT_TRUE(says.has_index());
  const Tokens second = says.propose();
  ASSERT_FALSE(second.empty());
  EXPECT_EQ(second[0], 5);
  waits.finish();
  EXPECT_FALSE(waits.has_index());
  Speculator of_tree({.uses_ngrams = false});
  Sample unindexed(of_tree, 1, prompt);
  unindexed.propose();
  unindexed.say(7);
  unindexed.finish();
  EXPECT_FALSE(unindexed.has_index());
}

TEST(Speculator, GoesOnWithARepetition) {
  Speculator speculator({.draft_tokens_max = 7});
  Sample sample(speculator, 1, {5, 6, 5, 6, 5, 6});
  for (int i = 0; i < 30; ++i) sample.say(i % 2 == 0 ? 5 : 6);
  for (int round = 0; round < 8; ++round) {
    const Tokens draft = sample.propose();
    for (size_t i = 0; i < draft.size(); ++i) EXPECT_EQ(draft[i], i % 2 == 0 ? 5 : 6);
    for (int i = 0; i < 8; ++i) sample.say(i % 2 == 0 ? 5 : 6);
  }
  EXPECT_EQ(sample.propose().size(), 7u);
  EXPECT_TRUE(sample.pays_to_wait());
}

TEST(Speculator, ContinuesAsAnEarlierAnswerOfItsScopeDid) {
  Speculator speculator({.draft_tokens_max = 4});
  const Tokens prompt = {1, 2, 3, 4};
  Sample first(speculator, 1, prompt);
  for (const TokenId token : count_up(40, 20)) first.say(token);
  EXPECT_TRUE(first.propose().empty());
  first.finish();
  Sample same(speculator, 1, prompt);
  const Tokens draft = same.propose();
  ASSERT_FALSE(draft.empty());
  EXPECT_EQ(draft[0], 40);
  EXPECT_EQ(same.propose(0).size(), 0u);
  same.finish();
  Sample other(speculator, 2, prompt);
  EXPECT_TRUE(other.propose().empty()) << "another scope";
}

TEST(Speculator, ContinuesAsTheTreeDoes) {
  auto cache = make_prefix_cache({.num_pages = 256}).value();
  Speculator speculator({.draft_tokens_max = 4, .uses_ngrams = false, .tree = cache->radix_tree()});
  const Tokens prompt = {1, 2, 3, 4, 1, 2, 3, 4};
  Sample first(speculator, 1, prompt, cache.get());
  EXPECT_TRUE(first.propose().empty()) << "its own text is not searched";
  for (const TokenId token : count_up(40, 20)) first.say(token);
  first.finish(cache.get());
  Sample same(speculator, 1, prompt, cache.get());
  TokenId token = 40;
  while (token < 60) {
    const Tokens draft = same.propose();
    ASSERT_FALSE(draft.empty()) << token;
    EXPECT_EQ(same.drafter(), Drafter::kRadix);
    for (size_t i = 0; i < draft.size(); ++i) ASSERT_EQ(draft[i], token + static_cast<TokenId>(i));
    for (size_t i = 0; i < draft.size(); ++i) same.say(token++);
  }
  same.say(7);
  same.say(7);
  EXPECT_TRUE(same.propose().empty()) << "it has left the tree";
  EXPECT_FALSE(same.pays_to_wait());
  same.finish(cache.get());
}

// The tree says one thing and the own text another: the one that has been right is followed.
TEST(Speculator, FollowsTheSourceThatIsRight) {
  auto cache = make_prefix_cache({.num_pages = 4096}).value();
  Speculator speculator({.draft_tokens_max = 4, .tree = cache->radix_tree()});
  for (const int round : {1, 2, 3, 4}) {
    const bool tree_is_right = round % 2 == 0;
    const TokenId base = 1000 * round;  // the history knows nothing of it
    Tokens prompt = count_up(base, 40), answer = count_up(base + 500, 40);
    Sample first(speculator, 1, prompt, cache.get());  // says what the prompt did not
    for (const TokenId token : answer) first.say(token);
    first.finish(cache.get());
    Sample again(speculator, 2, prompt, cache.get());
    const Tokens& truth = tree_is_right ? answer : prompt;
    int num_right = 0;
    for (const TokenId token : truth) {
      const Tokens draft = again.propose();
      num_right += !draft.empty() && draft[0] == token ? 1 : 0;
      again.say(token);
    }
    EXPECT_GT(num_right, 25) << tree_is_right;
    EXPECT_EQ(again.drafter(), tree_is_right ? Drafter::kRadix : Drafter::kNgram);
    again.finish(cache.get());
  }
}

TEST(Speculator, PausesWhatIsSeldomRight) {
  DraftPolicy policy;
  Prediction prediction;
  int num_looks = 0;
  for (int64_t at = 0; at < 320; ++at) {
    if (prediction.wants(9, at)) {
      ++num_looks;
      prediction.take(Tokens{1, 2, 3}, 3, at, false);
    }
    if (prediction.size() > 0) prediction.observe(9, at + 1, DraftSource::kOwnText, policy);
  }
  EXPECT_LT(num_looks, 30) << "all wrong";
  for (int64_t at = 400; at < 440; ++at) {
    if (prediction.wants(9, at)) prediction.take(Tokens{1, 2, 3}, 3, at, false);
    if (prediction.size() > 0)
      prediction.observe(prediction.tokens()[0], at + 1, DraftSource::kOwnText, policy);
  }
  EXPECT_TRUE(prediction.wants(9, 441)) << "what is right again is looked up at once";
  prediction.take({}, 0, 441, true);
  EXPECT_FALSE(prediction.wants(9, 441));
  EXPECT_TRUE(prediction.wants(9, 442));
  prediction.take({}, 0, 442, true);
  EXPECT_FALSE(prediction.wants(9, 444));
  EXPECT_TRUE(prediction.wants(9, 445)) << "what has nothing is looked up ever less often";
}

}  // namespace
}  // namespace espalier
