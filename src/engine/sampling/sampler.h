// Draws one request's next token from its logits.
//
// The order is SGLang's. On the logits: frequency and presence penalties, repetition penalty, bias,
// then the grammar's mask and the tokens banned before min_new_tokens (both make a logit
// -infinity). Then temperature and softmax. Then, on the probabilities in descending order (the
// smaller id first among equals) and all on the same ones: top_k keeps the first k, top_p those
// before which the mass is at most p, min_p those of at least min_p times the largest. What all
// three keep is drawn from by the inverse of the cumulative mass in order of ids.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/sampling/row_ops.h"
#include "engine/sampling/token_counts.h"
#include "seams/sampling.h"

namespace espalier {

// Why an entry has no token: a logit is NaN or infinite; mask and bans leave none.
Status not_finite_logits();
Status not_finite_vector();  // of an entry that ends a text that becomes a vector
// Whether an entry failed so; through all that passes an entry's status on.
bool is_not_finite(const Status& status);
Status no_token_left(const SamplingSpec& spec);

struct SampleInput {
  std::span<const float> logits;        // [vocab_size], raw
  const SamplingSpec* spec = nullptr;   // not null
  const TokenCounts* counts = nullptr;  // not null where the spec has penalties
  std::span<const uint32_t> mask;       // bit t % 32 of word t / 32: t may come; empty: all may
  int32_t output_index = 0;             // the draw's counter: hash_uniform(seed, output_index)
};

// Holds scratch for one row: one for each thread. Not thread-safe. What it returns depends on its
// arguments alone.
class Sampler {
 public:
  explicit Sampler(int32_t vocab_size);

  // The token; kInternal when a logit is not finite, kInvalidArgument when mask and bans leave
  // none.
  Result<TokenId> sample(const SampleInput& input);

  // Log-probabilities of `token` and what `spec` asks beside it, from the raw logits [vocab_size].
  // kInternal when a logit is not finite.
  Result<TokenLogprobs> logprobs(std::span<const float> logits, TokenId token,
                                 const SamplingSpec& spec);

 private:
  struct Candidate {
    float value = 0;
    int32_t id = 0;
  };
  // The order of the filters: a total one.
  static bool before(const Candidate& a, const Candidate& b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id);
  }

  void adjust(const SampleInput& input);
  void apply_mask(std::span<const uint32_t> mask);
  TokenId draw(const RowMax& best, std::span<const float> row, const SampleInput& input);
  Candidate filter(const SamplingSpec& spec, double total);
  size_t keep_first(size_t limit, double mass_limit, float min_value);
  TokenId draw_all(double u, double total) const;
  TokenId draw_kept(double u, const Candidate& last) const;
  void gather_at_least(std::span<const float> row, float threshold);
  void gather_top(std::span<const float> row, size_t count);

  std::vector<float> row_;                                    // adjusted logits
  std::vector<float> weights_;                                // exp((row - max) / temperature)
  std::vector<float> block_max_, block_sum_, order_scratch_;  // [row_blocks(vocab_size)]
  std::vector<Candidate> candidates_;
};

}  // namespace espalier
