#include "engine/speculation/head_drafter.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace espalier {
namespace {

using Tokens = std::vector<TokenId>;

// One request that decodes alone on a device whose steps take the times given here.
class HeadDevice {
 public:
  explicit HeadDevice(double draft_token, double head_pass, double right)
      : draft_token_(draft_token), head_pass_(head_pass), right_(right) {}

  // Returns the tokens that the text has got.
  int32_t step(HeadText& text) {
    DraftTokens draft{.tokens_max = 16, .samples_max = 16};
    drafter_.propose(text, draft);
    EXPECT_EQ(draft.tokens.size(), draft.samples.size());
    const int32_t length = drafter_.chain_length(text, true);
    EXPECT_EQ(text.awaits_chain(), length > 0);
    ForwardBatch batch;
    const auto num_draft_tokens = static_cast<int32_t>(draft.tokens.size());
    batch.entries.push_back({.num_query_tokens = 1 + num_draft_tokens,
                             .sample = true,
                             .num_draft_tokens = num_draft_tokens,
                             .chain_length = length});
    const double head = length > 0 ? length * head_pass_ : 0;
    drafter_.observe_step(batch, {.device = 1 + draft_token_ * num_draft_tokens}, head);
    seconds_ += 1 + draft_token_ * num_draft_tokens + head;
    int32_t tokens = 0;
    bool right = true;
    for (; right; ++tokens) {
      right = tokens < num_draft_tokens && rng_.uniform() < right_;
      drafter_.observe_token(text, right ? draft.tokens[static_cast<size_t>(tokens)] : TokenId{-1});
    }
    if (length > 0) drafter_.take_chain(text, Tokens(static_cast<size_t>(length), 7));
    last_length_ = length;
    return tokens;
  }
  // Tokens in a plain step's time, of `count` steps of texts of 50 each.
  double yield(int32_t count) {
    int32_t tokens = 0;
    seconds_ = 0;
    HeadText text = drafter_.start();
    for (int32_t i = 0; i < count; ++i) {
      if (i % 50 == 0) text = drafter_.start();
      tokens += step(text);
    }
    return tokens / seconds_;
  }
  int32_t last_length() const { return last_length_; }
  HeadDrafter& drafter() { return drafter_; }

 private:
  HeadDrafter drafter_{{.chain_max = 6}};
  const double draft_token_, head_pass_, right_;
  double seconds_ = 0;
  int32_t last_length_ = 0;
  Rng rng_{11};
};

TEST(HeadDrafter, HasChainsWhereTheyPay) {
  HeadDevice device(0.05, 0.1, 0.7);
  device.yield(200);
  EXPECT_GT(device.yield(1000), 1.4);
  EXPECT_GE(device.last_length(), 2);
}

TEST(HeadDrafter, CertainTokensMakeLongChains) {
  HeadDevice device(0.02, 0.02, 1.0);
  device.yield(200);
  EXPECT_GT(device.yield(500), 4);
  EXPECT_EQ(device.last_length(), 6);
}

TEST(HeadDrafter, StopsWhereItDoesNotPay) {
  HeadDevice wrong(0.05, 0.1, 0.05);
  wrong.yield(600);
  EXPECT_GT(wrong.yield(4000), 0.985);
  EXPECT_EQ(wrong.last_length(), BatchEntry::kNoChain);
  HeadDevice dear(0.6, 0.5, 0.8);
  dear.yield(600);
  EXPECT_GT(dear.yield(4000), 0.985);
}

// Many requests show at once that a head is never right: one step verifies, and no chain that came
// with it is verified after that. One request in 16 goes on for some tokens.
TEST(HeadDrafter, ManyRequestsStopBeforeCostsAreKnown) {
  HeadDrafter drafter({.chain_max = 4, .samples_max = 512});
  std::vector<HeadText> texts;
  for (int i = 0; i < 64; ++i) texts.push_back(drafter.start());
  for (HeadText& text : texts) ASSERT_GT(drafter.chain_length(text, true), 0);
  for (HeadText& text : texts) drafter.take_chain(text, Tokens{1, 2, 3});
  for (HeadText& text : texts) drafter.observe_token(text, 9);
  int num_stopped = 0;
  for (HeadText& text : texts) {
    if (drafter.chain_length(text, true) != BatchEntry::kNoChain) continue;
    ++num_stopped;
    drafter.take_chain(text, Tokens{1, 2, 3});
    DraftTokens draft{.tokens_max = 16, .samples_max = 16};
    drafter.propose(text, draft);
    EXPECT_TRUE(draft.tokens.empty());
  }
  EXPECT_EQ(num_stopped, 60);
}

// What has not been read by the head cannot be read later.
TEST(HeadDrafter, AStoppedRequestDoesNotBeginAgain) {
  HeadDevice device(0.05, 0.1, 0.0);
  device.yield(600);
  device.drafter().start();
  HeadText text = device.drafter().start();
  while (device.drafter().chain_length(text, true) >= 0) device.step(text);
  EXPECT_EQ(device.drafter().chain_length(text, false), BatchEntry::kNoChain);
  EXPECT_TRUE(text.chain().empty());
}

TEST(HeadDrafter, ProposesWhatIsLeftOfTheChain) {
  HeadDrafter drafter({.chain_max = 4});
  HeadText text = drafter.start();
  EXPECT_EQ(drafter.chain_length(text, false), 0);
  EXPECT_FALSE(text.awaits_chain());
  EXPECT_GT(drafter.chain_length(text, true), 0);
  EXPECT_TRUE(text.awaits_chain());
  drafter.take_chain(text, Tokens{1, 2, 3, 4});
  EXPECT_FALSE(text.awaits_chain());
  drafter.observe_token(text, 1);
  DraftTokens draft{.tokens_max = 2, .samples_max = 16};
  drafter.propose(text, draft);
  EXPECT_EQ(draft.tokens, (Tokens{2, 3}));
  EXPECT_EQ(draft.samples, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(draft.drafter, Drafter::kHead);
  drafter.observe_token(text, 9);
  EXPECT_TRUE(text.chain().empty());
  drafter.take_chain(text, {});
  EXPECT_TRUE(text.chain().empty());
}

}  // namespace
}  // namespace espalier
