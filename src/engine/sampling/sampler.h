// Draws one request's next token from its logits, in the order of operations that
// seams/sampling.h defines.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/sampling/history_rules.h"
#include "engine/sampling/row_ops.h"
#include "engine/sampling/token_counts.h"
#include "seams/sampling.h"

namespace espalier {

// The reasons for which a batch entry gets no token: a logit is NaN or infinite, or mask and bans
// leave none.
Status not_finite_logits();
Status not_finite_vector();  // the same for an entry whose text becomes a vector
// Whether an entry failed with one of these two statuses.
bool is_not_finite(const Status& status);
Status no_token_left(const SamplingSpec& spec);

// The log-probabilities of a position where `token` alone may come: 0 for it, -FLT_MAX for others.
TokenLogprobs certain_logprobs(TokenId token, const SamplingSpec& spec);

struct SampleInput {
  std::span<const float> logits;          // [vocab_size], raw
  const SamplingSpec* spec = nullptr;     // not null
  const TokenCounts* counts = nullptr;    // not null where the spec has penalties
  const TokenHistory* history = nullptr;  // not null where the spec reads_order()
  std::span<const uint32_t> mask;  // token t is allowed by bit t % 32 of word t / 32; empty: all
  int32_t output_index = 0;        // the draw's counter: hash_uniform(seed, output_index)
};

// Holds the scratch memory of one row, so each thread has its own sampler. Not thread-safe. A
// result depends on the arguments alone.
class Sampler {
 public:
  explicit Sampler(int32_t vocab_size);

  // The token; kInternal when a logit is not finite or an operator's processor fails,
  // kInvalidArgument when mask, bans and processors leave none.
  Result<TokenId> sample(const SampleInput& input);

  // Log-probabilities of `token` and of the ids that `spec` requests, from raw logits [vocab_size].
  // kInternal when a logit is not finite.
  Result<TokenLogprobs> logprobs(std::span<const float> logits, TokenId token,
                                 const SamplingSpec& spec);
  // Those of a token that sample() drew from this input, by the spec's logprobs_mode.
  Result<TokenLogprobs> sampled_logprobs(const SampleInput& input, TokenId token);

 private:
  struct Candidate {
    float value = 0;
    int32_t id = 0;
  };
  // The order of the filters: a total one.
  static bool before(const Candidate& a, const Candidate& b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
  }

  Status adjust(const SampleInput& input);
  TokenLogprobs logprobs_of(std::span<const float> row, float max, float temperature, TokenId token,
                            const SamplingSpec& spec);
  void gather_best(std::span<const float> row, size_t count);
  void sort_by_digits();
  void apply_mask(std::span<const uint32_t> mask);
  TokenId draw(const RowMax& best, std::span<const float> row, const SampleInput& input);
  Candidate filter(const SamplingSpec& spec, double total, float least);
  size_t keep_first(size_t limit, double sum_limit, float min_value);
  TokenId draw_all(double u, double total) const;
  TokenId draw_kept(double u, const Candidate& first, const Candidate& last) const;
  Candidate first_behind_xtc(double least, const Candidate& last) const;
  void gather_at_least(std::span<const float> row, float threshold);
  void gather_top(std::span<const float> row, size_t count);

  std::vector<float> row_;                                    // adjusted logits
  std::vector<float> weights_;                                // exp((row - max) / temperature)
  std::vector<float> block_max_, block_sum_, order_scratch_;  // [row_blocks(vocab_size)]
  std::vector<Candidate> candidates_, sorted_;
};

}  // namespace espalier
