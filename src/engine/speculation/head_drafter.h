// Draft tokens of a draft head: decides how long a chain the head proposes behind an entry's
// sample, and hands the chain out when the next entry is built, which verifies all of it.
//
// The length is chosen from what was measured: how often the head is right, by the token's place in
// the chain and by request, the time of a step without draft tokens, and what drafting and
// verifying a token add to it. A request whose chains do not pay stops drafting for good, and its
// head's keys and values are no longer kept up; one in 16 requests tries again.
// Draft tokens change no output: a step verifies them against what it samples.
//
// Not thread-safe: the loop's thread alone uses it. Times in seconds.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/scheduler/token_proposer.h"
#include "engine/speculation/draft_policy.h"
#include "engine/speculation/step_cost.h"

namespace espalier {

// What the head has drafted for one sample.
class HeadText {
 public:
  static constexpr int32_t kChainMax = 16;

  // Behind the text so far.
  std::span<const TokenId> chain() const { return std::span(tokens_).subspan(begin_); }
  // The entry in flight brings a chain.
  bool awaits_chain() const { return awaits_; }

 private:
  friend class HeadDrafter;
  using Rates = std::array<AcceptanceRate, kChainMax>;  // by place in the chain

  std::vector<TokenId> tokens_;
  size_t begin_ = 0;  // those before have come
  Rates rates_;
  int64_t num_outputs_ = 0;
  bool awaits_ = false;
  bool stopped_ = false;  // tokens have been computed that the head has not read
  bool tries_ = false;    // has chains whatever was measured
};

class HeadDrafter {
 public:
  struct Config {
    int32_t chain_max = 4;     // at most HeadText::kChainMax
    int32_t samples_max = 16;  // draft samples of all entries of a step
  };
  explicit HeadDrafter(const Config& config) : config_(config) {}

  // A sample begins; draft tokens follow once its entries have a chain_length.
  HeadText start();
  void observe_token(HeadText& text, TokenId token);

  // BatchEntry::chain_length of an entry that is being built, which samples or not.
  int32_t chain_length(HeadText& text, bool samples);
  // The entry has been committed; empty where its chain does not follow the text.
  void take_chain(HeadText& text, std::span<const TokenId> chain);
  void propose(HeadText& text, DraftTokens& draft);

  // A step has been committed: its time on the device, and the head's beside it.
  void observe_step(const ForwardBatch& batch, const StepSeconds& seconds, double draft_seconds);

 private:
  static constexpr size_t kBatchClasses = 16;
  struct StepCosts {
    RecentMedian plain;        // without the head and without draft tokens
    RecentMedian draft_token;  // that a draft token of each entry adds
    RecentMedian head_pass;    // of all entries' chains by one token
  };
  StepCosts& costs();
  int32_t best_length(const HeadText& text);
  bool is_plain_step();

  const Config config_;
  HeadText::Rates rates_;
  std::array<StepCosts, kBatchClasses> costs_;  // by the number of entries
  int32_t num_entries_ = 1;                     // of the last step
  uint64_t num_steps_ = 0, num_texts_ = 0;
};

}  // namespace espalier
