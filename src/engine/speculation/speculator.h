// Draft tokens for requests without a grammar: continuations of what the request's own text said
// before, of what recent answers of the server said, and of what other requests said behind the
// same prefix, as far as DraftPlanner finds that they pay. Draft tokens change no output: a step
// verifies them against what it samples.
//
// Each source predicts what comes next, and each prediction is compared with the tokens that come,
// whether it was verified or not. A request's draft tokens are taken from the source that would be
// right most often. A source that is seldom right is looked up seldom, and none is looked up where
// no draft token can pay, so that what is not used costs nearly nothing.
//
// Not thread-safe: the loop's thread alone uses it. Owns the history of answers; the radix tree
// is the cache's, and is read only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/continuation.h"
#include "cache/radix_tree.h"
#include "engine/scheduler/token_proposer.h"
#include "engine/speculation/draft_planner.h"
#include "engine/speculation/draft_policy.h"
#include "engine/speculation/ngram_index.h"

namespace espalier {

// What one source predicts behind a sample's text.
class Prediction {
 public:
  static constexpr int32_t kTokensMax = 32;

  std::span<const TokenId> tokens() const { return std::span(tokens_).subspan(begin_, size_); }
  int32_t size() const { return static_cast<int32_t>(size_); }
  int32_t match_length() const { return match_length_; }
  const AcceptanceRate& acceptance() const { return acceptance_; }

  // Whether to look for at least `count` tokens behind so many output tokens.
  bool wants(int32_t count, int64_t num_outputs) const {
    return size() < count && num_outputs >= next_look_;
  }
  // Takes what a look-up found behind `match_length` tokens that agree; `rests`: a source that
  // found nothing is looked up later.
  void take(std::span<const TokenId> found, int32_t match_length, int64_t num_outputs, bool rests);
  // The token that came behind so many output tokens. Requires size() > 0.
  void observe(TokenId token, int64_t num_outputs, DraftSource source, DraftPolicy& policy);

 private:
  static constexpr double kSeldomRight = 0.2;
  static constexpr int64_t kPauseMax = 32;  // output tokens
  void pause(int64_t num_outputs);

  std::array<TokenId, kTokensMax> tokens_;
  size_t begin_ = 0, size_ = 0;  // those still to come
  int32_t match_length_ = 0;
  AcceptanceRate acceptance_;
  int64_t next_look_ = 0, pause_ = 0;  // output tokens
};

// What one sample has said, and what is predicted for it.
class SpeculativeText {
 public:
  // prompt: outlives this. capacity: tokens of the index.
  SpeculativeText(uint64_t scope, std::span<const TokenId> prompt, size_t capacity)
      : scope(scope), prompt_(prompt), capacity_(capacity) {}

  // The index of the prompt and of what came behind it. The first call makes it: requests that
  // wait to be admitted have none.
  NgramIndex& own();
  bool has_index() const { return own_.has_value(); }

  const uint64_t scope;
  int64_t num_outputs = 0;
  std::array<Prediction, kNumDraftSources> predictions;  // by DraftSource
  TreePosition position;
  uint64_t planned_by = 0;  // the number of the plan that chose `num_planned` draft tokens
  int32_t num_planned = 0;
  uint64_t last_step = 0;  // the number of the step that its last token came from
  bool missed = false;     // no prediction of its last token was right, and there was one

 private:
  const std::span<const TokenId> prompt_;
  const size_t capacity_;
  std::optional<NgramIndex> own_;
};

class Speculator {
 public:
  struct Config {
    int32_t draft_tokens_max = 8;      // of one sequence in one step
    int32_t history_tokens = 1 << 18;  // of recent answers
    bool uses_ngrams = true;           // the own text and recent answers
    const RadixTree* tree = nullptr;   // outlives it; null: no tree is read
    bool measures_cost = true;         // false: what draft tokens cost is assumed
  };
  // Texts longer than this are searched in their last part only.
  static constexpr size_t kOwnTokensMax = size_t{1} << 16;

  explicit Speculator(const Config& config);

  // A sample waits: with its prompt, which outlives the text, and room for its answer. Answers of
  // one scope give no draft tokens in another.
  std::unique_ptr<SpeculativeText> start(uint64_t scope, std::span<const TokenId> prompt,
                                         int32_t max_new_tokens);
  void observe_token(SpeculativeText& text, TokenId token);
  // The sample ends: its answer joins the history.
  void finish(SpeculativeText& text);

  // TokenProposer::plan_draft_tokens(), site by site. end_plan() returns whether to wait.
  void begin_plan(int32_t num_entries, int32_t samples_max);
  void add_to_plan(SpeculativeText& text, const DraftSite& site);
  bool end_plan();
  // What the last plan chose for the text. One that was not in it, because its prompt is being
  // computed, gets what pays beside the others.
  void propose(SpeculativeText& text, const DraftSite& site, DraftTokens& draft);

  void observe_step(const ForwardBatch& batch, const StepSeconds& seconds);

 private:
  struct Best {
    const Prediction* prediction = nullptr;  // null: nothing
    DraftPolicy::Origin origin;
  };
  bool may_pay(int32_t num_entries, int32_t samples_max);
  Best predict(SpeculativeText& text, const DraftSite& site);
  void look_up(DraftSource source, SpeculativeText& text, const DraftSite& site);
  static void look_up_ngrams(const NgramIndex& index, SpeculativeText& text,
                             Prediction& prediction);
  bool uses(DraftSource source) const {
    return source == DraftSource::kRadix ? config_.tree != nullptr : config_.uses_ngrams;
  }

  const Config config_;
  NgramIndex history_;
  DraftPolicy policy_;
  DraftPlanner planner_{policy_};
  AcceptanceRate found_anew_;  // how often something is predicted right behind a wrong prediction
  std::vector<DraftChain> chains_;         // of the plan being made
  std::vector<SpeculativeText*> planned_;  // whose they are
  bool looks_ = false, awaits_ = false;    // of the same: whether sources are read; a site waits
  int32_t num_entries_ = 1, samples_max_ = 0;  // the same
  uint64_t num_plans_ = 0, num_steps_ = 1;
  int32_t num_accepted_ = 0;  // tokens of the step being committed beyond one for each text
  uint32_t num_refused_ = 0;
};

}  // namespace espalier
