// What the tests of experts in codes of 4 bits check of a CodedLayer, whatever its codes are. Not
// thread-safe.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/cuda/test_device.h"
#include "kernels/moe/coded_layer.h"

namespace espalier::kernels::test {

// A layer's two GEMMs against float32, again, and as parts of other batches. bound: of the relative
// error.
template <typename MATRICES>
void check_coded_layer(Rng& rng, const CodedLayerShape& s, double bound) {
  SCOPED_TRACE(
      fmt::format("{} rows, {} of {} experts, {} x {}", s.rows, s.top_k, s.experts, s.dim, s.ffn));
  CodedLayer<MATRICES> layer(rng, s);
  layer.arrange(s.rows);
  const auto inner = layer.inner(false);
  const double inner_error = relative_error(to_floats(inner), layer.float_inner());
  const auto outer = layer.outer(inner, false);
  const double outer_error = relative_error(to_floats(outer), layer.float_outer(inner));
  fmt::print("{} rows, {} of {} experts, {} x {}: errors {:.5f} and {:.5f}\n", s.rows, s.top_k,
             s.experts, s.dim, s.ffn, inner_error, outer_error);
  EXPECT_LT(inner_error, bound);
  EXPECT_LT(outer_error, bound);
  EXPECT_EQ(layer.by_pair(layer.inner(false), s.ffn), layer.by_pair(inner, s.ffn));
  // row_invariant: a row's bits are those that it has in a batch of fewer rows.
  const auto invariant = layer.inner(true);
  EXPECT_LT(relative_error(to_floats(invariant), layer.float_inner()), bound);
  const auto all = layer.by_pair(invariant, s.ffn);
  const auto all_outer = layer.by_pair(layer.outer(invariant, true), s.dim);
  layer.arrange((s.rows + 1) / 2);
  const auto half = layer.inner(true);
  const auto some = layer.by_pair(half, s.ffn);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  const auto some_outer = layer.by_pair(layer.outer(half, true), s.dim);
  EXPECT_TRUE(std::equal(some_outer.begin(), some_outer.end(), all_outer.begin()));
}

// The rows of two ranges of experts, each by a plan of its own, are those that all experts give.
template <typename MATRICES>
void check_expert_ranges(Rng& rng, const CodedLayerShape& s) {
  CodedLayer<MATRICES> layer(rng, s);
  layer.arrange(s.rows);
  const auto inner = layer.by_pair(layer.inner(true), s.ffn);
  const auto outer = layer.by_pair(layer.outer(layer.inner(true), true), s.dim);
  const int first = s.experts / 3;
  for (const auto& [begin, count] : {std::pair{0, first}, {first, s.experts - first}}) {
    layer.arrange(s.rows, begin, count);
    const auto part = layer.inner(true);
    EXPECT_EQ(layer.by_pair(part, s.ffn), layer.here(inner, s.ffn)) << begin;
    EXPECT_EQ(layer.by_pair(layer.outer(part, true), s.dim), layer.here(outer, s.dim)) << begin;
  }
}

// The first row's first pair against slow loops on the CPU.
template <typename MATRICES>
void check_one_row(Rng& rng, const CodedLayerShape& shape, double bound) {
  CodedLayer<MATRICES> layer(rng, shape);
  layer.arrange(1);
  const std::vector<double> expected = layer.slow_inner();
  const std::vector<float> got = to_floats(layer.inner(false));
  const auto first = static_cast<size_t>(layer.slot_of_first_pair() * shape.ffn);
  double most = 0;
  for (size_t i = 0; i < expected.size(); ++i)
    most = std::max(most, std::abs(got[first + i] - expected[i]) / (1 + std::abs(expected[i])));
  fmt::print("largest error {:.5f}\n", most);
  EXPECT_LT(most, bound);
}

}  // namespace espalier::kernels::test
