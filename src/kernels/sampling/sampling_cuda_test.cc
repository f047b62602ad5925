// Sampling on the GPU against the definition in double, the order spelled out by a sort.
#include "kernels/sampling/cuda.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "kernels/cuda/test_device.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;
constexpr double kOut = -std::numeric_limits<double>::infinity();

// One row with its parameters on the host.
struct RowCase {
  std::vector<float> logits;
  cuda::SlotSampling slot;
  std::vector<uint16_t> counts;
  std::vector<int32_t> bias_ids, banned_ids;
  std::vector<float> bias_values;
  std::vector<uint32_t> mask;
  int output_index = 0;
};

// The definition: adjusted logits, probabilities after the filters, and how close the nearest
// decision of a filter was (relative to the cumulative probability), since rounding may take it
// either way.
struct Definition {
  std::vector<double> adjusted, kept;
  double margin = 1;
};

// The least logit that top_n_sigma keeps.
double least_logit(const RowCase& c, const std::vector<double>& adjusted, double best) {
  if (c.slot.top_n_sigma <= 0) return kOut;
  double count = 0, sum = 0, squares = 0;
  for (const double x : adjusted) {
    if (x == kOut) continue;
    const double distance = std::min(best - x, double{kSigmaDistanceMax});
    ++count, sum += distance, squares += distance * distance;
  }
  const double mean = sum / count;
  return best - c.slot.top_n_sigma * std::sqrt(std::max(squares / count - mean * mean, 0.0));
}

Definition define(const RowCase& c) {
  Definition d;
  const size_t n = c.logits.size();
  d.adjusted.assign(c.logits.begin(), c.logits.end());
  for (size_t i = 0; i < c.counts.size(); ++i) {
    double& x = d.adjusted[i];
    if (c.counts[i] > 1)
      x -= double{c.slot.frequency_penalty} * (c.counts[i] - 1) + c.slot.presence_penalty;
    if (c.counts[i] > 0) x = x > 0 ? x / c.slot.repetition_penalty : x * c.slot.repetition_penalty;
  }
  for (size_t i = 0; i < c.bias_ids.size(); ++i)
    d.adjusted[static_cast<size_t>(c.bias_ids[i])] += c.bias_values[i];
  for (size_t i = 0; i < n && !c.mask.empty(); ++i)
    if ((c.mask[i / 32] >> (i % 32) & 1) == 0) d.adjusted[i] = kOut;
  if (c.output_index < c.slot.min_new_tokens)
    for (int32_t id : c.banned_ids) d.adjusted[static_cast<size_t>(id)] = kOut;
  const double best = *std::max_element(d.adjusted.begin(), d.adjusted.end());
  d.kept.assign(n, 0);
  if (best == kOut || c.slot.temperature == 0) return d;
  std::vector<double> weights(n);
  double total = 0;
  for (size_t i = 0; i < n; ++i)
    total += weights[i] = std::exp((d.adjusted[i] - best) / c.slot.temperature);
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  const double least = least_logit(c, d.adjusted, best);
  double before = 0;
  for (size_t rank = 0; rank < n; ++rank) {
    const double w = weights[order[rank]];
    const double above = d.adjusted[order[rank]] - least;
    if (c.slot.top_k > 0 && rank >= static_cast<size_t>(c.slot.top_k)) {
      // Two logits that round to one probability may change order.
      if (rank > 0 && w > 0) d.margin = std::min(d.margin, (weights[order[rank - 1]] - w) / w);
      break;
    }
    if (c.slot.top_p < 1) d.margin = std::min(d.margin, std::abs(before / total - c.slot.top_p));
    if (c.slot.min_p > 0) d.margin = std::min(d.margin, std::abs(w - c.slot.min_p));
    if (c.slot.top_p < 1 && before > c.slot.top_p * total) break;
    if (c.slot.top_n_sigma > 0) d.margin = std::min(d.margin, std::abs(above));
    if (w < c.slot.min_p || w == 0 || above < 0) break;
    d.kept[order[rank]] = w;
    before += w;
  }
  return d;
}

// The token for u, unless u lies within rounding of an edge.
int definition_draw(const Definition& d, double u) {
  const double total = std::accumulate(d.kept.begin(), d.kept.end(), 0.0);
  double cumulative = 0;
  for (size_t i = 0; i < d.kept.size(); ++i) {
    if (d.kept[i] == 0) continue;
    cumulative += d.kept[i];
    if (std::abs(cumulative / total - u) < 2e-6) return -1;
    if (cumulative >= u * total) return static_cast<int>(i);
  }
  return -1;
}

class CudaSampling : public test::OnDevice {
 protected:
  struct Result {
    std::vector<int32_t> tokens, statuses, slot_tokens;
    std::vector<std::vector<uint16_t>> counts;
    std::vector<float> logprobs, top_logprobs;  // [rows], [rows, max_top]; with max_top
    std::vector<int32_t> top_ids;               // [rows, max_top]
  };

  // The log-probabilities of the tokens that `args` has sampled.
  static void add_logprobs(const cuda::SampleArgs& args, int32_t max_top, Result& result) {
    const auto n = static_cast<size_t>(args.rows), top = n * static_cast<size_t>(max_top);
    DeviceArray<float> logprobs(n), top_logprobs(top);
    DeviceArray<int32_t> top_ids(top);
    const Status status = cuda::logprobs({.logits = args.logits,
                                          .logits_stride = args.logits_stride,
                                          .rows = args.rows,
                                          .vocab_size = args.vocab_size,
                                          .targets = args.tokens,
                                          .logprobs = logprobs.get(),
                                          .max_top = max_top,
                                          .top_ids = top_ids.get(),
                                          .top_logprobs = top_logprobs.get(),
                                          .sampled = args},
                                         {});
    EXPECT_TRUE(status.ok()) << status.message();
    result.logprobs = logprobs.read();
    result.top_logprobs = top_logprobs.read();
    result.top_ids = top_ids.read();
  }

  // All rows in one launch, row i in slot rows - 1 - i.
  static Result sample(const std::vector<RowCase>& rows, int blocks_per_row = 0,
                       int32_t max_top = 0) {
    const size_t n = rows.size(), vocab = rows[0].logits.size(), stride = vocab + 3;
    const size_t words = (vocab + 31) / 32;
    std::vector<float> logits(n * stride, 1e30f);
    std::vector<uint32_t> masks(n * words, 0);
    std::vector<uint8_t> has_mask;
    std::vector<cuda::SlotSampling> slots(n);
    std::vector<int32_t> row_slots, indices;
    std::vector<DeviceArray<uint16_t>> counts;
    std::vector<DeviceArray<int32_t>> lists;
    std::vector<DeviceArray<float>> values;
    for (size_t i = 0; i < n; ++i) {
      const RowCase& row = rows[i];
      std::copy(row.logits.begin(), row.logits.end(),
                logits.begin() + static_cast<std::ptrdiff_t>(i * stride));
      std::copy(row.mask.begin(), row.mask.end(),
                masks.begin() + static_cast<std::ptrdiff_t>(i * words));
      has_mask.push_back(!row.mask.empty());
      indices.push_back(row.output_index);
      const size_t slot = n - 1 - i;
      row_slots.push_back(static_cast<int32_t>(slot));
      slots[slot] = row.slot;
      counts.emplace_back(row.counts);
      if (!row.counts.empty()) slots[slot].counts = counts.back().get();
      lists.emplace_back(row.bias_ids);
      slots[slot].bias_ids = lists.back().get();
      slots[slot].num_bias = static_cast<int32_t>(row.bias_ids.size());
      values.emplace_back(row.bias_values);
      slots[slot].bias_values = values.back().get();
      lists.emplace_back(row.banned_ids);
      slots[slot].banned_ids = lists.back().get();
      slots[slot].num_banned = static_cast<int32_t>(row.banned_ids.size());
    }
    const DeviceArray<float> device_logits(logits);
    const DeviceArray<uint32_t> device_masks(masks);
    const DeviceArray<uint8_t> device_has(has_mask);
    const DeviceArray<cuda::SlotSampling> device_slots(slots);
    const DeviceArray<int32_t> device_rows(row_slots), device_indices(indices);
    DeviceArray<int32_t> tokens(n), statuses(n), slot_tokens(n);
    const auto bytes =
        cuda::sample_workspace_bytes(static_cast<int32_t>(n), static_cast<int32_t>(vocab));
    const DeviceArray<uint8_t> workspace(*bytes);
    const cuda::SampleArgs args{.logits = device_logits.get(),
                                .logits_stride = static_cast<int64_t>(stride),
                                .rows = static_cast<int32_t>(n),
                                .vocab_size = static_cast<int32_t>(vocab),
                                .slots = device_slots.get(),
                                .row_slots = device_rows.get(),
                                .output_indices = device_indices.get(),
                                .masks = device_masks.get(),
                                .mask_stride = static_cast<int64_t>(words),
                                .has_mask = device_has.get(),
                                .tokens = tokens.get(),
                                .statuses = statuses.get(),
                                .slot_tokens = slot_tokens.get(),
                                .workspace = workspace.get(),
                                .workspace_bytes = *bytes,
                                .blocks_per_row = blocks_per_row};
    const Status status = cuda::sample(args, {});
    EXPECT_TRUE(status.ok()) << status.message();
    Result result{tokens.read(), statuses.read(), slot_tokens.read(), {}, {}, {}, {}};
    if (max_top > 0) add_logprobs(args, max_top, result);
    for (const auto& one : counts) result.counts.push_back(one.read());
    const auto after = device_logits.read();  // bits, since some hold NaN on purpose
    EXPECT_EQ(std::memcmp(after.data(), logits.data(), logits.size() * 4), 0);
    return result;
  }

  RowCase random_case(size_t n) {
    RowCase c;
    const double scale = 0.3 + 4 * rng_.uniform();
    c.logits.resize(n);
    const bool coarse = rng_.below(4) == 0;  // many equal logits
    for (float& x : c.logits) {
      x = static_cast<float>(scale * rng_.normal());
      if (coarse) x = std::round(x);
    }
    const auto use = [&] { return rng_.below(3) == 0; };
    const auto id = [&] { return static_cast<int32_t>(rng_.below(n)); };
    c.slot.seed = rng_();
    c.output_index = static_cast<int>(rng_.below(20));
    c.slot.temperature = use() ? static_cast<float>(0.05 + 2 * rng_.uniform()) : 1.0f;
    if (use()) c.slot.top_k = static_cast<int32_t>(1 + rng_.below(use() ? n : 60));
    if (use()) c.slot.top_p = static_cast<float>(0.02 + 0.97 * rng_.uniform());
    if (use()) c.slot.min_p = static_cast<float>(rng_.uniform());
    if (use()) c.slot.top_n_sigma = static_cast<float>(0.1 + 3 * rng_.uniform());
    if (use()) {
      c.slot.frequency_penalty = static_cast<float>(4 * rng_.uniform() - 2);
      c.slot.presence_penalty = static_cast<float>(4 * rng_.uniform() - 2);
      c.slot.repetition_penalty = static_cast<float>(0.1 + 1.9 * rng_.uniform());
      c.counts.resize(n);
      for (int i = 0; i < 40; ++i) ++c.counts[static_cast<size_t>(id())];
    }
    if (use())
      for (int i = 0; i < 5; ++i)
        if (const int32_t b = id();
            std::find(c.bias_ids.begin(), c.bias_ids.end(), b) == c.bias_ids.end()) {
          c.bias_ids.push_back(b);
          c.bias_values.push_back(static_cast<float>(10 * rng_.normal()));
        }
    if (use())
      for (size_t word = 0; word < (n + 31) / 32; ++word)
        c.mask.push_back(static_cast<uint32_t>(rng_() | rng_()));
    if (use()) {
      c.slot.min_new_tokens = 10;
      for (int i = 0; i < 3; ++i) c.banned_ids.push_back(id());
    }
    return c;
  }
};

TEST_F(CudaSampling, AgreesWithTheDefinition) {
  int compared = 0, total = 0;
  for (const size_t n : {1, 2, 100, 129, 5000, 50257, 128256}) {
    for (int round = 0; round < (n > 10000 ? 3 : 8); ++round) {
      std::vector<RowCase> rows;
      for (int i = 0; i < 24; ++i) rows.push_back(random_case(n));
      const Result got = sample(rows);
      for (size_t i = 0; i < rows.size(); ++i) {
        const RowCase& c = rows[i];
        ++total;
        const Definition want = define(c);
        EXPECT_EQ(got.slot_tokens[rows.size() - 1 - i], got.tokens[i]);
        if (*std::max_element(want.adjusted.begin(), want.adjusted.end()) == kOut) {
          EXPECT_EQ(got.statuses[i], cuda::kSampleNoToken);
          EXPECT_EQ(got.tokens[i], -1);
          continue;
        }
        ASSERT_EQ(got.statuses[i], cuda::kSampleOk);
        ASSERT_GE(got.tokens[i], 0);
        ASSERT_LT(got.tokens[i], static_cast<int>(n));
        if (!c.counts.empty()) {
          auto counts = c.counts;
          uint16_t& count = counts[static_cast<size_t>(got.tokens[i])];
          count = static_cast<uint16_t>(std::max<int>(count, 1) + 1);
          EXPECT_EQ(got.counts[i], counts);
        }
        if (want.margin < 1e-5) continue;
        const int token =
            definition_draw(want, hash_uniform(c.slot.seed, static_cast<uint64_t>(c.output_index)));
        if (token < 0) continue;
        EXPECT_EQ(got.tokens[i], token)
            << "vocabulary " << n << " row " << i << " temperature " << c.slot.temperature
            << " top_k " << c.slot.top_k << " top_p " << c.slot.top_p << " min_p " << c.slot.min_p;
        ++compared;
      }
    }
  }
  EXPECT_GT(compared, total * 7 / 10);
}

// The tokens do not depend on the number of blocks of a row, nor on the number of rows, which
// decides it.
TEST_F(CudaSampling, AnyNumberOfBlocksGivesTheSameTokens) {
  for (const size_t n : {100, 5000, 50257, 128256, 200000}) {
    std::vector<RowCase> rows;
    for (int i = 0; i < 40; ++i) rows.push_back(random_case(n));
    rows[3].logits[n / 2] = NAN;
    rows[4].mask.assign((n + 31) / 32, 0);
    rows[5].slot.top_p = 0.5f, rows[5].logits.assign(n, 1.5f);
    rows[6].slot.temperature = rows[7].slot.temperature = 0;
    rows[8].slot = {{.temperature = 0.7f, .min_p = 0.01f, .seed = 5}};
    const Result one = sample(rows, 1);
    for (const int blocks : {0, 2, 4, 8}) {
      const Result got = sample(rows, blocks);
      EXPECT_EQ(got.tokens, one.tokens) << n << " by " << blocks;
      EXPECT_EQ(got.statuses, one.statuses) << n << " by " << blocks;
      EXPECT_EQ(got.counts, one.counts) << n << " by " << blocks;
    }
  }
  std::vector<RowCase> cases;
  for (int i = 0; i < 12; ++i) cases.push_back(random_case(40000));
  const std::vector<int32_t> want = sample(cases, 1).tokens;
  for (int count = 1; count <= 300; count += count < 20 ? 1 : 13) {
    std::vector<RowCase> rows;
    std::vector<int32_t> expected;
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      rows.push_back(cases[i % cases.size()]);
      expected.push_back(want[i % cases.size()]);
    }
    EXPECT_EQ(sample(rows).tokens, expected) << count << " rows";
  }
}

TEST_F(CudaSampling, GreedyTakesTheLargestAndTheSmallestIdAmongEquals) {
  for (const size_t n : {1, 7, 300, 128256}) {
    std::vector<RowCase> rows(9);
    std::vector<int32_t> want;
    for (RowCase& c : rows) {
      c.logits = test::random_floats(rng_, static_cast<int64_t>(n));
      c.slot.temperature = 0;
      const size_t a = rng_.below(n), b = rng_.below(n);
      c.logits[a] = c.logits[b] = 9.0f;
      want.push_back(static_cast<int32_t>(std::min(a, b)));
    }
    EXPECT_EQ(sample(rows).tokens, want) << n;
  }
  std::vector<RowCase> flat(1);
  flat[0].logits.assign(4000, -0.0f);
  flat[0].logits[2000] = 0.0f;
  flat[0].slot.temperature = 0;
  EXPECT_EQ(sample(flat).tokens[0], 0);
}

TEST_F(CudaSampling, ManyEqualLogits) {
  // All equal: top_k takes the first ids, top_p the first share of them.
  std::vector<RowCase> rows;
  for (int i = 0; i < 40; ++i) {
    RowCase c;
    c.logits.assign(128256, 1.5f);
    c.slot.seed = rng_();
    if (i % 2 == 0)
      c.slot.top_k = 6000;
    else
      c.slot.top_p = 0.1f;
    rows.push_back(c);
  }
  const Result got = sample(rows);
  int largest[2] = {0, 0};
  for (size_t i = 0; i < rows.size(); ++i) largest[i % 2] = std::max(largest[i % 2], got.tokens[i]);
  EXPECT_LT(largest[0], 6000);
  EXPECT_GT(largest[0], 3000);
  EXPECT_LE(largest[1], 12826);
  EXPECT_GT(largest[1], 6000);
}

TEST_F(CudaSampling, FrequenciesFollowTheProbabilities) {
  RowCase base = random_case(50);
  base.mask.clear();
  base.counts.clear();
  base.banned_ids.clear();
  base.slot.top_k = -1;
  base.slot.top_p = 1;
  base.slot.min_p = 0;
  base.slot.temperature = 1.3f;
  const Definition want = define(base);
  const double total = std::accumulate(want.kept.begin(), want.kept.end(), 0.0);
  std::vector<RowCase> rows(5000, base);
  for (size_t i = 0; i < rows.size(); ++i) rows[i].output_index = static_cast<int>(i);
  // One slot's stream of draws: fewer rows a launch than this would take longer.
  std::map<int32_t, int> seen;
  for (const int32_t token : sample(rows).tokens) ++seen[token];
  double chi = 0;
  int cells = 0;
  for (size_t i = 0; i < want.kept.size(); ++i) {
    const double expected = want.kept[i] / total * static_cast<double>(rows.size());
    if (expected < 10) continue;
    const double difference = seen[static_cast<int32_t>(i)] - expected;
    chi += difference * difference / expected;
    ++cells;
  }
  EXPECT_LT(chi, cells + 6 * std::sqrt(2.0 * cells));
}

TEST_F(CudaSampling, FaultsAreTheirRowsAlone) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<RowCase> rows;
    for (int i = 0; i < 3; ++i) rows.push_back(random_case(1000));
    for (RowCase& row : rows) row.mask.clear(), row.banned_ids.clear();
    rows[1].logits[777] = bad;
    rows[2].mask.assign(32, 0);
    const Result got = sample(rows);
    EXPECT_EQ(got.statuses[0], cuda::kSampleOk);
    EXPECT_EQ(got.statuses[1], cuda::kSampleNotFinite);
    EXPECT_EQ(got.tokens[1], -1);
    EXPECT_EQ(got.statuses[2], cuda::kSampleNoToken);
  }
}

TEST_F(CudaSampling, LogprobsAreOfTheRawLogits) {
  for (const size_t n : {5, 300, 128256})
    for (const int max_top : {0, 5, 40}) {
      const size_t rows = 4;
      auto logits = test::random_floats(rng_, static_cast<int64_t>(rows * n), 3.0);
      for (size_t i = 0; i < n; ++i) logits[i] = std::round(logits[i]);
      if (n > 10000)
        for (size_t i = 0; i < n; ++i) logits[n + i] = 2.0f;  // all equal
      const std::vector<int32_t> targets{1, 0, -1, static_cast<int32_t>(n - 1)};
      const std::vector<int32_t> wanted_begin{0, 2, 2, 2, 3}, wanted{0, 4, 2};
      const DeviceArray<float> device_logits(logits);
      const DeviceArray<int32_t> device_targets(targets), device_begin(wanted_begin),
          device_wanted(wanted);
      const auto tops = rows * static_cast<size_t>(max_top);
      DeviceArray<float> out(rows), top_out(tops), wanted_out(3);
      DeviceArray<int32_t> top_ids(tops), statuses(rows);
      const Status status = cuda::logprobs({.logits = device_logits.get(),
                                            .logits_stride = static_cast<int64_t>(n),
                                            .rows = static_cast<int32_t>(rows),
                                            .vocab_size = static_cast<int32_t>(n),
                                            .targets = device_targets.get(),
                                            .logprobs = out.get(),
                                            .max_top = max_top,
                                            .top_ids = top_ids.get(),
                                            .top_logprobs = top_out.get(),
                                            .wanted_begin = device_begin.get(),
                                            .wanted_ids = device_wanted.get(),
                                            .wanted_logprobs = wanted_out.get(),
                                            .statuses = statuses.get()},
                                           {});
      ASSERT_TRUE(status.ok()) << status.message();
      const auto got = out.read(), got_top = top_out.read(), got_wanted = wanted_out.read();
      const auto got_ids = top_ids.read();
      size_t wanted_at = 0;
      for (size_t row = 0; row < rows; ++row) {
        if (targets[row] < 0) continue;
        const float* x = logits.data() + row * n;
        double sum = 0;
        for (size_t i = 0; i < n; ++i) sum += std::exp(double{x[i]} - 10);
        const auto want = [&](int32_t id) { return x[id] - 10 - std::log(sum); };
        EXPECT_NEAR(got[row], want(targets[row]), 1e-4);
        for (; wanted_at < static_cast<size_t>(wanted_begin[row + 1]); ++wanted_at) {
          EXPECT_NEAR(got_wanted[wanted_at], want(wanted[wanted_at]), 1e-4);
        }
        std::vector<int32_t> order(n);
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int32_t a, int32_t b) { return x[a] > x[b]; });
        for (size_t i = 0; i < static_cast<size_t>(max_top); ++i) {
          const size_t at = row * static_cast<size_t>(max_top) + i;
          ASSERT_EQ(got_ids[at], i < n ? order[i] : -1) << n << " row " << row << " rank " << i;
          if (i < n) {
            EXPECT_NEAR(got_top[at], want(order[i]), 1e-4);
          }
        }
      }
    }
}

// In each mode: of the logits that the draw sees, without its temperature, of the raw ones. The
// tops are compared by value, for rounding may order two that are nearly equal either way.
TEST_F(CudaSampling, SampledLogprobsFollowTheSlotsMode) {
  constexpr int32_t kTop = 7;
  int masked = 0;
  for (const size_t n : {9, 300, 5000, 128256}) {
    std::vector<RowCase> rows;
    for (int i = 0; i < 24; ++i) {
      RowCase& c = rows.emplace_back(random_case(n));
      c.slot.logprobs_mode = static_cast<LogprobsMode>(i % 3);
      if (i % 5 == 0) c.slot.temperature = 0;
      if (i % 7 == 0 && !c.mask.empty()) {  // fewer tokens than are requested
        std::fill(c.mask.begin(), c.mask.end(), 0u);
        c.mask[0] = 0b101;
        ++masked;
      }
    }
    const Result got = sample(rows, 0, kTop);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (got.statuses[i] != cuda::kSampleOk) continue;
      const RowCase& c = rows[i];
      const bool raw = c.slot.logprobs_mode == LogprobsMode::kRaw;
      const bool tempered =
          c.slot.logprobs_mode == LogprobsMode::kProcessed && c.slot.temperature > 0;
      const double temperature = tempered ? c.slot.temperature : 1;
      std::vector<double> x(c.logits.begin(), c.logits.end());
      if (!raw) x = define(c).adjusted;
      const double best = *std::max_element(x.begin(), x.end());
      double sum = 0;
      for (const double value : x) sum += std::exp((value - best) / temperature);
      const auto want = [&](size_t id) {
        const double logprob = (x[id] - best) / temperature - std::log(sum);
        return std::max(logprob, -double{std::numeric_limits<float>::max()});
      };
      const double tolerance = 1e-3 / std::min(1.0, temperature);
      EXPECT_NEAR(got.logprobs[i], want(static_cast<size_t>(got.tokens[i])), tolerance) << i;
      std::vector<double> sorted(n);
      for (size_t id = 0; id < n; ++id) sorted[id] = want(id);
      std::partial_sort(sorted.begin(), sorted.begin() + kTop, sorted.end(), std::greater<>());
      for (size_t rank = 0; rank < kTop; ++rank) {
        const size_t at = i * kTop + rank;
        ASSERT_GE(got.top_ids[at], 0) << n << " row " << i << " rank " << rank;
        EXPECT_NEAR(got.top_logprobs[at], sorted[rank], tolerance) << n << " row " << i;
        EXPECT_NEAR(got.top_logprobs[at], want(static_cast<size_t>(got.top_ids[at])), tolerance);
      }
    }
  }
  EXPECT_GT(masked, 0);
}

}  // namespace
}  // namespace espalier::kernels
