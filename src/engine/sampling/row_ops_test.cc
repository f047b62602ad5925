#include "engine/sampling/row_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace espalier {
namespace {

std::vector<float> random_row(Rng& rng, size_t n, double scale) {
  std::vector<float> row(n);
  for (float& x : row) x = static_cast<float>(scale * rng.normal());
  return row;
}

RowMax max_of(const std::vector<float>& row) {
  std::vector<float> blocks(static_cast<size_t>(row_blocks(static_cast<int64_t>(row.size()))));
  return row_max(row, blocks);
}

TEST(RowOps, MaxAgreesWithTheStandardOnEveryLength) {
  Rng rng(11);
  for (size_t n = 1; n < 600; ++n) {
    const std::vector<float> row = random_row(rng, n, 3);
    std::vector<float> blocks(static_cast<size_t>(row_blocks(static_cast<int64_t>(n))));
    const RowMax got = row_max(row, blocks);
    const auto best = std::max_element(row.begin(), row.end());
    ASSERT_EQ(got.max, *best);
    ASSERT_EQ(got.index, best - row.begin());
    ASSERT_TRUE(got.finite);
    for (size_t b = 0; b < blocks.size(); ++b) {
      const auto begin = row.begin() + static_cast<std::ptrdiff_t>(b * kRowBlock);
      const auto end = row.begin() + static_cast<std::ptrdiff_t>(std::min(n, (b + 1) * kRowBlock));
      ASSERT_EQ(blocks[b], *std::max_element(begin, end));
    }
  }
}

TEST(RowOps, FirstOfEqualsWinsAndZeroHasNoSign) {
  EXPECT_EQ(max_of({-1.0f, -0.0f, 0.0f}).index, 1);
  EXPECT_EQ(max_of({-1.0f, 0.0f, -0.0f}).index, 1);
  std::vector<float> row(1000, 2.5f);
  EXPECT_EQ(max_of(row).index, 0);
  row[0] = row[1] = 2.0f;
  EXPECT_EQ(max_of(row).index, 2);
}

TEST(RowOps, AnythingNotFiniteIsSeenWhereverItStands) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::nanf(""),
        std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()})
    for (size_t at : {0u, 1u, 127u, 128u, 299u}) {
      std::vector<float> row(300, 1.0f);
      EXPECT_TRUE(max_of(row).finite);
      row[at] = bad;
      EXPECT_FALSE(max_of(row).finite) << bad << " at " << at;
    }
}

TEST(RowOps, WeightsAndSumsAgreeWithDoubles) {
  const uint64_t seed = 12;
  Rng rng(seed);
  for (int round = 0; round < 200; ++round) {
    const auto n = static_cast<size_t>(rng.between(1, 1000));
    const std::vector<float> row = random_row(rng, n, rng.uniform() * 20);
    const float max = *std::max_element(row.begin(), row.end());
    const float temperature = std::exp(static_cast<float>(rng.uniform()) * 8 - 4);
    const auto blocks = static_cast<size_t>(row_blocks(static_cast<int64_t>(n)));
    std::vector<float> weights(n), sums(blocks), maxima(blocks);
    const double total = row_softmax_weights(row, max, temperature, weights, sums, maxima);
    double want_total = 0, want_sum = 0;
    for (size_t i = 0; i < n; ++i) {
      // The distance is rounded to float once before temperature: that much is allowed on top.
      const double x = (static_cast<double>(row[i]) - max) / temperature;
      const double want = std::exp(x);
      ASSERT_NEAR(weights[i], want, want * (2e-6 + 4e-7 * std::abs(x)) + 2e-38)
          << "seed " << seed << " x " << x;
      want_total += want;
      want_sum += std::exp(static_cast<double>(row[i]) - max);
      ASSERT_LE(weights[i], maxima[i / kRowBlock]);
    }
    ASSERT_NEAR(total, want_total, 1e-5 * want_total);
    ASSERT_NEAR(row_sum_exp(row, max), want_sum, 1e-5 * want_sum);
  }
}

TEST(RowOps, LargestWeightIsOneAndBannedWeighsNothingAtAnyTemperature) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> row = {-inf, 3e38f, -3e38f, 3e38f, 0.0f, -inf};
  for (const float temperature : {1e-45f, 1e-38f, 1e-6f, 1.0f, 1e20f, 3e38f}) {
    std::vector<float> weights(row.size()), sums(1), maxima(1);
    const double total = row_softmax_weights(row, 3e38f, temperature, weights, sums, maxima);
    EXPECT_EQ(weights[0], 0);
    EXPECT_EQ(weights[5], 0);
    EXPECT_EQ(weights[1], 1);
    EXPECT_EQ(weights[3], 1);
    EXPECT_EQ(maxima[0], 1);
    EXPECT_GE(total, 2);
    EXPECT_LE(total, 4);
  }
}

// One text, several compilations: the same maxima exactly, the same sums up to rounding.
TEST(RowOps, InstructionSetsAgree) {
  const uint64_t seed = 13;
  Rng rng(seed);
  const std::span<const RowOps> all = usable_row_ops();
  ASSERT_FALSE(all.empty());
  for (int round = 0; round < 300; ++round) {
    const auto n = static_cast<size_t>(rng.between(1, 700));
    const auto length = static_cast<int64_t>(n);
    std::vector<float> row = random_row(rng, n, 5);
    for (float& x : row)
      if (rng.below(5) == 0) x = std::round(x);  // ties
    const auto blocks = static_cast<size_t>(row_blocks(length));
    std::vector<float> want_max(blocks), want_weights(n), sums(blocks), maxima(blocks);
    const RowOps& plain = all.back();
    const RowMax want = plain.max(row.data(), length, want_max.data());
    const double want_total = plain.softmax_weights(
        row.data(), length, want.max, 0.7f, want_weights.data(), sums.data(), maxima.data());
    const double want_sum = plain.sum_exp(row.data(), length, want.max);
    for (const RowOps& ops : all) {
      std::vector<float> block_max(blocks), weights(n);
      const RowMax got = ops.max(row.data(), length, block_max.data());
      ASSERT_EQ(got.max, want.max) << ops.name << " seed " << seed;
      ASSERT_EQ(got.index, want.index) << ops.name << " seed " << seed;
      ASSERT_EQ(block_max, want_max) << ops.name;
      const double total = ops.softmax_weights(row.data(), length, got.max, 0.7f, weights.data(),
                                               sums.data(), maxima.data());
      ASSERT_NEAR(total, want_total, 1e-6 * want_total) << ops.name;
      for (size_t i = 0; i < n; ++i)
        ASSERT_NEAR(weights[i], want_weights[i], 1e-6f * want_weights[i] + 1e-38f) << ops.name;
      ASSERT_NEAR(ops.sum_exp(row.data(), length, got.max), want_sum, 1e-6 * want_sum) << ops.name;
    }
  }
}

}  // namespace
}  // namespace espalier
