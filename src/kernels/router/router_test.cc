// The selection of experts, against a selection that sorts everything.
#include "kernels/router/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/rng.h"

namespace espalier::kernels {
namespace {

struct Selection {
  std::vector<int32_t> experts;
  std::vector<double> weights;
};

// Indices by value, best first, the smaller index first among equals.
std::vector<int32_t> order(const std::vector<double>& values) {
  std::vector<int32_t> all(values.size());
  std::iota(all.begin(), all.end(), 0);
  std::stable_sort(all.begin(), all.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  return all;
}

Selection choose(const RouterSpec& spec, const float* logits, const float* correction) {
  const auto count = static_cast<size_t>(spec.num_experts);
  std::vector<double> scores(count), selection(count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(logits[i]));
  for (size_t i = 0; i < count; ++i) {
    const double e = std::exp(static_cast<double>(logits[i]));
    scores[i] = spec.scoring == RouterSpec::Scoring::kSoftmax ? e / sum : e / (1 + e);
    selection[i] = scores[i] + (correction != nullptr ? correction[i] : 0);
  }
  const auto groups = static_cast<size_t>(spec.num_groups), size = count / groups;
  std::vector<double> best;
  for (size_t g = 0; g < groups; ++g) {
    std::vector<double> of_group(selection.begin() + static_cast<long>(g * size),
                                 selection.begin() + static_cast<long>((g + 1) * size));
    std::sort(of_group.rbegin(), of_group.rend());
    best.push_back(of_group[0] + (spec.group_by_two ? of_group[1] : 0));
  }
  std::vector<int32_t> open = order(best);
  open.resize(static_cast<size_t>(spec.top_groups));
  Selection out;
  for (const int32_t expert : order(selection)) {
    const auto group = static_cast<int32_t>(static_cast<size_t>(expert) / size);
    if (std::ranges::find(open, group) == open.end()) continue;
    if (std::ssize(out.experts) < spec.top_k) out.experts.push_back(expert);
  }
  std::ranges::sort(out.experts);
  sum = 0;
  for (const int32_t expert : out.experts) sum += scores[static_cast<size_t>(expert)];
  for (const int32_t expert : out.experts) {
    out.weights.push_back(scores[static_cast<size_t>(expert)] / (spec.normalise ? sum : 1) *
                          spec.scale);
  }
  return out;
}

TEST(Router, SelectsAsASortWould) {
  const uint64_t seed = 77;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  const RouterSpec specs[] = {
      {.num_experts = 8, .top_k = 2, .normalise = true},
      {.num_experts = 60, .top_k = 4},
      {.num_experts = 128, .top_k = 8, .normalise = true, .scale = 1.5f},
      {.num_experts = 64, .top_k = 6, .scale = 16, .num_groups = 8, .top_groups = 3},
      {.num_experts = 256,
       .top_k = 8,
       .scoring = RouterSpec::Scoring::kSigmoid,
       .normalise = true,
       .scale = 2.5f,
       .num_groups = 8,
       .top_groups = 4,
       .group_by_two = true,
       .correction = true},
      {.num_experts = 4, .top_k = 4, .normalise = true},
  };
  for (const RouterSpec& spec : specs) {
    const int64_t rows = 40;
    std::vector<float> logits(static_cast<size_t>(rows * spec.num_experts));
    // Few distinct values, so that there are equals among the best.
    for (float& value : logits) value = 0.25f * static_cast<float>(rng.below(24)) - 3;
    std::vector<float> correction(static_cast<size_t>(spec.num_experts));
    for (float& value : correction) value = 0.125f * static_cast<float>(rng.below(4));
    std::vector<int32_t> experts(static_cast<size_t>(rows * spec.top_k));
    std::vector<float> weights(experts.size());
    const float* correct = spec.correction ? correction.data() : nullptr;
    route(spec, {.logits = logits.data(),
                 .rows = rows,
                 .correction = correct,
                 .experts = experts.data(),
                 .weights = weights.data()});
    for (int64_t row = 0; row < rows; ++row) {
      const Selection expected = choose(spec, logits.data() + row * spec.num_experts, correct);
      for (int32_t i = 0; i < spec.top_k; ++i) {
        const auto at = static_cast<size_t>(row * spec.top_k + i);
        EXPECT_EQ(experts[at], expected.experts[static_cast<size_t>(i)]);
        EXPECT_NEAR(weights[at], expected.weights[static_cast<size_t>(i)], 1e-5 * spec.scale);
      }
    }
  }
}

TEST(Router, ANanShowsInTheWeights) {
  const float logits[] = {0.5f, std::nanf(""), 0.25f, 0.0f};
  int32_t experts[2];
  float weights[2];
  route({.num_experts = 4, .top_k = 2, .normalise = true},
        {.logits = logits, .rows = 1, .experts = experts, .weights = weights});
  EXPECT_TRUE(std::isnan(weights[0]) && std::isnan(weights[1]));
}

// The same bits in any number of passes over the experts and on any number of threads.
TEST(Router, CombinesInTheOrderOfTheExperts) {
  Rng rng(3);
  const int64_t rows = 30, top_k = 3, dim = 700, slots = rows * top_k;
  std::vector<float> x(static_cast<size_t>(slots * dim)), weights(static_cast<size_t>(slots));
  for (float& value : x) value = static_cast<float>(rng.normal());
  for (float& value : weights) value = static_cast<float>(rng.uniform());
  std::vector<int32_t> slot_of(static_cast<size_t>(slots));
  std::iota(slot_of.begin(), slot_of.end(), 0);
  // As experts in ascending order have them: of a row, ascending.
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t k = 0; k < top_k; ++k) {
      slot_of[static_cast<size_t>(row * top_k + k)] = static_cast<int32_t>(k * rows + row);
    }
  }
  std::vector<float> expected(static_cast<size_t>(rows * dim), 0.5f);
  for (int64_t i = 0; i < slots; ++i) {
    for (int64_t j = 0; j < dim; ++j) {
      float& to = expected[static_cast<size_t>(i / top_k * dim + j)];
      to = std::fma(weights[static_cast<size_t>(i)],
                    x[static_cast<size_t>(slot_of[static_cast<size_t>(i)] * dim + j)], to);
    }
  }
  std::vector<float> at_once;
  for (const int64_t pass : {slots, int64_t{31}}) {
    WorkPool pool(2);
    auto backend = CpuBackend::create(pool);
    ASSERT_TRUE(backend);
    std::vector<float> y(expected.size(), 0.5f);
    for (int64_t first = 0; first < slots; first += pass) {
      combine_experts(**backend, {.x = x.data() + first * dim,
                                  .slots = slot_of.data(),
                                  .weights = weights.data(),
                                  .y = y.data(),
                                  .rows = rows,
                                  .top_k = top_k,
                                  .dim = dim,
                                  .first_slot = first,
                                  .num_slots = std::min(pass, slots - first)});
    }
    for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 1e-5) << i;
    if (at_once.empty()) at_once = y;
    ASSERT_EQ(y, at_once) << "passes of " << pass;
  }
}

// Experts 0, 1 and 2 in slots {3}, {0, 2} and {1}.
TEST(Router, ReplicasTakeTurnsByPosition) {
  const int32_t table[] = {0, 1, 3, 4, 3, 0, 2, 1};
  const int32_t positions[] = {7, 8, 7};
  int32_t experts[] = {0, 1, 1, 2, 1, 2};
  float weights[] = {0.25f, 0.75f, 0.5f, 0.125f, 1, 2};
  choose_replicas({.table = table,
                   .num_experts = 3,
                   .positions = positions,
                   .experts = experts,
                   .weights = weights,
                   .top_k = 2});
  EXPECT_EQ(std::vector(std::begin(experts), std::end(experts)),
            (std::vector<int32_t>{0, 3, 1, 2, 0, 1}));
  EXPECT_EQ(std::vector(std::begin(weights), std::end(weights)),
            (std::vector<float>{0.75f, 0.25f, 0.125f, 0.5f, 1, 2}));
}

}  // namespace
}  // namespace espalier::kernels
