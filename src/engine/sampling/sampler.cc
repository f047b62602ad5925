#include "engine/sampling/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/rng.h"

namespace espalier {
namespace {

constexpr float kBanned = -std::numeric_limits<float>::infinity();
constexpr double kNoLimit = std::numeric_limits<double>::infinity();
// What XTC draws with, unrelated to what the token is drawn with.
constexpr uint64_t kXtcStream = 0x7874635f64726177;
// Candidates that are looked at first when only top_p bounds them: usually more than it keeps.
constexpr size_t kFirstCandidates = 256;

// Of more candidates than this the order is found without comparisons.
constexpr size_t kComparedMax = 128;

// A number that is the smaller the larger the value is; equal for equal values, 0 and -0 among
// them.
uint32_t descending_key(float value) {
  const auto bits = std::bit_cast<uint32_t>(value + 0.0f);
  return (bits >> 31) != 0 ? bits : ~(bits | 0x80000000u);
}

float clamp_finite(float x) { return std::clamp(x, -FLT_MAX, FLT_MAX); }

bool bans_apply(const SampleInput& in) {
  return in.output_index < in.spec->min_new_tokens && !in.spec->banned_before_min.empty();
}

bool needs_adjusting(const SampleInput& in) {
  return in.spec->reads_history() || !in.spec->logit_bias.empty() || !in.mask.empty() ||
         bans_apply(in);
}

float penalised(float x, const TokenCounts::Entry& seen, const SamplingSpec& spec) {
  if (seen.output_count > 0) {
    x -= spec.frequency_penalty * static_cast<float>(seen.output_count);
    x -= spec.presence_penalty;
  }
  x = x > 0 ? x / spec.repetition_penalty : x * spec.repetition_penalty;
  return clamp_finite(x);
}

bool xtc_applies(const SampleInput& in) {
  const SamplingSpec& spec = *in.spec;
  if (spec.xtc_probability <= 0) return false;
  return hash_uniform(mix64(spec.seed) ^ kXtcStream, static_cast<uint64_t>(in.output_index)) <
         spec.xtc_probability;
}

// The standard deviation of the logits that are not banned, from their distances to the largest.
double standard_deviation(std::span<const float> row, float max) {
  double count = 0, sum = 0, squares = 0;
  for (const float x : row) {
    if (x == kBanned) continue;
    const double distance = std::min(max - x, kSigmaDistanceMax);
    ++count;
    sum += distance;
    squares += distance * distance;
  }
  const double mean = sum / count;
  return std::sqrt(std::max(squares / count - mean * mean, 0.0));
}

// The least weight that min_p and top_n_sigma keep: both are bounds relative to the largest logit,
// whose weight is 1.
float least_weight(const SamplingSpec& spec, std::span<const float> row, float max) {
  if (spec.top_n_sigma <= 0) return spec.min_p;
  const double width = spec.top_n_sigma * standard_deviation(row, max);
  return std::max(spec.min_p, static_cast<float>(std::exp(-width / spec.temperature)));
}

}  // namespace

Status not_finite_logits() {
  return error(StatusCode::kInternal,
               "the model gave logits that are not finite; its weights may be damaged or overflow "
               "in this dtype (try float32)");
}

Status not_finite_vector() {
  return error(StatusCode::kInternal,
               "the model gave a vector that is not finite; its weights may be damaged or overflow "
               "in this dtype (try float32)");
}

bool is_not_finite(const Status& status) {
  return status == not_finite_logits() || status == not_finite_vector();
}

Status no_token_left(const SamplingSpec& spec) {
  if (spec.reads_order())
    return invalid_argument(
        "no token may come: the grammar, min_new_tokens ({}), no_repeat_ngram_size ({}), "
        "thinking_budget ({}) and logit_processor together exclude every one",
        spec.min_new_tokens, spec.no_repeat_ngram_size, spec.thinking_budget);
  return invalid_argument(
      "no token may come: the grammar and min_new_tokens ({}) together exclude every one",
      spec.min_new_tokens);
}

TokenLogprobs certain_logprobs(TokenId token, const SamplingSpec& spec) {
  const auto logprob = [&](TokenId id) { return id == token ? 0.0f : -FLT_MAX; };
  TokenLogprobs out{.logprob = 0.0f};
  const auto count = static_cast<size_t>(spec.top_logprobs_num);
  if (count > 0) out.top.emplace_back(token, 0.0f);
  for (TokenId id = 0; out.top.size() < count; ++id)
    if (id != token) out.top.emplace_back(id, -FLT_MAX);
  for (const TokenId id : spec.token_ids_logprob) out.wanted.emplace_back(id, logprob(id));
  return out;
}

Sampler::Sampler(int32_t vocab_size) {
  const auto n = static_cast<size_t>(vocab_size);
  const auto blocks = static_cast<size_t>(row_blocks(vocab_size));
  row_.resize(n);
  weights_.resize(n);
  candidates_.reserve(n);
  sorted_.reserve(n);
  block_max_.resize(blocks);
  block_sum_.resize(blocks);
  order_scratch_.resize(blocks);
}

Result<TokenId> Sampler::sample(const SampleInput& in) {
  ESP_DCHECK(in.logits.size() == row_.size());
  RowMax best = row_max(in.logits, block_max_);
  if (!best.finite) return fail(not_finite_logits());
  std::span<const float> row = in.logits;
  if (needs_adjusting(in)) {
    ESP_RETURN_IF_ERROR(adjust(in));
    row = row_;
    best = row_max(row, block_max_);
    if (best.max == kBanned) return fail(no_token_left(*in.spec));
  }
  if (in.spec->greedy() || in.spec->top_k == 1) return best.index;
  return draw(best, row, in);
}

Status Sampler::adjust(const SampleInput& in) {
  const SamplingSpec& spec = *in.spec;
  std::copy(in.logits.begin(), in.logits.end(), row_.begin());
  if (spec.has_penalties())
    for (const TokenCounts::Entry& seen : in.counts->entries()) {
      float& x = row_[static_cast<size_t>(seen.id)];
      x = penalised(x, seen, spec);
    }
  for (const auto& [id, bias] : spec.logit_bias) {
    float& x = row_[static_cast<size_t>(id)];
    x = clamp_finite(x + bias);
  }
  if (spec.reads_order()) ESP_RETURN_IF_ERROR(apply_history(spec, *in.history, row_));
  if (!in.mask.empty()) apply_mask(in.mask);
  if (bans_apply(in))
    for (TokenId id : spec.banned_before_min) row_[static_cast<size_t>(id)] = kBanned;
  return Status();
}

void Sampler::apply_mask(std::span<const uint32_t> mask) {
  for (size_t begin = 0, word = 0; begin < row_.size(); begin += 32, ++word) {
    const uint32_t bits = word < mask.size() ? mask[word] : 0;
    if (bits == ~0u) continue;
    const size_t count = std::min<size_t>(32, row_.size() - begin);
    for (size_t i = 0; i < count; ++i)
      if (!(bits >> i & 1)) row_[begin + i] = kBanned;
  }
}

TokenId Sampler::draw(const RowMax& best, std::span<const float> row, const SampleInput& in) {
  const SamplingSpec& spec = *in.spec;
  const double total =
      row_softmax_weights(row, best.max, spec.temperature, weights_, block_sum_, block_max_);
  const double u = hash_uniform(spec.seed, static_cast<uint64_t>(in.output_index));
  const float least = least_weight(spec, row, best.max);
  const bool filtered = spec.top_k > 0 || spec.top_p < 1 || least > 0, xtc = xtc_applies(in);
  if (!filtered && !xtc) return draw_all(u, total);
  const Candidate last =
      filtered ? filter(spec, total, least)
               : Candidate{.value = FLT_TRUE_MIN, .id = std::numeric_limits<int32_t>::max()};
  const Candidate all{.value = std::numeric_limits<float>::infinity()};
  return draw_kept(u, xtc ? first_behind_xtc(spec.xtc_threshold * total, last) : all, last);
}

// The least likely of the kept tokens that weigh at least `least`: where there are several, the
// first that XTC leaves.
Sampler::Candidate Sampler::first_behind_xtc(double least, const Candidate& last) const {
  Candidate first{.value = std::numeric_limits<float>::infinity()};
  for (size_t id = 0; id < weights_.size(); ++id) {
    const Candidate each{weights_[id], static_cast<int32_t>(id)};
    if (each.value >= least && !before(last, each) && before(first, each)) first = each;
  }
  return first;
}

// The last candidate, in before()'s order, that the filters keep; `least` bounds the weights.
Sampler::Candidate Sampler::filter(const SamplingSpec& spec, double total, float least) {
  const size_t n = weights_.size();
  const size_t limit = spec.top_k > 0 ? std::min(n, static_cast<size_t>(spec.top_k)) : n;
  const double sum_limit = spec.top_p < 1 ? spec.top_p * total : kNoLimit;
  const float min_weight = std::max(least, FLT_TRUE_MIN);  // 0 weighs nothing: never kept
  if (limit == n && sum_limit == kNoLimit)
    return {.value = min_weight, .id = std::numeric_limits<int32_t>::max()};
  gather_top(weights_, std::min(limit, kFirstCandidates));
  size_t kept = keep_first(limit, sum_limit, min_weight);
  if (kept == candidates_.size() && kept < limit) {  // more may pass: look at all
    // Entries below t weigh at most n * t together, so with n * t = (1 - top_p) * total the
    // probabilities of those above reaches top_p; half of that leaves room for rounding.
    const double t = limit < n ? 0 : 0.5 * (1 - spec.top_p) * total / static_cast<double>(n);
    gather_at_least(weights_, std::max(min_weight, static_cast<float>(t)));
    kept = keep_first(limit, sum_limit, min_weight);
  }
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(kept);
  return *std::max_element(candidates_.begin(), end, before);
}

// Reorders candidates_ so that those kept come first and returns how many: of rank below `limit`,
// with probabilities before them that sum to at most `sum_limit`, of at least `min_value`. A
// quickselect that carries the sum: each round decides one pivot, and so one side of it. Expected
// linear.
size_t Sampler::keep_first(size_t limit, double sum_limit, float min_value) {
  size_t low = 0, high = candidates_.size();
  double sum = 0;  // of [0, low), which is kept; [high, end) is not
  const auto at = [&](size_t i) { return candidates_.begin() + static_cast<std::ptrdiff_t>(i); };
  const auto kept = [&](size_t rank, double sum_before, const Candidate& c) {
    return rank < limit && sum_before <= sum_limit && c.value >= min_value;
  };
  while (high - low > 32) {
    const size_t middle = low + (high - low) / 2;
    Candidate a = candidates_[low], b = candidates_[middle], c = candidates_[high - 1];
    if (before(b, a)) std::swap(a, b);
    const Candidate pivot = before(c, b) ? (before(c, a) ? a : c) : b;
    double left_sum = 0;
    const auto split = std::partition(at(low), at(high), [&](const Candidate& x) {
      const bool left = before(x, pivot);
      if (left) left_sum += x.value;
      return left;
    });
    const auto rank = static_cast<size_t>(split - candidates_.begin());
    if (!kept(rank, sum + left_sum, pivot)) {
      high = rank;
      continue;
    }
    std::iter_swap(
        split, std::find_if(split, at(high), [&](const Candidate& x) { return x.id == pivot.id; }));
    low = rank + 1;
    sum += left_sum + pivot.value;
  }
  std::sort(at(low), at(high), before);
  while (low < high && kept(low, sum, candidates_[low])) sum += candidates_[low++].value;
  return low;
}

TokenId Sampler::draw_all(double u, double total) const {
  const double target = u * total;
  double sum = 0;
  size_t block = 0;
  while (block + 1 < block_sum_.size() && sum + block_sum_[block] < target)
    sum += block_sum_[block++];
  while (block_max_[block] == 0) --block;  // rounding left the target behind the last weight
  const size_t begin = block * kRowBlock, end = std::min(begin + kRowBlock, weights_.size());
  size_t last = begin;
  for (size_t i = begin; i < end; ++i) {
    if (weights_[i] == 0) continue;
    last = i;
    sum += weights_[i];
    if (sum >= target) break;
  }
  return static_cast<TokenId>(last);
}

TokenId Sampler::draw_kept(double u, const Candidate& first, const Candidate& last) const {
  // Calls visit(id, weight) for what is kept, in order of ids, until it returns true.
  const auto scan = [&](auto&& visit) {
    for (size_t block = 0; block < block_max_.size(); ++block) {
      if (block_max_[block] < last.value) continue;
      const size_t begin = block * kRowBlock, end = std::min(begin + kRowBlock, weights_.size());
      for (size_t i = begin; i < end; ++i) {
        const Candidate each{weights_[i], static_cast<int32_t>(i)};
        if (!before(last, each) && !before(each, first) && visit(i, each.value)) return;
      }
    }
  };
  double total = 0;
  size_t token = 0;
  scan([&](size_t id, float w) {
    total += w;
    token = id;  // the last one, should rounding leave the target behind it
    return false;
  });
  const double target = u * total;
  double sum = 0;
  scan([&](size_t id, float w) {
    sum += w;
    if (sum < target) return false;
    token = id;
    return true;
  });
  return static_cast<TokenId>(token);
}

// Uses block_max_, which must be the row's.
void Sampler::gather_at_least(std::span<const float> row, float threshold) {
  candidates_.clear();
  for (size_t block = 0; block < block_max_.size(); ++block) {
    if (block_max_[block] < threshold) continue;
    const size_t begin = block * kRowBlock, end = std::min(begin + kRowBlock, row.size());
    for (size_t i = begin; i < end; ++i)
      if (row[i] >= threshold) candidates_.push_back({row[i], static_cast<int32_t>(i)});
  }
}

// A superset of the `count` first: the count-th largest block maximum is a lower bound for the
// count-th largest entry, since that many blocks hold one at least as large.
void Sampler::gather_top(std::span<const float> row, size_t count) {
  float threshold = -FLT_MAX;
  if (count <= order_scratch_.size() && count > 0) {
    std::copy(block_max_.begin(), block_max_.end(), order_scratch_.begin());
    const auto nth = order_scratch_.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(order_scratch_.begin(), nth, order_scratch_.end(), std::greater<>());
    threshold = std::max(*nth, -FLT_MAX);
  }
  gather_at_least(row, threshold);
}

// The `count` first entries of the row, in order, to the front of candidates_. Banned entries are
// the last ones: the smaller ids first, as among all equals. Uses block_max_, the row's.
void Sampler::gather_best(std::span<const float> row, size_t count) {
  gather_top(row, count);
  for (size_t id = 0; candidates_.size() < count; ++id)
    if (row[id] == kBanned) candidates_.push_back({kBanned, static_cast<int32_t>(id)});
  if (count > kComparedMax) return sort_by_digits();
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(count),
                    candidates_.end(), before);
}

// Sorts candidates_ by before(), byte by byte of their values (an LSD radix sort): a client may ask
// for the whole vocabulary with each token.
// REQUIRES: equal values are in the order of their ids.
void Sampler::sort_by_digits() {
  std::array<std::array<uint32_t, 256>, 4> ends{};  // [byte of the key][digit] counts, then ends
  for (const Candidate& c : candidates_) {
    const uint32_t key = descending_key(c.value);
    for (size_t byte = 0; byte < ends.size(); ++byte) ++ends[byte][key >> (8 * byte) & 0xff];
  }
  sorted_.resize(candidates_.size());
  for (size_t byte = 0; byte < ends.size(); ++byte) {
    uint32_t begin = 0;
    for (uint32_t& count : ends[byte]) begin += std::exchange(count, begin);
    for (const Candidate& c : candidates_)
      sorted_[ends[byte][descending_key(c.value) >> (8 * byte) & 0xff]++] = c;
    candidates_.swap(sorted_);
  }
}

// REQUIRES: block_max_ is the row's.
TokenLogprobs Sampler::logprobs_of(std::span<const float> row, float max, float temperature,
                                   TokenId token, const SamplingSpec& spec) {
  const auto count = std::min(static_cast<size_t>(spec.top_logprobs_num), row.size());
  if (count > 0) gather_best(row, count);
  const double log_sum =
      std::log(temperature == 1.0f
                   ? row_sum_exp(row, max)
                   : row_softmax_weights(row, max, temperature, weights_, block_sum_, block_max_));
  const auto logprob = [&](TokenId id) {
    const double below = static_cast<double>(row[static_cast<size_t>(id)]) - max;
    return static_cast<float>(
        std::max(below / temperature - log_sum, -static_cast<double>(FLT_MAX)));
  };
  TokenLogprobs out{.logprob = logprob(token)};
  out.top.reserve(count);
  for (size_t i = 0; i < count; ++i)
    out.top.emplace_back(candidates_[i].id, logprob(candidates_[i].id));
  out.wanted.reserve(spec.token_ids_logprob.size());
  for (TokenId id : spec.token_ids_logprob) out.wanted.emplace_back(id, logprob(id));
  return out;
}

Result<TokenLogprobs> Sampler::logprobs(std::span<const float> logits, TokenId token,
                                        const SamplingSpec& spec) {
  const RowMax best = row_max(logits, block_max_);
  if (!best.finite) return fail(not_finite_logits());
  return logprobs_of(logits, best.max, 1.0f, token, spec);
}

Result<TokenLogprobs> Sampler::sampled_logprobs(const SampleInput& in, TokenId token) {
  const SamplingSpec& spec = *in.spec;
  const bool tempered = spec.logprobs_mode == LogprobsMode::kProcessed && !spec.greedy();
  const float temperature = tempered ? spec.temperature : 1.0f;
  const bool adjusted = spec.logprobs_mode != LogprobsMode::kRaw && needs_adjusting(in);
  if (!adjusted && temperature == 1.0f) return logprobs(in.logits, token, spec);
  if (adjusted) ESP_RETURN_IF_ERROR(adjust(in));
  const std::span<const float> row = adjusted ? std::span<const float>(row_) : in.logits;
  return logprobs_of(row, row_max(row, block_max_).max, temperature, token, spec);
}

}  // namespace espalier
