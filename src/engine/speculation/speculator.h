// Draft tokens for requests without a grammar: continuations of what the request's own text said
// before, else of what recent answers of the server said, as far as DraftPolicy finds that they
// pay. Draft tokens change no output: a step verifies them against what it samples.
//
// Not thread-safe: the loop's thread alone uses it. Owns the history of answers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/scheduler/token_proposer.h"
#include "engine/speculation/draft_policy.h"
#include "engine/speculation/ngram_index.h"

namespace espalier {

// What one sample has said, and the draft tokens that are being verified for it.
class SpeculativeText {
 public:
  SpeculativeText(uint64_t scope, size_t capacity) : scope(scope), own(capacity) {}

  const uint64_t scope;
  NgramIndex own;
  int64_t num_outputs = 0;
  AcceptanceRate acceptance;
  std::vector<TokenId> draft;  // proposed and not yet compared with the output
  size_t num_compared = 0;
  DraftPolicy::Origin origin;  // of the draft's first token
};

struct DraftCounts {
  int64_t proposed = 0, accepted = 0;
};

class Speculator {
 public:
  struct Config {
    int32_t draft_tokens_max = 8;      // of one sequence in one step
    int32_t history_tokens = 1 << 18;  // of recent answers
  };
  // Texts longer than this are searched in their last part only.
  static constexpr size_t kOwnTokensMax = size_t{1} << 16;

  explicit Speculator(const Config& config);

  // A sample begins: with its prompt, and room for its answer. Answers of one scope give no draft
  // tokens in another.
  std::unique_ptr<SpeculativeText> start(uint64_t scope, std::span<const TokenId> prompt,
                                         int32_t max_new_tokens);
  void observe_token(SpeculativeText& text, TokenId token);
  // The sample ends: its answer joins the history.
  void finish(SpeculativeText& text);

  void propose(SpeculativeText& text, DraftTokens& draft);
  // Whether draft tokens behind the token in flight are likely to be worth the wait.
  bool pays_to_wait(const SpeculativeText& text) const;

  void observe_step(const ForwardBatch& batch, double seconds);

  const DraftCounts& counts(DraftSource source) const {
    return counts_[static_cast<size_t>(source)];
  }

 private:
  struct Found {
    const NgramIndex* index = nullptr;  // null: nothing
    NgramIndex::Match match;
    DraftPolicy::Origin origin;
  };
  Found find(const SpeculativeText& text) const;
  int32_t num_running() const;

  const Config config_;
  NgramIndex history_;
  DraftPolicy policy_;
  std::array<DraftCounts, kNumDraftSources> counts_;
  int32_t num_live_ = 0, num_entries_ = 1;
};

}  // namespace espalier
