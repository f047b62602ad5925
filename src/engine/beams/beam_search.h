// Beam search over outputs: which hypotheses a step keeps, which have ended, and when no better one
// can come. It knows tokens and log-probabilities alone; BeamRunner computes the distributions.
//
// The algorithm is that of transformers' generate(num_beams=...) without sampling. In a step the
// `num_candidates` continuations of all beams with the largest sums of log-probabilities compete.
// Of the first num_beams of them those that end become hypotheses, with the score sum / length ^
// length_penalty, of which the best num_beams are kept; the best num_beams of all that do not end
// are the next beams. A continuation ends at an end-of-sequence or stop token, with a stop string,
// at the end of its grammar, and at the length.
//
// Plain values, not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "seams/sampling.h"
#include "seams/token_event.h"

namespace espalier {

struct BeamOptions {
  int32_t num_beams = 1;
  float length_penalty = 1.0f;
  EarlyStopping early_stopping = EarlyStopping::kNo;
  int32_t num_candidates = 2;       // of a step: num_beam_candidates()
  int32_t candidates_per_beam = 2;  // candidates_of_one_beam()
  bool return_logprob = false;      // hypotheses have the log-probabilities of their tokens
  int32_t top_logprobs_num = 0;     // of each token, as far as take() has them
};

// How many candidates a step needs so that num_beams of them go on, whatever stop tokens come.
int32_t num_beam_candidates(int32_t num_beams, size_t num_stop_ids);
// How many of them can be of one beam: behind num_beams that go on, or of which some end at stop
// tokens, none is read. Twice num_beams at least, for stop strings and grammars end others too.
int32_t candidates_of_one_beam(int32_t num_beams, size_t num_stop_ids, int32_t vocab_size);

class BeamSearch {
 public:
  struct Beam {
    std::vector<TokenId> tokens;          // output so far
    std::vector<TokenLogprobs> logprobs;  // of `tokens`, with return_logprob
    float logprob = 0;                    // of all tokens: the sum
  };
  struct Hypothesis {
    Beam beam;
    float score = 0;
    FinishReason finish;
  };
  // `beam`, continued by `token`.
  struct Candidate {
    int32_t beam = 0;
    TokenId token = -1;
    float logprob = 0;  // the sum
    size_t rank = 0;    // among the beam's candidates
  };
  // Why an output ends with its candidate's token; nothing where it goes on.
  using EndOf = std::function<std::optional<FinishReason>(const Candidate&)>;

  // max_new_tokens: at least 1.
  BeamSearch(const BeamOptions& options, int32_t max_new_tokens);

  const BeamOptions& options() const { return options_; }
  // One at first, then up to num_beams, the best first.
  std::span<const Beam> beams() const { return beams_; }
  int32_t length() const { return length_; }  // of each beam

  // The distribution behind a beam: its `top` has the candidates_per_beam likeliest tokens, the
  // best first. A token of log-probability -FLT_MAX is banned. REQUIRED for each beam before
  // advance().
  void take(int32_t beam, TokenLogprobs&& distribution);

  // One step. `end_of` is called for candidates in their order, as far as it takes. Returns the
  // candidates that are the next beams, in their order; none where the search is done.
  std::span<const Candidate> advance(const EndOf& end_of);

  // The best first. Once it is done, at most num_beams; a grammar may allow fewer than that.
  std::span<const Hypothesis> hypotheses() const { return hypotheses_; }

 private:
  void rank_candidates();
  Beam continued(const Candidate& candidate) const;
  void add_hypothesis(const Candidate& candidate, FinishReason&& finish);
  bool is_full() const { return std::ssize(hypotheses_) == options_.num_beams; }
  bool may_improve(float best_logprob) const;

  const BeamOptions options_;
  const int32_t max_new_tokens_;
  int32_t length_ = 0;
  bool improvable_ = true;
  std::vector<Beam> beams_ = {Beam()};
  std::vector<TokenLogprobs> distributions_;  // [beam]
  std::vector<Candidate> candidates_, next_;
  std::vector<Hypothesis> hypotheses_;  // the best first
};

}  // namespace espalier
