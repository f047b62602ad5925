// Experts that are spread over ranks: the parts that ranges of experts compute of a layer add up to
// what all experts compute, in the kernels for many rows and in those for few.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "kernels/activation/cuda.h"
#include "kernels/cuda/test_device.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/cuda_small_batch.h"
#include "kernels/moe/test_values.h"
#include "kernels/router/cuda.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;
using test::read;
using test::Values;

struct ExpertRange {
  int32_t first = 0, count = 0;
};

// All experts in ranges of random sizes.
std::vector<ExpertRange> random_ranges(Rng& rng, int32_t num_experts, int32_t most) {
  std::vector<ExpertRange> out;
  for (int32_t first = 0; first < num_experts; first += out.back().count) {
    const int32_t left = num_experts - first;
    const bool last = std::ssize(out) + 1 == most;
    out.push_back({first, last ? left : static_cast<int32_t>(rng.between(1, left))});
  }
  return out;
}

enum class WeightForm : uint8_t { kFloat32, kBFloat16, kE4m3 };

// Matrices of `experts`, [rows, columns] each, one behind the other.
struct ExpertStack {
  Values values;
  std::optional<DeviceArray<float>> scales;  // of each row, where values are codes
  size_t row_bytes = 0, rows = 0;

  static ExpertStack random(Rng& rng, WeightForm form, int experts, int rows, int columns) {
    const int64_t count = int64_t{experts} * rows * columns;
    const DType type = form == WeightForm::kFloat32 ? DType::kFloat32 : DType::kBFloat16;
    Values values = Values::random(rng, type, count, 1 / std::sqrt(double(std::max(1, columns))));
    const size_t size = form == WeightForm::kE4m3 ? 1 : dtype_size(type);
    ExpertStack out{std::move(values), std::nullopt, static_cast<size_t>(columns) * size,
                    static_cast<size_t>(rows)};
    if (form != WeightForm::kE4m3 || count == 0) return out;
    test::RoundedRows rounded = test::rounded_rows(
        DeviceArray<BFloat16>(test::to_bfloat16s(out.values.host)), experts * rows, columns);
    return {{std::move(rounded.values), std::move(rounded.codes)},
            std::move(rounded.scales),
            out.row_bytes,
            out.rows};
  }
  const void* data(int32_t first) const {
    return values.device.get() + static_cast<size_t>(first) * rows * row_bytes;
  }
  const float* scales_of(int32_t first) const {
    return scales ? scales->get() + static_cast<size_t>(first) * rows : nullptr;
  }
};

// What a kernel counts of `count` experts' pairs in the first num_rows rows.
class PairCounts {
 public:
  PairCounts(int32_t count, int32_t num_rows)
      : pairs_(std::vector<unsigned long long>(static_cast<size_t>(count))),
        num_rows_(std::vector<int32_t>{num_rows}) {}
  cuda::PairCounter counter() const { return {.pairs = pairs_.get(), .num_rows = num_rows_.get()}; }
  std::vector<int64_t> read() const {
    const auto pairs = pairs_.read();
    return {pairs.begin(), pairs.end()};
  }

 private:
  const DeviceArray<unsigned long long> pairs_;
  const DeviceArray<int32_t> num_rows_;
};

struct RangeShape {
  int rows, top_k, experts, dim, ffn;
  WeightForm form = WeightForm::kBFloat16;
  bool row_invariant = false;
};

// A layer by the kernels for many rows: route and arrange, two grouped GEMMs, combine.
class ManyRows {
 public:
  ManyRows(Rng& rng, const RangeShape& s)
      : s_(s),
        type_(s.form == WeightForm::kFloat32 ? DType::kFloat32 : DType::kBFloat16),
        x_(Values::random(rng, type_, int64_t{s.rows} * s.dim)),
        logits_(test::random_floats(rng, int64_t{s.rows} * s.experts, 2.0)),
        gate_up_(ExpertStack::random(rng, s.form, s.experts, 2 * s.ffn, s.dim)),
        down_(ExpertStack::random(rng, s.form, s.experts, s.dim, s.ffn)),
        counted_rows_(static_cast<int32_t>(rng.between(0, s.rows))) {}

  // The part of the layer that `range` computes.
  std::vector<float> run(const ExpertRange& range) {
    const auto pairs = static_cast<size_t>(s_.rows * s_.top_k);
    const DeviceArray<int32_t> ids(pairs), slots(pairs), order(pairs);
    const DeviceArray<int32_t> begins(static_cast<size_t>(range.count) + 1),
        tiles(static_cast<size_t>(range.count) + 1);
    const DeviceArray<float> weights(pairs);
    const cuda::ExpertPlan plan{slots.get(), order.get(), begins.get(), tiles.get()};
    const PairCounts counts(range.count, counted_rows_);
    arrange(range, plan, ids, weights, counts);
    expect_ranged(range, ids.read(), slots.read(), order.read(), begins.read());
    expect_counted(range, ids.read(), counts.read());
    const DeviceArray<uint8_t> inner = gated(range, plan);
    const DeviceArray<uint8_t> outer = linear(range, plan, down_, inner, s_.ffn, s_.dim, false);
    const DeviceArray<uint8_t> y(static_cast<size_t>(s_.rows * s_.dim) * dtype_size(type_));
    EXPECT_TRUE(cuda::combine({.type = type_,
                               .x = outer.get(),
                               .slots = slots.get(),
                               .weights = weights.get(),
                               .top_k = s_.top_k,
                               .lacks_slots = range.count < s_.experts,
                               .y = y.get(),
                               .rows = s_.rows,
                               .dim = s_.dim},
                              {.pdl = true})
                    .ok());
    return read(y, type_);
  }

 private:
  void arrange(const ExpertRange& range, const cuda::ExpertPlan& plan,
               const DeviceArray<int32_t>& ids, const DeviceArray<float>& weights,
               const PairCounts& counts) const {
    const RouterSpec spec{.num_experts = s_.experts, .top_k = s_.top_k, .normalise = true};
    const Status status = cuda::route_and_arrange({.spec = spec,
                                                   .logits = logits_.get(),
                                                   .rows = s_.rows,
                                                   .experts = ids.get(),
                                                   .weights = weights.get()},
                                                  {.experts = ids.get(),
                                                   .num_pairs = s_.rows * s_.top_k,
                                                   .num_experts = s_.experts,
                                                   .first_local = range.first,
                                                   .num_local = range.count,
                                                   .plan = plan,
                                                   .counts = counts.counter(),
                                                   .pairs_per_row = s_.top_k},
                                                  {.pdl = true});
    ASSERT_TRUE(status.ok()) << status.to_string();
  }

  static void expect_ranged(const ExpertRange& range, const std::vector<int32_t>& ids,
                            const std::vector<int32_t>& slots, const std::vector<int32_t>& order,
                            const std::vector<int32_t>& begins) {
    std::vector<int32_t> counts(static_cast<size_t>(range.count));
    for (size_t pair = 0; pair < ids.size(); ++pair) {
      const int32_t local = ids[pair] - range.first;
      if (local < 0 || local >= range.count) {
        EXPECT_EQ(slots[pair], cuda::kNoSlot) << "pair " << pair;
        continue;
      }
      ++counts[static_cast<size_t>(local)];
      ASSERT_GE(slots[pair], begins[static_cast<size_t>(local)]);
      ASSERT_LT(slots[pair], begins[static_cast<size_t>(local) + 1]);
      EXPECT_EQ(order[static_cast<size_t>(slots[pair])], static_cast<int32_t>(pair));
    }
    for (size_t i = 0; i < counts.size(); ++i) EXPECT_EQ(begins[i + 1] - begins[i], counts[i]);
  }

  void expect_counted(const ExpertRange& range, const std::vector<int32_t>& ids,
                      const std::vector<int64_t>& got) const {
    std::vector<int64_t> want(static_cast<size_t>(range.count));
    for (int pair = 0; pair < counted_rows_ * s_.top_k; ++pair) {
      const int32_t local = ids[static_cast<size_t>(pair)] - range.first;
      if (local >= 0 && local < range.count) ++want[static_cast<size_t>(local)];
    }
    EXPECT_EQ(got, want) << counted_rows_ << " rows";
  }

  // Rows of e4m3 of `from`, where the matrices are codes.
  struct Rounded {
    DeviceArray<uint8_t> codes;
    DeviceArray<float> scales;
  };
  // num_used: of the rows, on the device; null: all.
  static Rounded rounded(const DeviceArray<uint8_t>& from, int rows, int dim,
                         const int32_t* num_used) {
    Rounded out{DeviceArray<uint8_t>(static_cast<size_t>(rows * dim)),
                DeviceArray<float>(static_cast<size_t>(rows))};
    EXPECT_TRUE(cuda::quantize_rows({.x = from.get(),
                                     .x_stride = dim,
                                     .y = out.codes.get(),
                                     .scales = out.scales.get(),
                                     .rows = rows,
                                     .dim = dim,
                                     .num_used = num_used},
                                    {})
                    .ok());
    return out;
  }

  // `activates`: with the activation, where the device's kernels fuse it.
  DeviceArray<uint8_t> linear(const ExpertRange& range, const cuda::ExpertPlan& plan,
                              const ExpertStack& stack, const DeviceArray<uint8_t>& x, int in,
                              int out, bool activates) const {
    const int pairs = s_.rows * s_.top_k, columns = activates ? out / 2 : out;
    const bool by_token = &stack == &gate_up_;
    DeviceArray<uint8_t> y(static_cast<size_t>(pairs * columns) * dtype_size(type_));
    cuda::GroupedArgs args{.type = type_,
                           .num_groups = range.count,
                           .num_experts = s_.experts,
                           .in_features = in,
                           .out_features = out,
                           .x = x.get(),
                           .x_stride = in,
                           .weights = stack.data(range.first),
                           .weights_stride = int64_t{in} * out,
                           .y = y.get(),
                           .y_stride = columns,
                           .row_invariant = s_.row_invariant,
                           .plan = &plan,
                           .num_pairs = pairs,
                           .pairs_per_row = by_token ? s_.top_k : 0};
    std::optional<Rounded> codes;
    if (stack.scales) {
      codes.emplace(by_token ? rounded(x, s_.rows, in, nullptr)
                             : rounded(x, pairs, in, plan.begins + range.count));
      args.x = codes->codes.get(), args.x_scales = codes->scales.get();
      args.weight_scales = stack.scales_of(range.first);
    }
    if (activates) args.activation = Activation::kSilu;
    const Status status = cuda::grouped_linear(args, {.pdl = true});
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return y;
  }

  DeviceArray<uint8_t> gated(const ExpertRange& range, const cuda::ExpertPlan& plan) const {
    const auto traits = cuda::device_traits();
    const bool hopper = traits && traits->compute_capability == 90;
    const bool codes = s_.form == WeightForm::kE4m3;
    if (hopper && (codes || (s_.form == WeightForm::kBFloat16 && !s_.row_invariant)))
      return linear(range, plan, gate_up_, x_.device, s_.dim, 2 * s_.ffn, true);
    const auto both = linear(range, plan, gate_up_, x_.device, s_.dim, 2 * s_.ffn, false);
    const auto pairs = static_cast<size_t>(s_.rows * s_.top_k);
    const size_t half = static_cast<size_t>(s_.ffn) * dtype_size(type_);
    DeviceArray<uint8_t> y(pairs * half);
    EXPECT_TRUE(cuda::gated({.type = type_,
                             .gate = both.get(),
                             .gate_stride = 2 * s_.ffn,
                             .up = both.get() + half,
                             .up_stride = 2 * s_.ffn,
                             .y = y.get(),
                             .y_stride = s_.ffn,
                             .rows = static_cast<int32_t>(pairs),
                             .dim = s_.ffn,
                             .activation = Activation::kSilu},
                            {})
                    .ok());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    return y;
  }

  const RangeShape s_;
  const DType type_;
  const Values x_;
  const DeviceArray<float> logits_;
  const ExpertStack gate_up_, down_;
  const int32_t counted_rows_;  // the others stand for padding
};

void add_part(const std::vector<float>& values, std::vector<float>& to) {
  if (to.empty()) to.resize(values.size());
  for (size_t i = 0; i < values.size(); ++i) to[i] += values[i];
}

class CudaExpertRanges : public test::OnDevice {
 protected:
  int pick(int low, int high) { return static_cast<int>(rng_.between(low, high)); }
  bool is_hopper() {
    const auto traits = cuda::device_traits();
    return traits && traits->compute_capability == 90;
  }
  void check(const RangeShape& s) {
    ManyRows layer(rng_, s);
    const auto ranges = random_ranges(rng_, s.experts, pick(2, 4));
    SCOPED_TRACE(fmt::format("{} rows, {} of {} experts in {} ranges, {} x {}, form {}, {}", s.rows,
                             s.top_k, s.experts, ranges.size(), s.dim, s.ffn,
                             static_cast<int>(s.form), s.row_invariant ? "invariant" : ""));
    const std::vector<float> want = layer.run({0, s.experts});
    std::vector<float> sum;
    for (const ExpertRange& range : ranges) add_part(layer.run(range), sum);
    EXPECT_LT(test::relative_error(sum, want), s.form == WeightForm::kFloat32 ? 1e-6 : 0.004);
  }
};

TEST_F(CudaExpertRanges, AddUpToAllExpertsInFloat32) {
  for (const int rows : {1, 9, 130, 300})
    check({.rows = rows,
           .top_k = pick(1, 4),
           .experts = pick(4, 20),
           .dim = 8 * pick(1, 20),
           .ffn = 8 * pick(1, 20),
           .form = WeightForm::kFloat32});
}

// Few rows an expert, many, and kernels whose rows do not depend on others.
TEST_F(CudaExpertRanges, AddUpToAllExpertsInBFloat16) {
  for (const int rows : {1, 5, 40, 300, 1100, 3000})
    for (const bool invariant : {false, true})
      check({.rows = rows,
             .top_k = pick(1, 6),
             .experts = rows > 500 ? pick(6, 12) : pick(8, 64),
             .dim = 16 * pick(1, 30),
             .ffn = 16 * pick(1, 30),
             .row_invariant = invariant});
}

TEST_F(CudaExpertRanges, AddUpToAllExpertsInE4m3) {
  if (!is_hopper()) GTEST_SKIP() << "SKIPPED: GEMMs of e4m3 need code for Hopper";
  for (const int rows : {1, 5, 40, 300, 1100, 3000})
    for (const bool invariant : {false, true})
      check({.rows = rows,
             .top_k = pick(1, 6),
             .experts = rows > 500 ? pick(6, 12) : pick(8, 64),
             .dim = 16 * pick(1, 30),
             .ffn = 16 * pick(1, 30),
             .form = WeightForm::kE4m3,
             .row_invariant = invariant});
}

// Matrices that Qwen3-30B-A3B has, in halves.
TEST_F(CudaExpertRanges, AddUpInSizesThatModelsHave) {
  for (const WeightForm form : {WeightForm::kBFloat16, WeightForm::kE4m3}) {
    if (form == WeightForm::kE4m3 && !is_hopper()) continue;
    for (const int rows : {form == WeightForm::kE4m3 ? 16 : 200, 1500}) {
      const RangeShape s{
          .rows = rows, .top_k = 2, .experts = 4, .dim = 2048, .ffn = 768, .form = form};
      ManyRows layer(rng_, s);
      const std::vector<float> want = layer.run({0, 4});
      std::vector<float> sum = layer.run({0, 2});
      add_part(layer.run({2, 2}), sum);
      EXPECT_LT(test::relative_error(sum, want), 0.004) << rows << " rows";
    }
  }
}

TEST_F(CudaExpertRanges, RefuseExpertsThatAreNotThere) {
  const DeviceArray<int32_t> ids(4), slots(4), order(4), begins(8), tiles(8);
  cuda::ArrangeArgs args{.experts = ids.get(),
                         .num_pairs = 4,
                         .num_experts = 6,
                         .plan = {slots.get(), order.get(), begins.get(), tiles.get()}};
  for (const ExpertRange& range :
       {ExpertRange{-1, 2}, ExpertRange{5, 2}, ExpertRange{6, 0}, ExpertRange{0, 7}}) {
    args.first_local = range.first, args.num_local = range.count;
    EXPECT_EQ(cuda::arrange(args, {}).code(), StatusCode::kInvalidArgument)
        << range.first << ", " << range.count;
  }
}

struct FewShape {
  int rows, top_k, experts, dim, ffn, shared_ffn;
  bool e4m3, bias;
};

// A layer by the kernels for few rows. The first range adds the shared expert and the residual.
class FewRows {
 public:
  FewRows(Rng& rng, const FewShape& s)
      : s_(s),
        x_(Values::random(rng, DType::kBFloat16, int64_t{s.rows} * s.dim)),
        residual_(Values::random(rng, DType::kBFloat16, int64_t{s.rows} * s.dim)),
        norm_(Values::random(rng, DType::kBFloat16, s.dim)),
        up_bias_(Values::random(rng, DType::kBFloat16, int64_t{2} * s.experts * s.ffn)),
        down_bias_(Values::random(rng, DType::kBFloat16, int64_t{1} * s.experts * s.dim)),
        gate_up_(ExpertStack::random(rng, form(), s.experts, 2 * s.ffn, s.dim)),
        down_(ExpertStack::random(rng, form(), s.experts, s.dim, s.ffn)),
        shared_gate_up_(ExpertStack::random(rng, form(), 1, 2 * s.shared_ffn, s.dim)),
        shared_down_(ExpertStack::random(rng, form(), 1, s.dim, s.shared_ffn)),
        router_(test::random_floats(rng, int64_t{s.experts} * s.dim, 2 / std::sqrt(s.dim))) {}

  // counted: gets what the kernels count of each expert of the range.
  std::vector<float> run(const ExpertRange& range, std::vector<int64_t>& counted) const {
    const auto rows = static_cast<size_t>(s_.rows), dim = static_cast<size_t>(s_.dim);
    const DeviceArray<uint8_t> y(rows * dim * 2), normed(rows * dim * 2);
    const DeviceArray<float> scores(rows * static_cast<size_t>(s_.experts)), gates(rows);
    const DeviceArray<uint8_t> inner(rows * static_cast<size_t>(s_.top_k * s_.ffn) * 2);
    const DeviceArray<uint8_t> shared_inner(rows * static_cast<size_t>(s_.shared_ffn) * 2 + 16);
    cuda::SmallBatchMoeArgs args = experts(range);
    args.y = y.get(), args.normed = normed.get(), args.scores = scores.get();
    args.shared_gate = gates.get(), args.inner = inner.get();
    args.shared_inner = shared_inner.get();
    const PairCounts counts(range.count, s_.rows - 1);
    args.counts = counts.counter();
    const auto takes = cuda::small_batch_moe_supports(args);
    EXPECT_TRUE(takes && *takes);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(cuda::small_batch_moe(args, {.pdl = i > 0}).ok());
    counted = counts.read();
    return read(y, DType::kBFloat16);
  }

 private:
  WeightForm form() const { return s_.e4m3 ? WeightForm::kE4m3 : WeightForm::kBFloat16; }

  cuda::SmallBatchMoeArgs experts(const ExpertRange& range) const {
    const auto bias_at = [&](const Values& bias, int each) {
      return s_.bias ? bias.device.get() + int64_t{2} * range.first * each : nullptr;
    };
    cuda::SmallBatchMoeArgs args{
        .rows = s_.rows,
        .dim = s_.dim,
        .x = x_.device.get(),
        .norm_weight = norm_.device.get(),
        .router = {.num_experts = s_.experts, .top_k = s_.top_k, .normalise = true},
        .first_local = range.first,
        .num_local = range.count,
        .router_weights = router_.get(),
        .ffn = s_.ffn,
        .gate_up = gate_up_.data(range.first),
        .gate_up_bias = bias_at(up_bias_, 2 * s_.ffn),
        .down = down_.data(range.first),
        .down_bias = bias_at(down_bias_, s_.dim),
        .gate_up_scales = gate_up_.scales_of(range.first),
        .down_scales = down_.scales_of(range.first)};
    if (range.first > 0) return args;
    args.residual = residual_.device.get();
    if (s_.shared_ffn == 0) return args;
    args.shared_ffn = s_.shared_ffn;
    args.shared_gate_up = shared_gate_up_.data(0), args.shared_down = shared_down_.data(0);
    args.shared_gate_up_scales = shared_gate_up_.scales_of(0);
    args.shared_down_scales = shared_down_.scales_of(0);
    return args;
  }

  const FewShape s_;
  const Values x_, residual_, norm_, up_bias_, down_bias_;
  const ExpertStack gate_up_, down_, shared_gate_up_, shared_down_;
  const DeviceArray<float> router_;
};

// Ranges of one expert are among them, which no row may have chosen.
TEST_F(CudaExpertRanges, OfSmallBatchesAddUp) {
  if (!is_hopper()) GTEST_SKIP() << "small_batch_moe() is for Hopper";
  for (int round = 0; round < 40; ++round) {
    FewShape s{.rows = round % cuda::kSmallBatchMoeRows + 1,
               .top_k = 1,
               .experts = pick(2, 40),
               .dim = 16 * pick(1, 20),
               .ffn = 16 * pick(1, 20),
               .shared_ffn = round % 3 == 0 ? 16 * pick(1, 20) : 0,
               .e4m3 = round % 8 >= 4,
               .bias = round % 5 == 0};
    s.top_k = pick(1, std::min(s.experts, cuda::kSmallBatchMoePairs / s.rows));
    SCOPED_TRACE(fmt::format("round {}: {} rows, {} of {} experts, {} x {}, {} shared, e4m3 {}",
                             round, s.rows, s.top_k, s.experts, s.dim, s.ffn, s.shared_ffn,
                             s.e4m3));
    const FewRows layer(rng_, s);
    std::vector<float> sum;
    std::vector<int64_t> counts, of_range, all;
    for (const ExpertRange& range : random_ranges(rng_, s.experts, pick(2, 5))) {
      add_part(layer.run(range, of_range), sum);
      counts.insert(counts.end(), of_range.begin(), of_range.end());
    }
    EXPECT_LT(test::relative_error(sum, layer.run({0, s.experts}, all)), 0.006);
    EXPECT_EQ(counts, all);
    EXPECT_EQ(std::accumulate(all.begin(), all.end(), int64_t{}), 3 * (s.rows - 1) * s.top_k)
        << "three launches, the last row is padding";
  }
}

}  // namespace
}  // namespace espalier::kernels
