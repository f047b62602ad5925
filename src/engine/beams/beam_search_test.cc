#include "engine/beams/beam_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <map>
#include <string>

#include "base/rng.h"

namespace espalier {
namespace {

// A language model whose next token depends on all tokens before it.
class RandomModel {
 public:
  RandomModel(uint64_t seed, int32_t vocab_size) : seed_(seed), vocab_size_(vocab_size) {}

  // Of all tokens, the likeliest first; some are banned.
  TokenLogprobs behind(const std::vector<TokenId>& tokens) const {
    Rng rng(mix64(seed_) + std::hash<std::string>()(std::string(tokens.begin(), tokens.end())));
    std::vector<double> weights;
    double sum = 0;
    for (int32_t i = 0; i < vocab_size_; ++i) {
      weights.push_back(i > 1 && rng.below(5) == 0 ? 0 : static_cast<double>(1 + rng.below(1000)));
      sum += weights.back();
    }
    TokenLogprobs out;
    for (int32_t i = 0; i < vocab_size_; ++i) {
      const double p = weights[static_cast<size_t>(i)] / sum;
      out.top.emplace_back(i, p > 0 ? static_cast<float>(std::log(p)) : -FLT_MAX);
    }
    std::ranges::stable_sort(out.top, std::ranges::greater(), &std::pair<TokenId, float>::second);
    return out;
  }

 private:
  const uint64_t seed_;
  const int32_t vocab_size_;
};

// The first tokens are stop tokens. The search gets no more of a distribution than it asks for.
int run(BeamSearch& search, const RandomModel& model, int32_t num_stops) {
  const auto end_at_stop =
      [&](const BeamSearch::Candidate& candidate) -> std::optional<FinishReason> {
    if (candidate.token >= num_stops) return std::nullopt;
    return FinishReason{.type = FinishReason::Type::kStop, .matched = candidate.token};
  };
  for (int steps = 1;; ++steps) {
    for (size_t i = 0; i < search.beams().size(); ++i) {
      TokenLogprobs distribution = model.behind(search.beams()[i].tokens);
      const auto most = static_cast<size_t>(search.options().candidates_per_beam);
      distribution.top.resize(std::min(distribution.top.size(), most));
      search.take(static_cast<int32_t>(i), std::move(distribution));
    }
    if (search.advance(end_at_stop).empty()) return steps;
  }
}

// All outputs with their scores.
void enumerate(const RandomModel& model, std::vector<TokenId>& tokens, double logprob,
               int32_t length_max, double penalty, std::map<std::vector<TokenId>, double>& scores) {
  for (const auto& [token, own] : model.behind(tokens).top) {
    if (own <= -FLT_MAX) continue;
    tokens.push_back(token);
    if (token == 0 || std::ssize(tokens) == length_max)
      scores[tokens] = (logprob + own) / std::pow(static_cast<double>(tokens.size()), penalty);
    else
      enumerate(model, tokens, logprob + own, length_max, penalty, scores);
    tokens.pop_back();
  }
}

// With more beams than there are outputs beam search is exhaustive.
TEST(BeamSearch, FindsTheBestWhereItsBeamsHoldAll) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const RandomModel model(seed, 4);
    const float penalty = std::vector{-1.0f, 0.0f, 1.0f, 2.0f}[seed % 4];
    std::map<std::vector<TokenId>, double> scores;
    std::vector<TokenId> tokens;
    enumerate(model, tokens, 0, 4, penalty, scores);
    BeamSearch search({.num_beams = 300,
                       .length_penalty = penalty,
                       .early_stopping = EarlyStopping::kNever,
                       .num_candidates = 1200,
                       .candidates_per_beam = 4},
                      4);
    EXPECT_EQ(run(search, model, 1), 4);
    ASSERT_EQ(search.hypotheses().size(), scores.size()) << "seed " << seed;
    float last = FLT_MAX;
    for (const BeamSearch::Hypothesis& found : search.hypotheses()) {
      ASSERT_TRUE(scores.contains(found.beam.tokens));
      EXPECT_NEAR(found.score, scores[found.beam.tokens], 1e-4);
      EXPECT_LE(found.score, last);
      last = found.score;
      const bool stops = found.beam.tokens.back() == 0 && found.beam.tokens.size() < 4;
      EXPECT_EQ(found.finish.type == FinishReason::Type::kStop, stops);
    }
  }
}

// The definition once more, with whole lists and no care for cost.
std::vector<BeamSearch::Hypothesis> naive(const RandomModel& model, const BeamOptions& options,
                                          int32_t length_max, int32_t num_stops) {
  using Beam = BeamSearch::Beam;
  std::vector<Beam> beams = {{}};
  std::vector<BeamSearch::Hypothesis> found;
  const auto count = static_cast<size_t>(options.num_beams);
  for (int32_t length = 1; length <= length_max; ++length) {
    std::vector<Beam> all;
    for (const Beam& beam : beams)
      for (const auto& [token, logprob] : model.behind(beam.tokens).top) {
        if (logprob <= -FLT_MAX) continue;
        Beam more = beam;
        more.tokens.push_back(token);
        more.logprob += logprob;
        all.push_back(std::move(more));
      }
    std::ranges::stable_sort(all, std::ranges::greater(), &Beam::logprob);
    all.resize(std::min(all.size(), static_cast<size_t>(options.num_candidates)));
    beams.clear();
    for (size_t i = 0; i < all.size(); ++i) {
      const bool ends = all[i].tokens.back() < num_stops || length == length_max;
      if (!ends && beams.size() < count) beams.push_back(all[i]);
      if (ends && i < count)
        found.push_back({.beam = all[i],
                         .score = static_cast<float>(
                             all[i].logprob / std::pow(length, double{options.length_penalty}))});
    }
    std::ranges::stable_sort(found, std::ranges::greater(), &BeamSearch::Hypothesis::score);
    found.resize(std::min(found.size(), count));
    if (beams.empty()) break;
    if (found.size() < count) continue;
    if (options.early_stopping == EarlyStopping::kYes) break;
    const bool at_most =
        options.early_stopping == EarlyStopping::kNever && options.length_penalty > 0;
    const double best =
        beams[0].logprob / std::pow(at_most ? length_max : length, double{options.length_penalty});
    if (best <= found.back().score) break;
  }
  return found;
}

TEST(BeamSearch, IsTheDefinition) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    Rng rng(seed);
    const auto vocab = static_cast<int32_t>(3 + rng.below(8));
    const auto num_stops = static_cast<int32_t>(1 + rng.below(3));
    const RandomModel model(seed, vocab);
    BeamOptions options{.num_beams = static_cast<int32_t>(1 + rng.below(5)),
                        .length_penalty = static_cast<float>(rng.below(5)) - 1.5f,
                        .early_stopping = static_cast<EarlyStopping>(rng.below(3)),
                        .return_logprob = true,
                        .top_logprobs_num = 2};
    options.num_candidates = num_beam_candidates(options.num_beams, static_cast<size_t>(num_stops));
    options.candidates_per_beam =
        candidates_of_one_beam(options.num_beams, static_cast<size_t>(num_stops), vocab);
    const auto length_max = static_cast<int32_t>(1 + rng.below(9));
    BeamSearch search(options, length_max);
    run(search, model, num_stops);
    const auto expected = naive(model, options, length_max, num_stops);
    ASSERT_EQ(search.hypotheses().size(), expected.size()) << "seed " << seed;
    for (size_t i = 0; i < expected.size(); ++i) {
      const BeamSearch::Hypothesis& found = search.hypotheses()[i];
      EXPECT_EQ(found.beam.tokens, expected[i].beam.tokens) << "seed " << seed;
      EXPECT_FLOAT_EQ(found.score, expected[i].score);
      float sum = 0;
      for (const TokenLogprobs& one : found.beam.logprobs) {
        sum += one.logprob;
        EXPECT_LE(one.top.size(), 2u);
        EXPECT_GE(one.top[0].second, one.logprob);
      }
      EXPECT_FLOAT_EQ(sum, found.beam.logprob);
    }
  }
}

TEST(BeamSearch, NeedsEnoughCandidates) {
  EXPECT_EQ(num_beam_candidates(4, 0), 8);
  EXPECT_EQ(num_beam_candidates(4, 1), 8);
  EXPECT_EQ(num_beam_candidates(4, 3), 16);
  EXPECT_EQ(candidates_of_one_beam(4, 0, 1000), 8);
  EXPECT_EQ(candidates_of_one_beam(4, 9, 1000), 13);
  EXPECT_EQ(candidates_of_one_beam(4, 9, 10), 10);
  EXPECT_EQ(candidates_of_one_beam(64, 64, 100'000), 128);
}

}  // namespace
}  // namespace espalier
