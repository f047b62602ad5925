#include "engine/sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// The definition, in doubles, slowly. probabilities: of each id, 0 where the filters drop it.
struct Reference {
  std::vector<double> adjusted, probabilities;
  double margin = 1;  // how far the nearest decision of a filter was from going the other way
};

double reference_adjusted(double x, TokenId id, const SampleInput& in) {
  const SamplingSpec& s = *in.spec;
  if (s.has_penalties())
    for (const TokenCounts::Entry& e : in.counts->entries())
      if (e.id == id) {
        if (e.output_count > 0)
          x -= s.presence_penalty + double{s.frequency_penalty} * e.output_count;
        x = x > 0 ? x / s.repetition_penalty : x * s.repetition_penalty;
      }
  for (const auto& [token, bias] : s.logit_bias)
    if (token == id) x += bias;
  const double banned = -std::numeric_limits<double>::infinity();
  const auto word = static_cast<size_t>(id / 32);
  if (!in.mask.empty() && (word >= in.mask.size() || !(in.mask[word] >> (id % 32) & 1)))
    return banned;
  if (in.output_index < s.min_new_tokens &&
      std::find(s.banned_before_min.begin(), s.banned_before_min.end(), id) !=
          s.banned_before_min.end())
    return banned;
  return x;
}

// The least logit that top_n_sigma keeps.
double reference_least(const std::vector<double>& adjusted, double max, double top_n_sigma) {
  const double banned = -std::numeric_limits<double>::infinity();
  if (top_n_sigma <= 0) return banned;
  std::vector<double> distances;
  for (const double x : adjusted)
    if (x != banned) distances.push_back(std::min(max - x, double{kSigmaDistanceMax}));
  const auto count = static_cast<double>(distances.size());
  const double mean = std::accumulate(distances.begin(), distances.end(), 0.0) / count;
  double variance = 0;
  for (const double d : distances) variance += (d - mean) * (d - mean) / count;
  return max - top_n_sigma * std::sqrt(variance);
}

Reference reference(const SampleInput& in) {
  const SamplingSpec& s = *in.spec;
  const size_t n = in.logits.size();
  Reference r{.adjusted = std::vector<double>(n), .probabilities = std::vector<double>(n)};
  for (size_t i = 0; i < n; ++i)
    r.adjusted[i] = reference_adjusted(in.logits[i], static_cast<TokenId>(i), in);
  const double max = *std::max_element(r.adjusted.begin(), r.adjusted.end());
  std::vector<double> p(n);
  double total = 0;
  for (size_t i = 0; i < n; ++i) total += p[i] = std::exp((r.adjusted[i] - max) / s.temperature);
  for (double& x : p) x /= total;
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] > p[b]; });
  const double least = reference_least(r.adjusted, max, s.top_n_sigma);
  double before = 0, kept = 0;
  for (size_t rank = 0; rank < n; ++rank) {
    const double probability = p[order[rank]];
    const double above = r.adjusted[order[rank]] - least;
    if (s.top_k > 0 && rank >= static_cast<size_t>(s.top_k)) {
      r.margin = std::min(r.margin, p[order[rank - 1]] / probability - 1);
      break;
    }
    if (s.top_p < 1) r.margin = std::min(r.margin, std::abs(before / s.top_p - 1));
    if (s.top_p < 1 && before > s.top_p) break;
    if (s.min_p > 0)
      r.margin = std::min(r.margin, std::abs(probability / (s.min_p * p[order[0]]) - 1));
    if (s.top_n_sigma > 0) r.margin = std::min(r.margin, std::abs(above) / s.temperature);
    if (probability < s.min_p * p[order[0]] || above < 0) break;
    before += probability;
    kept += r.probabilities[order[rank]] = probability;
  }
  for (double& x : r.probabilities) x /= kept;
  return r;
}

// The token at `u` of the cumulative probability in order of ids; nothing where u is too near an
// edge.
std::optional<TokenId> reference_draw(const Reference& r, double u) {
  double sum = 0;
  for (size_t i = 0; i < r.probabilities.size(); ++i) {
    sum += r.probabilities[i];
    if (std::abs(sum - u) < 1e-5 && r.probabilities[i] > 0) return std::nullopt;
    if (sum >= u) return static_cast<TokenId>(i);
  }
  return std::nullopt;
}

struct RandomCase {
  std::vector<float> logits;
  SamplingSpec spec;
  TokenCounts counts;
  std::vector<uint32_t> mask;
  SampleInput input() const {
    return {.logits = logits, .spec = &spec, .counts = &counts, .mask = mask, .output_index = 0};
  }
};

// Parameter number `which` alone; all together at random for -1.
RandomCase random_case(Rng& rng, size_t n, int which) {
  RandomCase c;
  c.logits.resize(n);
  const double scale = 0.5 + 4 * rng.uniform();
  for (float& x : c.logits) x = static_cast<float>(scale * rng.normal());
  const auto use = [&](int parameter) {
    return which == parameter || (which < 0 && rng.below(3) == 0);
  };
  const auto id = [&] { return static_cast<TokenId>(rng.below(n)); };
  c.spec.seed = rng();
  c.spec.temperature = use(0) ? static_cast<float>(0.05 + 2 * rng.uniform()) : 1.0f;
  if (use(1)) c.spec.top_k = static_cast<int32_t>(1 + rng.below(n));
  if (use(2)) c.spec.top_p = static_cast<float>(0.02 + 0.97 * rng.uniform());
  if (use(3)) c.spec.min_p = static_cast<float>(rng.uniform());
  if (use(10)) c.spec.top_n_sigma = static_cast<float>(0.1 + 3 * rng.uniform());
  if (use(4)) c.spec.frequency_penalty = static_cast<float>(4 * rng.uniform() - 2);
  if (use(5)) c.spec.presence_penalty = static_cast<float>(4 * rng.uniform() - 2);
  if (use(6)) c.spec.repetition_penalty = static_cast<float>(0.1 + 1.9 * rng.uniform());
  if (use(7))
    for (int i = 0; i < 5; ++i)
      c.spec.logit_bias.emplace_back(id(), static_cast<float>(10 * rng.normal()));
  if (use(8)) {
    c.mask.resize((n + 31) / 32);
    for (uint32_t& word : c.mask) word = static_cast<uint32_t>(rng() | rng());
  }
  if (use(9)) {
    c.spec.min_new_tokens = 3;
    for (int i = 0; i < 3; ++i) c.spec.banned_before_min.push_back(id());
  }
  std::vector<TokenId> prompt, output;
  for (int i = 0; i < 20; ++i) prompt.push_back(id()), output.push_back(id());
  output.push_back(output[0]);
  c.counts.reset(prompt, output);
  return c;
}

TEST(Sampler, AgreesWithTheDefinition) {
  const uint64_t seed = 21;
  Rng rng(seed);
  int compared = 0, total = 0;
  for (int which = -1; which < 11; ++which)
    for (int round = 0; round < (which < 0 ? 1500 : 200); ++round, ++total) {
      const auto n = static_cast<size_t>(rng.between(2, round % 10 == 0 ? 5000 : 400));
      const RandomCase c = random_case(rng, n, which);
      const SampleInput in = c.input();
      const Reference want = reference(in);
      if (want.margin < 1e-5) continue;
      Sampler sampler(static_cast<int32_t>(n));
      const auto got = sampler.sample(in);
      if (*std::max_element(want.adjusted.begin(), want.adjusted.end()) ==
          -std::numeric_limits<double>::infinity()) {
        ASSERT_FALSE(got.has_value());
        continue;
      }
      ASSERT_TRUE(got) << got.error().to_string();
      const auto token = reference_draw(want, hash_uniform(c.spec.seed, 0));
      if (!token) continue;
      ASSERT_EQ(*got, *token) << "seed " << seed << " parameter " << which << " round " << round;
      ++compared;
    }
  EXPECT_GT(compared, total * 9 / 10);
}

TEST(Sampler, GreedyTakesTheLargestAdjustedLogit) {
  const uint64_t seed = 22;
  Rng rng(seed);
  for (int round = 0; round < 500; ++round) {
    const auto n = static_cast<size_t>(rng.between(2, 600));
    RandomCase c = random_case(rng, n, round % 2 ? -1 : 0);
    c.spec.temperature = 0;
    const Reference want = [&] {
      SamplingSpec spec = c.spec;
      spec.temperature = 1;
      SampleInput in = c.input();
      in.spec = &spec;
      return reference(in);
    }();
    Sampler sampler(static_cast<int32_t>(n));
    const auto got = sampler.sample(c.input());
    if (!got) continue;
    const double best = *std::max_element(want.adjusted.begin(), want.adjusted.end());
    ASSERT_NEAR(want.adjusted[static_cast<size_t>(*got)], best, 1e-5 * (1 + std::abs(best)))
        << "seed " << seed;
  }
}

// Draws `count` tokens and returns chi-square against the definition's probabilities.
double chi_square(const RandomCase& c, int count, int& cells) {
  const Reference want = reference(c.input());
  Sampler sampler(static_cast<int32_t>(c.logits.size()));
  std::map<TokenId, int> seen;
  for (int i = 0; i < count; ++i) {
    SampleInput in = c.input();
    in.output_index = i + c.spec.min_new_tokens;
    ++seen[*sampler.sample(in)];
  }
  double sum = 0, rest_want = 0;
  int rest_seen = 0;
  cells = 0;
  for (size_t i = 0; i < want.probabilities.size(); ++i) {
    const double expected = want.probabilities[i] * count;
    const int got = seen[static_cast<TokenId>(i)];
    EXPECT_TRUE(expected > 0 || got == 0) << "token " << i << " was filtered";
    if (expected < 10) {
      rest_want += expected;
      rest_seen += got;
      continue;
    }
    ++cells;
    sum += (got - expected) * (got - expected) / expected;
  }
  if (rest_want >= 10) {
    ++cells;
    sum += (rest_seen - rest_want) * (rest_seen - rest_want) / rest_want;
  }
  return sum;
}

TEST(Sampler, FrequenciesFollowTheProbabilities) {
  Rng rng(23);
  for (int which : {0, 1, 2, 3, 7, 8, 10}) {
    RandomCase c = random_case(rng, 50, which);
    int cells = 0;
    const double chi = chi_square(c, 20000, cells);
    // Mean cells - 1, variance 2 (cells - 1): five deviations; the seed is fixed.
    const double freedom = std::max(1, cells - 1);
    EXPECT_LT(chi, freedom + 5 * std::sqrt(2 * freedom)) << "parameter " << which;
  }
}

TEST(Sampler, DrawDependsOnSeedAndIndexAlone) {
  Rng rng(24);
  const RandomCase a = random_case(rng, 3000, -1), b = random_case(rng, 3000, -1);
  Sampler used(3000), fresh(3000);
  const TokenId first = *used.sample(a.input());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(used.sample(b.input()));
    EXPECT_EQ(*used.sample(a.input()), first);
  }
  EXPECT_EQ(*fresh.sample(a.input()), first);
  SampleInput later = a.input();
  std::map<TokenId, int> tokens;
  for (later.output_index = 10; later.output_index < 60; ++later.output_index)
    ++tokens[*fresh.sample(later)];
  EXPECT_GT(tokens.size(), 1u);
}

TEST(Sampler, TiesGoToTheSmallerId) {
  std::vector<float> logits(300, 1.0f);
  Sampler sampler(300);
  SamplingSpec greedy{{.temperature = 0}};
  EXPECT_EQ(*sampler.sample({.logits = logits, .spec = &greedy}), 0);
  SamplingSpec top{{.top_k = 5}};
  for (int i = 0; i < 200; ++i) {
    top.seed = static_cast<uint64_t>(i);
    EXPECT_LT(*sampler.sample({.logits = logits, .spec = &top}), 5);
  }
  SamplingSpec nucleus{{.top_p = 0.01f}};  // sum before the fourth: 3/300 = 0.01, up to rounding
  for (int i = 0; i < 200; ++i) {
    nucleus.seed = static_cast<uint64_t>(i);
    EXPECT_LE(*sampler.sample({.logits = logits, .spec = &nucleus}), 3);
  }
}

TEST(Sampler, OneFilterDoesNotRescaleForTheNext) {
  // p = 0.4 0.3 0.2 0.1. top_k 2 leaves 0.7; top_p 0.65 must still keep the second, whose sum
  // before is 0.4 (renormalised it would be 0.57: kept too), and top_p 0.5 as well (0.57: dropped).
  const std::vector<float> logits = {std::log(0.4f), std::log(0.3f), std::log(0.2f),
                                     std::log(0.1f)};
  Sampler sampler(4);
  std::map<TokenId, int> seen;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SamplingSpec spec{{.top_p = 0.5f, .top_k = 2, .seed = seed}};
    ++seen[*sampler.sample({.logits = logits, .spec = &spec})];
  }
  EXPECT_GT(seen[1], 80);
  EXPECT_EQ(seen[0] + seen[1], 300);
}

TEST(Sampler, ExtremesGiveTokensAndNeverNan) {
  const float values[] = {0, 1e-38f, -1e-38f, 1, -1, 88, -88, 1e30f, -1e30f, FLT_MAX, -FLT_MAX};
  Rng rng(25);
  for (int round = 0; round < 3000; ++round) {
    const auto pick = [&](auto... options) {
      const float all[] = {static_cast<float>(options)...};
      return all[rng.below(sizeof...(options))];
    };
    std::vector<float> logits(static_cast<size_t>(rng.between(1, 300)));
    for (float& x : logits) x = values[rng.below(std::size(values))];
    const auto n = static_cast<int32_t>(logits.size());
    SamplingSpec spec{{.temperature = pick(0, 1e-45f, 1e-38f, 1e-6f, 1, 1e20f, 1e38f, FLT_MAX),
                       .top_p = pick(1e-45f, 1e-6f, 0.5f, 1),
                       .min_p = pick(0, 1e-45f, 0.5f, 1),
                       .top_k = static_cast<int32_t>(pick(-1, 1, 2, 100, 1e9f)),
                       .frequency_penalty = pick(-2, 0, 2),
                       .presence_penalty = pick(-2, 0, 2),
                       .repetition_penalty = pick(1e-45f, 1e-38f, 1, 2),
                       .seed = rng()}};
    for (int i = 0; i < 3; ++i)
      spec.logit_bias.emplace_back(rng.below(logits.size()), pick(-FLT_MAX, -100, 100, FLT_MAX));
    spec.return_logprob = true;
    spec.top_logprobs_num = std::min(n, 4);
    TokenCounts counts;
    const TokenId ids[] = {0, n / 2, n - 1, 0};
    counts.reset(ids, ids);
    Sampler sampler(n);
    const auto token = sampler.sample({.logits = logits, .spec = &spec, .counts = &counts});
    ASSERT_TRUE(token) << token.error().to_string();
    ASSERT_GE(*token, 0);
    ASSERT_LT(*token, n);
    const auto logprobs = sampler.logprobs(logits, *token, spec);
    ASSERT_TRUE(logprobs);
    ASSERT_TRUE(std::isfinite(logprobs->logprob));
    ASSERT_LE(logprobs->logprob, 0);
    for (const auto& [id, lp] : logprobs->top) ASSERT_TRUE(std::isfinite(lp)) << id;
  }
}

TEST(Sampler, NotFiniteLogitsAreAnError) {
  std::vector<float> logits(200, 0.0f);
  Sampler sampler(200);
  SamplingSpec spec;
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    logits[150] = bad;
    const auto token = sampler.sample({.logits = logits, .spec = &spec});
    ASSERT_FALSE(token);
    EXPECT_EQ(token.error().code(), StatusCode::kInternal);
    EXPECT_FALSE(sampler.logprobs(logits, 0, spec));
  }
}

TEST(Sampler, NoTokenAllowedIsAnError) {
  const std::vector<float> logits(70, 0.0f);
  Sampler sampler(70);
  for (float temperature : {0.0f, 1.0f}) {
    SamplingSpec spec{{.temperature = temperature}};
    std::vector<uint32_t> mask(3, 0);
    auto token = sampler.sample({.logits = logits, .spec = &spec, .mask = mask});
    ASSERT_FALSE(token);
    EXPECT_EQ(token.error().code(), StatusCode::kInvalidArgument);
    mask[2] = 1u << 5;  // token 69 alone
    token = sampler.sample({.logits = logits, .spec = &spec, .mask = mask});
    ASSERT_TRUE(token);
    EXPECT_EQ(*token, 69);
    spec.min_new_tokens = 1;
    spec.banned_before_min = {69};
    EXPECT_FALSE(sampler.sample({.logits = logits, .spec = &spec, .mask = mask}));
    EXPECT_EQ(*sampler.sample({.logits = logits, .spec = &spec, .mask = mask, .output_index = 1}),
              69);
  }
}

TEST(Sampler, LogprobsAreOfTheRawLogits) {
  Rng rng(26);
  for (int round = 0; round < 100; ++round) {
    RandomCase c = random_case(rng, static_cast<size_t>(rng.between(3, 3000)), -1);
    const auto n = c.logits.size();
    c.spec.top_logprobs_num = static_cast<int32_t>(rng.below(std::min<size_t>(n, 40) + 1));
    c.spec.token_ids_logprob = {0, static_cast<TokenId>(n - 1), 1};
    Sampler sampler(static_cast<int32_t>(n));
    const auto got = sampler.logprobs(c.logits, 2, c.spec);
    ASSERT_TRUE(got);
    double sum = 0;
    for (float x : c.logits) sum += std::exp(double{x});
    const auto want = [&](TokenId id) { return c.logits[static_cast<size_t>(id)] - std::log(sum); };
    EXPECT_NEAR(got->logprob, want(2), 1e-4);
    ASSERT_EQ(got->wanted.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(got->wanted[i].first, c.spec.token_ids_logprob[i]);
      EXPECT_NEAR(got->wanted[i].second, want(got->wanted[i].first), 1e-4);
    }
    std::vector<TokenId> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
      return c.logits[static_cast<size_t>(a)] > c.logits[static_cast<size_t>(b)];
    });
    ASSERT_EQ(got->top.size(), static_cast<size_t>(c.spec.top_logprobs_num));
    for (size_t i = 0; i < got->top.size(); ++i) {
      EXPECT_EQ(got->top[i].first, order[i]);
      EXPECT_NEAR(got->top[i].second, want(order[i]), 1e-4);
    }
  }
}

// Of a whole vocabulary, too: equal values in the order of their ids, 0 beside -0, banned ones
// last.
TEST(Sampler, TopLogprobsAreInOrder) {
  const uint64_t seed = 31;
  Rng rng(seed);
  for (const size_t n : {size_t{100}, size_t{129}, size_t{4096}}) {
    constexpr float kValues[] = {3.5f, 0.0f, -0.0f, -1e-3f, -7.0f, 1e-30f, 400.0f, -400.0f};
    std::vector<float> logits(n);
    for (float& x : logits)
      x = rng.below(3) == 0 ? static_cast<float>(rng.uniform()) * 20 - 10 : kValues[rng.below(8)];
    std::vector<uint32_t> mask((n + 31) / 32, 0x7fff5ff7);
    SamplingSpec spec;
    spec.return_logprob = true;
    spec.top_logprobs_num = static_cast<int32_t>(n);
    const SampleInput in{.logits = logits, .spec = &spec, .mask = mask};
    Sampler sampler(static_cast<int32_t>(n));
    const auto got = sampler.sampled_logprobs(in, *sampler.sample(in));
    ASSERT_TRUE(got) << got.error().to_string();
    std::vector<TokenId> expected(n), ids;
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(), [&](TokenId a, TokenId b) {
      const auto value = [&](TokenId id) {
        const auto i = static_cast<size_t>(id);
        return (mask[i / 32] >> (i % 32) & 1) != 0 ? logits[i]
                                                   : -std::numeric_limits<float>::infinity();
      };
      return value(a) > value(b);
    });
    for (const auto& [id, logprob] : got->top) ids.push_back(id);
    EXPECT_EQ(ids, expected) << n;
  }
}

// In each mode: of the logits that the draw sees, without its temperature, of the raw ones.
TEST(Sampler, SampledLogprobsFollowTheMode) {
  const uint64_t seed = 28;
  Rng rng(seed);
  int compared = 0;
  for (int round = 0; round < 600; ++round) {
    const auto n = static_cast<size_t>(rng.between(5, 600));
    RandomCase c = random_case(rng, n, -1);
    SamplingSpec& spec = c.spec;
    spec.logprobs_mode = static_cast<LogprobsMode>(round % 3);
    if (round % 5 == 0) spec.temperature = 0;
    if (round % 7 == 0) c.mask.assign((n + 31) / 32, 0), c.mask[0] = 0b10101;
    spec.return_logprob = true;
    spec.top_logprobs_num = static_cast<int32_t>(rng.below(n + 1));
    spec.token_ids_logprob = {static_cast<TokenId>(n - 1), 0};
    const SampleInput in = c.input();
    Sampler sampler(static_cast<int32_t>(n));
    const auto token = sampler.sample(in);
    if (!token) continue;  // mask and bans leave none
    const auto got = sampler.sampled_logprobs(in, *token);
    ASSERT_TRUE(got) << got.error().to_string();
    const bool tempered = spec.logprobs_mode == LogprobsMode::kProcessed && !spec.greedy();
    const double temperature = tempered ? spec.temperature : 1;
    std::vector<double> x(n);
    for (size_t i = 0; i < n; ++i)
      x[i] = spec.logprobs_mode == LogprobsMode::kRaw
                 ? c.logits[i]
                 : reference_adjusted(c.logits[i], static_cast<TokenId>(i), in);
    const double best = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const double value : x) sum += std::exp((value - best) / temperature);
    const auto want = [&](TokenId id) {
      const double logprob = (x[static_cast<size_t>(id)] - best) / temperature - std::log(sum);
      return std::max(logprob, -double{FLT_MAX});
    };
    const double tolerance = 1e-4 / std::min(1.0, temperature);
    ASSERT_NEAR(got->logprob, want(*token), tolerance) << "seed " << seed << " round " << round;
    ASSERT_EQ(got->top.size(), static_cast<size_t>(spec.top_logprobs_num));
    std::vector<double> sorted;
    for (size_t i = 0; i < n; ++i) sorted.push_back(want(static_cast<TokenId>(i)));
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (size_t i = 0; i < got->top.size(); ++i) {
      ASSERT_NEAR(got->top[i].second, sorted[i], tolerance) << "round " << round;
      ASSERT_NEAR(got->top[i].second, want(got->top[i].first), tolerance);
    }
    ASSERT_EQ(got->wanted.size(), 2u);
    for (const auto& [id, logprob] : got->wanted) ASSERT_NEAR(logprob, want(id), tolerance);
    ++compared;
  }
  EXPECT_GT(compared, 500);
}

TEST(Sampler, ACertainTokenHasAllTheProbability) {
  SamplingSpec spec;
  spec.return_logprob = true;
  spec.top_logprobs_num = 3;
  spec.token_ids_logprob = {1, 5};
  const TokenLogprobs got = certain_logprobs(1, spec);
  EXPECT_EQ(got.logprob, 0);
  using Pairs = std::vector<std::pair<TokenId, float>>;
  EXPECT_EQ(got.top, (Pairs{{1, 0.0f}, {0, -FLT_MAX}, {2, -FLT_MAX}}));
  EXPECT_EQ(got.wanted, (Pairs{{1, 0.0f}, {5, -FLT_MAX}}));
}

TEST(TokenCounts, AgreesWithAMap) {
  Rng rng(27);
  TokenCounts counts;
  for (int round = 0; round < 3; ++round) {
    std::vector<TokenId> prompt, output;
    std::map<TokenId, int> want;
    for (int i = 0; i < 500; ++i) {
      prompt.push_back(static_cast<TokenId>(rng.below(300)));
      output.push_back(static_cast<TokenId>(rng.below(300)));
    }
    counts.reset(prompt, output);
    for (int i = 0; i < 500; ++i) {
      output.push_back(static_cast<TokenId>(rng.below(1000)));
      counts.add_output(output.back());
    }
    for (TokenId id : prompt) want[id];
    for (TokenId id : output) ++want[id];
    ASSERT_EQ(counts.entries().size(), want.size());
    for (const TokenCounts::Entry& e : counts.entries()) ASSERT_EQ(e.output_count, want.at(e.id));
  }
}

TEST(Sampler, TopNSigmaKeepsTokensNearTheLargestLogitWhateverTheTemperature) {
  const std::vector<float> base = {5, 3.1f, 2.9f, -1, -1, -1, -1, 1};
  double mean = 0, variance = 0;
  for (const float x : base) mean += x / 8;
  for (const float x : base) variance += (x - mean) * (x - mean) / 8;
  const double sigma = std::sqrt(variance);
  Sampler sampler(8);
  for (const float temperature : {0.5f, 1.0f, 20.0f})
    for (const double width : {1.5, 2.0, 3.9, 5.9}) {
      SamplingSpec spec{
          {.temperature = temperature, .top_n_sigma = static_cast<float>(width / sigma)}};
      std::vector<int> drawn(8);
      for (uint64_t seed = 0; seed < 3000; ++seed) {
        spec.seed = seed;
        ++drawn[static_cast<size_t>(*sampler.sample({.logits = base, .spec = &spec}))];
      }
      for (size_t i = 0; i < 8; ++i) {
        if (base[i] < 5 - width) {
          EXPECT_EQ(drawn[i], 0) << width << " token " << i;
        } else if (temperature > 1) {
          EXPECT_GT(drawn[i], 0) << width << " token " << i;
        }
      }
    }
}

// Prints what a draw costs over a large vocabulary; no bound, since other work shares the
// processors.
TEST(Sampler, PrintsItsCost) {
  constexpr int32_t kVocab = 128256;
  Rng rng(28);
  std::vector<float> logits(kVocab);
  for (float& x : logits) x = static_cast<float>(2.5 * rng.normal());
  Sampler sampler(kVocab);
  const std::pair<const char*, SamplingSpec> cases[] = {
      {"greedy", {{.temperature = 0}}},
      {"temperature", {{.temperature = 0.8f}}},
      {"top_k 50", {{.temperature = 0.8f, .top_k = 50}}},
      {"top_p 0.95", {{.temperature = 0.8f, .top_p = 0.95f}}},
      {"top_k 50, top_p 0.9", {{.temperature = 0.8f, .top_p = 0.9f, .top_k = 50}}},
      {"min_p 0.05", {{.temperature = 0.8f, .min_p = 0.05f}}},
      {"top_n_sigma 1", {{.temperature = 0.8f, .top_n_sigma = 1.0f}}}};
  const SteadyClock clock;
  for (const auto& [name, spec] : cases) {
    Duration best = Duration::max();
    for (int i = 0; i < 7; ++i) {
      const TimePoint start = clock.now();
      ASSERT_TRUE(sampler.sample({.logits = logits, .spec = &spec, .output_index = i}));
      best = std::min(best, clock.now() - start);
    }
    std::printf("sample of %d, %s: %.1f us\n", kVocab, name, to_seconds(best) * 1e6);
  }
}

}  // namespace
}  // namespace espalier
