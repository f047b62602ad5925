// Mixture of experts on the GPU against slow loops over the same inputs: routing, the GEMMs of
// every (token, expert) pair, the combination; and weights of another layout in a checkpoint.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/activation/cuda.h"
#include "kernels/activation/op.h"
#include "kernels/cuda/test_device.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/cuda_small_batch.h"
#include "kernels/moe/test_values.h"
#include "kernels/relayout/cuda.h"
#include "kernels/router/cuda.h"
#include "kernels/router/op.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;
using test::read;
using test::Values;

double tolerance(DType type) { return type == DType::kFloat32 ? 1e-5 : 0.004; }

class CudaMoe : public test::OnDevice {
 protected:
  static constexpr DType kTypes[] = {DType::kBFloat16, DType::kFloat32};
  int pick(int low, int high) { return static_cast<int>(rng_.between(low, high)); }
};

TEST_F(CudaMoe, RouteSelectsAsTheCpuDoes) {
  for (int round = 0; round < 60; ++round) {
    RouterSpec spec{.num_experts = pick(1, 16) * pick(1, 16)};
    const int groups = pick(1, 4);
    if (round % 2 == 1 && spec.num_experts % groups == 0) {
      spec.num_groups = groups;
      spec.top_groups = pick(1, groups);
      spec.group_by_two = round % 4 == 1;
    }
    spec.top_k = pick(1, std::min(8, spec.num_experts / spec.num_groups * spec.top_groups));
    spec.scoring = round % 3 == 0 ? RouterSpec::Scoring::kSigmoid : RouterSpec::Scoring::kSoftmax;
    spec.normalise = round % 5 < 2;
    spec.scale = round % 7 == 0 ? 2.5f : 1.0f;
    spec.correction = round % 3 == 0;
    const int rows = pick(1, 40), k = spec.top_k;
    auto logits = test::random_floats(rng_, int64_t{rows} * spec.num_experts, 2.0);
    for (float& value : logits)
      if (rng_.between(0, 9) == 0) value = 1.0f;  // ties
    const auto correction = test::random_floats(rng_, spec.num_experts, 0.3);
    std::vector<int32_t> want_ids(static_cast<size_t>(rows * k));
    std::vector<float> want(want_ids.size());
    route(spec, {.logits = logits.data(),
                 .rows = rows,
                 .correction = spec.correction ? correction.data() : nullptr,
                 .experts = want_ids.data(),
                 .weights = want.data()});
    const DeviceArray<float> d_logits(logits), d_correction(correction);
    const DeviceArray<int32_t> ids(want_ids.size());
    const DeviceArray<float> weights(want.size());
    ASSERT_TRUE(cuda::route({.spec = spec,
                             .logits = d_logits.get(),
                             .rows = rows,
                             .correction = spec.correction ? d_correction.get() : nullptr,
                             .experts = ids.get(),
                             .weights = weights.get()},
                            {.pdl = round % 2 == 0})
                    .ok());
    // The two exponentials differ in their last bits: selections that depend on those are not
    // compared.
    const auto got_ids = ids.read();
    const auto got = weights.read();
    int differing = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      differing += got_ids[i] != want_ids[i] ? 1 : 0;
      if (got_ids[i] == want_ids[i]) {
        EXPECT_NEAR(got[i], want[i], 2e-5f) << "round " << round;
      }
    }
    EXPECT_LE(differing, static_cast<int>(want.size()) / 50) << "round " << round;
  }
}

TEST_F(CudaMoe, RouteGivesNanForRowsThatHoldOne) {
  const RouterSpec spec{.num_experts = 6, .top_k = 2, .normalise = true};
  std::vector<float> logits(12, 0.5f);
  logits[8] = NAN;
  const DeviceArray<float> d_logits(logits), weights(4);
  const DeviceArray<int32_t> ids(4);
  ASSERT_TRUE(cuda::route({.spec = spec,
                           .logits = d_logits.get(),
                           .rows = 2,
                           .experts = ids.get(),
                           .weights = weights.get()},
                          {})
                  .ok());
  EXPECT_EQ(weights.read()[0], 0.5f);
  EXPECT_TRUE(std::isnan(weights.read()[2]));
  EXPECT_TRUE(std::isnan(weights.read()[3]));
  for (const int32_t id : ids.read()) EXPECT_TRUE(id >= 0 && id < 6) << id;
}

TEST_F(CudaMoe, ScoresAreMatmulsInFloat32) {
  for (const DType type : kTypes) {
    for (const int rows : {1, 7, 8, 33}) {
      const int dim = 8 * pick(1, 80), outputs = pick(1, 40), stride = dim + 8 * pick(0, 2);
      const Values x = Values::random(rng_, type, int64_t{rows} * stride);
      const auto weights = test::random_floats(rng_, int64_t{outputs} * dim);
      const auto bias = test::random_floats(rng_, outputs);
      const DeviceArray<float> d_weights(weights), d_bias(bias);
      const DeviceArray<float> y(static_cast<size_t>(rows * outputs));
      const bool with_bias = rows % 2 == 1;
      ASSERT_TRUE(cuda::score({.type = type,
                               .x = x.device.get(),
                               .x_stride = stride,
                               .weights = d_weights.get(),
                               .bias = with_bias ? d_bias.get() : nullptr,
                               .y = y.get(),
                               .rows = rows,
                               .dim = dim,
                               .outputs = outputs},
                              {})
                      .ok());
      std::vector<float> want;
      for (int row = 0; row < rows; ++row)
        for (int o = 0; o < outputs; ++o) {
          double sum = with_bias ? bias[static_cast<size_t>(o)] : 0;
          for (int i = 0; i < dim; ++i)
            sum += double{x.host[static_cast<size_t>(row * stride + i)]} *
                   weights[static_cast<size_t>(o * dim + i)];
          want.push_back(static_cast<float>(sum));
        }
      EXPECT_LT(test::relative_error(y.read(), want), 1e-5) << rows << " x " << dim;
    }
  }
}

// Rows through their top-k experts and back, in all sizes of tiles, with experts that no row
// selected; shared experts, gates, residuals.
class ExpertsCase {
 public:
  int rows, top_k, experts, dim, ffn;
  DType type;

  void run(Rng& rng, bool bias, bool shared, bool residual) const {
    const int pairs = rows * top_k;
    const Values x = Values::random(rng, type, int64_t{rows} * dim);
    const Values weights =
        Values::random(rng, type, int64_t{experts} * ffn * dim, 1 / std::sqrt(double(dim)));
    const Values back =
        Values::random(rng, type, int64_t{experts} * dim * ffn, 1 / std::sqrt(double(ffn)));
    const Values biases = Values::random(rng, type, int64_t{experts} * ffn);
    std::vector<int32_t> chosen;
    for (int row = 0; row < rows; ++row) {
      std::vector<int32_t> ids(static_cast<size_t>(experts));
      for (int e = 0; e < experts; ++e) ids[static_cast<size_t>(e)] = e;
      // A few experts are selected by most rows, so that the numbers of rows differ.
      const int most = rng.between(0, 3) == 0 ? experts : std::max(top_k, experts / 3);
      for (int i = 0; i < top_k; ++i)
        std::swap(ids[static_cast<size_t>(i)], ids[static_cast<size_t>(rng.between(i, most - 1))]);
      std::sort(ids.begin(), ids.begin() + top_k);
      chosen.insert(chosen.end(), ids.begin(), ids.begin() + top_k);
    }
    const auto mix = test::random_floats(rng, pairs);
    const auto gates = test::random_floats(rng, rows);
    const Values also = Values::random(rng, type, int64_t{rows} * dim);
    const Values before = Values::random(rng, type, int64_t{rows} * dim);

    const DeviceArray<int32_t> d_chosen(chosen), slots(chosen.size()), order(chosen.size());
    const DeviceArray<int32_t> begins(static_cast<size_t>(experts) + 1);
    const DeviceArray<int32_t> tiles(static_cast<size_t>(experts) + 1);
    const DeviceArray<float> d_mix(mix), d_gates(gates);
    const size_t size = dtype_size(type);
    const DeviceArray<uint8_t> inner(static_cast<size_t>(pairs * ffn) * size);
    const DeviceArray<uint8_t> outer(static_cast<size_t>(pairs * dim) * size);
    const DeviceArray<uint8_t> y(static_cast<size_t>(rows * dim) * size);
    const cuda::ExpertPlan plan{slots.get(), order.get(), begins.get(), tiles.get()};
    ASSERT_TRUE(
        cuda::arrange(
            {.experts = d_chosen.get(), .num_pairs = pairs, .num_experts = experts, .plan = plan},
            {})
            .ok());
    const cuda::GroupedArgs first{.type = type,
                                  .num_groups = experts,
                                  .in_features = dim,
                                  .out_features = ffn,
                                  .x = x.device.get(),
                                  .x_stride = dim,
                                  .weights = weights.device.get(),
                                  .weights_stride = int64_t{ffn} * dim,
                                  .bias = bias ? biases.device.get() : nullptr,
                                  .y = inner.get(),
                                  .y_stride = ffn,
                                  .plan = &plan,
                                  .num_pairs = pairs,
                                  .pairs_per_row = top_k};
    ASSERT_TRUE(cuda::grouped_linear(first, {}).ok());
    ASSERT_TRUE(cuda::grouped_linear({.type = type,
                                      .num_groups = experts,
                                      .in_features = ffn,
                                      .out_features = dim,
                                      .x = inner.get(),
                                      .x_stride = ffn,
                                      .weights = back.device.get(),
                                      .weights_stride = int64_t{ffn} * dim,
                                      .y = outer.get(),
                                      .y_stride = dim,
                                      .plan = &plan,
                                      .num_pairs = pairs},
                                     {.pdl = true})
                    .ok());
    ASSERT_TRUE(cuda::combine({.type = type,
                               .x = outer.get(),
                               .slots = slots.get(),
                               .weights = d_mix.get(),
                               .top_k = top_k,
                               .shared = shared ? also.device.get() : nullptr,
                               .shared_gate = shared && bias ? d_gates.get() : nullptr,
                               .residual = residual ? before.device.get() : nullptr,
                               .y = y.get(),
                               .rows = rows,
                               .dim = dim,
                               .scale = residual ? 0.5f : 1.0f},
                              {})
                    .ok());
    const auto got_inner = read(inner, type);
    const auto got_slots = slots.read();
    std::vector<float> want(static_cast<size_t>(rows * dim));
    std::vector<float> want_inner(got_inner.size());
    for (int row = 0; row < rows; ++row) {
      std::vector<double> sum(static_cast<size_t>(dim));
      for (int j = 0; j < top_k; ++j) {
        const auto pair = static_cast<size_t>(row * top_k + j);
        const int64_t expert = chosen[pair], slot = got_slots[pair];
        ASSERT_TRUE(slot >= 0 && slot < pairs);
        for (int o = 0; o < ffn; ++o) {
          double value = bias ? biases.host[static_cast<size_t>(expert * ffn + o)] : 0;
          for (int i = 0; i < dim; ++i)
            value += double{x.host[static_cast<size_t>(row * dim + i)]} *
                     weights.host[static_cast<size_t>((expert * ffn + o) * dim + i)];
          want_inner[static_cast<size_t>(slot * ffn + o)] = static_cast<float>(value);
        }
        // From the values that the device rounded in between.
        for (int o = 0; o < dim; ++o) {
          double value = 0;
          for (int i = 0; i < ffn; ++i)
            value += double{got_inner[static_cast<size_t>(slot * ffn + i)]} *
                     back.host[static_cast<size_t>((expert * dim + o) * ffn + i)];
          sum[static_cast<size_t>(o)] += mix[pair] * value;
        }
      }
      for (int o = 0; o < dim; ++o) {
        const auto at = static_cast<size_t>(row * dim + o);
        const double gate = bias ? 1 / (1 + std::exp(-gates[static_cast<size_t>(row)])) : 1;
        double value = sum[static_cast<size_t>(o)] + (shared ? gate * also.host[at] : 0);
        if (residual) value = 0.5 * value + before.host[at];
        want[at] = static_cast<float>(value);
      }
    }
    EXPECT_LT(test::relative_error(got_inner, want_inner), tolerance(type));
    EXPECT_LT(test::relative_error(read(y, type), want), 2 * tolerance(type));
  }
};

TEST_F(CudaMoe, RowsGoThroughTheirTopKExperts) {
  for (const DType type : kTypes) {
    for (const int rows : {1, 2, 5, 40, 130, 300}) {
      const int experts = rows > 100 ? 3 : pick(2, 20);
      const ExpertsCase c{.rows = rows,
                          .top_k = pick(1, std::min(4, experts)),
                          .experts = experts,
                          .dim = 8 * pick(1, 25),
                          .ffn = 8 * pick(1, 25),
                          .type = type};
      SCOPED_TRACE(fmt::format("{} rows, {} of {} experts, {} x {}, {}", c.rows, c.top_k, c.experts,
                               c.dim, c.ffn, dtype_name(type)));
      c.run(rng_, rows % 2 == 1, rows % 3 != 0, rows % 4 != 0);
    }
  }
}

TEST_F(CudaMoe, GroupsOfEqualRowsHaveTheirOwnMatrices) {
  for (const DType type : kTypes) {
    for (const int rows : {1, 3, 70, 200}) {
      const int groups = pick(1, 5), in = 8 * pick(1, 20), out = 2 * pick(1, 80);
      const int x_stride = groups * in + 8, y_stride = groups * out + 2;
      const Values x = Values::random(rng_, type, int64_t{rows} * x_stride);
      const Values weights = Values::random(rng_, type, int64_t{groups} * out * in);
      const DeviceArray<uint8_t> y(static_cast<size_t>(rows * y_stride) * dtype_size(type));
      ASSERT_TRUE(cuda::grouped_linear({.type = type,
                                        .num_groups = groups,
                                        .in_features = in,
                                        .out_features = out,
                                        .x = x.device.get(),
                                        .x_stride = x_stride,
                                        .weights = weights.device.get(),
                                        .weights_stride = int64_t{out} * in,
                                        .y = y.get(),
                                        .y_stride = y_stride,
                                        .rows = rows,
                                        .x_group_stride = in,
                                        .y_group_stride = out},
                                       {})
                      .ok());
      std::vector<float> got, want;
      const auto all = read(y, type);
      for (int row = 0; row < rows; ++row)
        for (int g = 0; g < groups; ++g)
          for (int o = 0; o < out; ++o) {
            double sum = 0;
            for (int i = 0; i < in; ++i)
              sum += double{x.host[static_cast<size_t>(row * x_stride + g * in + i)]} *
                     weights.host[static_cast<size_t>((g * out + o) * in + i)];
            want.push_back(static_cast<float>(sum));
            got.push_back(all[static_cast<size_t>(row * y_stride + g * out + o)]);
          }
      EXPECT_LT(test::relative_error(got, want), tolerance(type)) << rows << " rows";
    }
  }
}

TEST_F(CudaMoe, ActivationsAreThoseOfTheCpu) {
  for (const DType type : kTypes) {
    for (const Activation activation :
         {Activation::kSilu, Activation::kGeluTanh, Activation::kClampedSwiglu}) {
      for (const int dim : {1, 24, 41, 512}) {
        const bool alone = activation != Activation::kClampedSwiglu && dim % 3 == 0;
        const int rows = pick(1, 9), stride = 2 * dim;
        auto inputs = test::random_floats(rng_, int64_t{rows} * stride, 4.0);
        // A result of size 6: where gates are negative all results may be what tanh's rounding
        // left.
        inputs[0] = 3, inputs[static_cast<size_t>(dim)] = 2;
        const Values both = Values::of(std::move(inputs), type);
        std::vector<float> want(static_cast<size_t>(rows * dim));
        reference::gated({.activation = activation,
                          .limit = 3,
                          .gate = both.host.data(),
                          .gate_stride = stride,
                          .up = alone ? nullptr : both.host.data() + dim,
                          .up_stride = stride,
                          .y = want.data(),
                          .y_stride = dim,
                          .rows = rows,
                          .dim = dim});
        const DeviceArray<uint8_t> y(want.size() * dtype_size(type));
        ASSERT_TRUE(cuda::gated({.type = type,
                                 .gate = both.device.get(),
                                 .gate_stride = stride,
                                 .up = alone ? nullptr
                                             : both.device.get() +
                                                   static_cast<size_t>(dim) * dtype_size(type),
                                 .up_stride = stride,
                                 .y = y.get(),
                                 .y_stride = dim,
                                 .rows = rows,
                                 .dim = dim,
                                 .activation = activation,
                                 .limit = 3},
                                {})
                        .ok());
        EXPECT_LT(test::relative_error(read(y, type), want), tolerance(type))
            << static_cast<int>(activation) << ", " << dim;
      }
    }
  }
}

TEST_F(CudaMoe, RelayoutTurnsPartsAndWidens) {
  for (const DType type : kTypes) {
    for (int round = 0; round < 8; ++round) {
      const int groups = pick(1, 3), rows = 2 * pick(1, 60), columns = round == 0 ? 1 : pick(1, 90);
      const bool interleaved = round % 2 == 1;
      const Values from = Values::random(rng_, type, int64_t{groups} * rows * columns);
      const DeviceArray<uint8_t> to(from.host.size() * dtype_size(type));
      ASSERT_TRUE(cuda::relayout({.type = type,
                                  .from = from.device.get(),
                                  .from_group_stride = int64_t{rows} * columns,
                                  .to = to.get(),
                                  .groups = groups,
                                  .rows = rows,
                                  .columns = columns,
                                  .interleaved = interleaved},
                                 {})
                      .ok());
      const auto got = read(to, type);
      for (int g = 0; g < groups; ++g)
        for (int r = 0; r < rows; ++r)
          for (int c = 0; c < columns; ++c) {
            const int row = interleaved ? r / 2 + r % 2 * (rows / 2) : r;
            ASSERT_EQ(got[static_cast<size_t>((g * rows + row) * columns + c)],
                      from.host[static_cast<size_t>((g * columns + c) * rows + r)]);
          }
    }
  }
}

TEST_F(CudaMoe, RelayoutWidensMxfp4) {
  constexpr float kValues[16] = {0,  0.5f,  1,  1.5f,  2,  3,  4,  6,
                                 -0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  const int groups = 2, rows = 6, columns = 96;
  std::vector<uint8_t> bytes(static_cast<size_t>(groups * rows * columns / 2));
  std::vector<uint8_t> scales(static_cast<size_t>(groups * rows * columns / 32));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(rng_.between(0, 255));
  for (uint8_t& scale : scales) scale = static_cast<uint8_t>(rng_.between(110, 140));
  const DeviceArray<uint8_t> d_bytes(bytes), d_scales(scales);
  for (const bool interleaved : {false, true}) {
    const DeviceArray<uint8_t> to(static_cast<size_t>(groups * rows * columns) * 2);
    ASSERT_TRUE(cuda::relayout({.kind = cuda::RelayoutArgs::From::kMxfp4,
                                .from = d_bytes.get(),
                                .scales = d_scales.get(),
                                .to = to.get(),
                                .groups = groups,
                                .rows = rows,
                                .columns = columns,
                                .interleaved = interleaved},
                               {})
                    .ok());
    const auto got = read(to, DType::kBFloat16);
    for (int i = 0; i < groups * rows * columns; ++i) {
      const int group = i / (rows * columns), r = i / columns % rows, c = i % columns;
      const int row = interleaved ? r / 2 + r % 2 * (rows / 2) : r;
      const int bits = bytes[static_cast<size_t>(i / 2)] >> (i % 2 * 4) & 15;
      const float want = std::ldexp(kValues[bits], scales[static_cast<size_t>(i / 32)] - 127);
      ASSERT_EQ(got[static_cast<size_t>((group * rows + row) * columns + c)], want) << i;
    }
  }
}

// A whole small-batch MoE layer: norm, scores, selection, experts, shared expert, residual.
struct FewCase {
  int rows, dim, ffn, shared_ffn;
  RouterSpec router;
  Activation activation;
  bool norm, bias, shared_gate, residual;
  bool e4m3 = false;  // the experts' matrices
};

class FewExperts {
 public:
  FewExperts(Rng& rng, const FewCase& of)
      : of_(of),
        x_(random(rng, int64_t{of.rows} * of.dim, 1.0)),
        norm_(random(rng, of.dim, 1.0)),
        gate_up_(matrix(rng, 2 * experts() * of.ffn, of.dim)),
        gate_up_bias_(random(rng, int64_t{2} * experts() * of.ffn, 0.5)),
        down_(matrix(rng, experts() * of.dim, of.ffn)),
        down_bias_(random(rng, int64_t{1} * experts() * of.dim, 0.5)),
        shared_gate_up_(matrix(rng, 2 * of.shared_ffn, of.dim)),
        shared_down_(matrix(rng, of.dim, of.shared_ffn)),
        residual_(random(rng, int64_t{of.rows} * of.dim, 1.0)),
        router_weights_(
            test::random_floats(rng, int64_t{experts()} * of.dim, 2 / std::sqrt(of.dim))),
        router_bias_(test::random_floats(rng, experts(), 0.5)),
        correction_(test::random_floats(rng, experts(), 0.3)),
        shared_gate_(test::random_floats(rng, of.dim, 1 / std::sqrt(of.dim))) {}

  cuda::SmallBatchMoeArgs args() const {
    return {.rows = of_.rows,
            .dim = of_.dim,
            .x = x_.device.get(),
            .norm_weight = of_.norm ? norm_.device.get() : nullptr,
            .norm_offset = kNormOffset,
            .router = of_.router,
            .router_weights = d_router_weights_.get(),
            .router_bias = of_.bias ? d_router_bias_.get() : nullptr,
            .correction = of_.router.correction ? d_correction_.get() : nullptr,
            .ffn = of_.ffn,
            .activation = of_.activation,
            .limit = kLimit,
            .gate_up = gate_up_.values.device.get(),
            .gate_up_bias = of_.bias ? gate_up_bias_.device.get() : nullptr,
            .down = down_.values.device.get(),
            .down_bias = of_.bias ? down_bias_.device.get() : nullptr,
            .gate_up_scales = gate_up_.scales_of_codes(),
            .down_scales = down_.scales_of_codes(),
            .shared_ffn = of_.shared_ffn,
            .shared_gate_up = of_.shared_ffn > 0 ? shared_gate_up_.values.device.get() : nullptr,
            .shared_down = of_.shared_ffn > 0 ? shared_down_.values.device.get() : nullptr,
            .shared_gate_up_scales = shared_gate_up_.scales_of_codes(),
            .shared_down_scales = shared_down_.scales_of_codes(),
            .shared_gate_weights = has_shared_gate() ? d_shared_gate_.get() : nullptr,
            .residual = of_.residual ? residual_.device.get() : nullptr,
            .y = y_.get(),
            .scale = kScale,
            .normed = normed_.get(),
            .scores = scores_.get(),
            .shared_gate = gates_.get(),
            .inner = inner_.get(),
            .shared_inner = shared_inner_.get()};
  }

  void check() const {
    const std::vector<float> n = normed();
    const std::vector<float> scores = scores_.read();
    EXPECT_LT(test::relative_error(scores, matmul(n, router_weights_, of_.rows, of_.dim, 0,
                                                  experts(), of_.bias ? &router_bias_ : nullptr)),
              2e-3);
    // Selections that depend on the scores' last bits are taken from the device.
    const int k = of_.router.top_k;
    std::vector<int32_t> chosen(static_cast<size_t>(of_.rows * k));
    std::vector<float> weights(chosen.size());
    route(of_.router, {.logits = scores.data(),
                       .rows = of_.rows,
                       .correction = of_.router.correction ? correction_.data() : nullptr,
                       .experts = chosen.data(),
                       .weights = weights.data()});
    std::vector<float> want;
    for (int row = 0; row < of_.rows; ++row) {
      const std::vector<float> in(n.begin() + int64_t{row} * of_.dim,
                                  n.begin() + int64_t{row + 1} * of_.dim);
      std::vector<double> sum(static_cast<size_t>(of_.dim));
      for (int i = 0; i < k; ++i) {
        const auto pair = static_cast<size_t>(row * k + i);
        add(mlp(in, gate_up_.values, down_.values, of_.ffn, chosen[pair], of_.bias), weights[pair],
            sum);
      }
      if (of_.shared_ffn > 0) {
        double gate = 0;
        for (size_t i = 0; i < in.size(); ++i) gate += double{in[i]} * shared_gate_[i];
        add(mlp(in, shared_gate_up_.values, shared_down_.values, of_.shared_ffn, 0, false),
            has_shared_gate() ? 1 / (1 + std::exp(-gate)) : 1, sum);
      }
      for (size_t i = 0; i < sum.size(); ++i) {
        const float before =
            of_.residual ? residual_.host[static_cast<size_t>(row * of_.dim) + i] : 0;
        want.push_back(static_cast<float>(before + kScale * sum[i]));
      }
    }
    EXPECT_LT(test::relative_error(read(y_, DType::kBFloat16), want), 0.006);
  }

  std::vector<uint8_t> bytes() const { return y_.read(); }

 private:
  static constexpr float kNormOffset = 0.5f, kScale = 0.75f, kLimit = 2;

  // Values repeat with a prime period, since drawing takes the test's time.
  static Values random(Rng& rng, int64_t count, double deviation) {
    std::vector<float> values =
        test::random_floats(rng, std::min<int64_t>(count, 65537), deviation);
    values.reserve(static_cast<size_t>(count));
    while (std::ssize(values) < count) values.push_back(values[values.size() - 65537]);
    return Values::of(std::move(values), DType::kBFloat16);
  }
  // In bfloat16, or codes with a scale for each row.
  struct Matrix {
    Values values;
    DeviceArray<float> scales;
    const float* scales_of_codes() const { return scales.size() > 0 ? scales.get() : nullptr; }
  };
  Matrix matrix(Rng& rng, int rows, int columns) const {
    Values values =
        random(rng, int64_t{rows} * columns, 1 / std::sqrt(double(std::max(1, columns))));
    if (!of_.e4m3 || values.host.empty()) return {std::move(values), DeviceArray<float>(0)};
    test::RoundedRows rounded =
        test::rounded_rows(DeviceArray<BFloat16>(test::to_bfloat16s(values.host)), rows, columns);
    return {{std::move(rounded.values), std::move(rounded.codes)}, std::move(rounded.scales)};
  }
  int experts() const { return of_.router.num_experts; }
  bool has_shared_gate() const { return of_.shared_ffn > 0 && of_.shared_gate; }

  std::vector<float> normed() const {
    if (!of_.norm) return x_.host;
    std::vector<float> out;
    for (int row = 0; row < of_.rows; ++row) {
      const float* x = x_.host.data() + int64_t{row} * of_.dim;
      double squares = 0;
      for (int i = 0; i < of_.dim; ++i) squares += double{x[i]} * x[i];
      const double scale = 1 / std::sqrt(squares / of_.dim + 1e-6);
      for (int i = 0; i < of_.dim; ++i)
        out.push_back(
            static_cast<float>(x[i] * scale * (norm_.host[static_cast<size_t>(i)] + kNormOffset)));
    }
    return test::to_floats(test::to_bfloat16s(out));
  }
  // x [rows, in] times rows [first, first + out) of `matrix`.
  static std::vector<float> matmul(const std::vector<float>& x, const std::vector<float>& matrix,
                                   int rows, int in, int64_t first, int out,
                                   const std::vector<float>* bias) {
    std::vector<float> y;
    for (int row = 0; row < rows; ++row) {
      for (int64_t o = first; o < first + out; ++o) {
        const float* a = x.data() + int64_t{row} * in;
        const float* b = matrix.data() + o * in;
        double sums[8] = {bias == nullptr ? 0 : (*bias)[static_cast<size_t>(o)]};
        for (int i = 0; i < in; ++i) sums[i % 8] += double{a[i]} * b[i];
        const double sum = std::accumulate(sums, sums + 8, 0.0);
        y.push_back(static_cast<float>(sum));
      }
    }
    return y;
  }
  std::vector<float> mlp(const std::vector<float>& in, const Values& gate_up, const Values& down,
                         int ffn, int expert, bool bias) const {
    std::vector<float> both = matmul(in, gate_up.host, 1, of_.dim, int64_t{expert} * 2 * ffn,
                                     2 * ffn, bias ? &gate_up_bias_.host : nullptr);
    std::vector<float> inner(static_cast<size_t>(ffn));
    reference::gated({.activation = of_.activation,
                      .limit = kLimit,
                      .gate = both.data(),
                      .gate_stride = 2 * ffn,
                      .up = both.data() + ffn,
                      .up_stride = 2 * ffn,
                      .y = inner.data(),
                      .y_stride = ffn,
                      .rows = 1,
                      .dim = ffn});
    return matmul(test::to_floats(test::to_bfloat16s(inner)), down.host, 1, ffn,
                  int64_t{expert} * of_.dim, of_.dim, bias ? &down_bias_.host : nullptr);
  }
  static void add(const std::vector<float>& values, double weight, std::vector<double>& to) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += weight * values[i];
  }

  const FewCase of_;
  const Values x_, norm_;
  const Matrix gate_up_;
  const Values gate_up_bias_;
  const Matrix down_;
  const Values down_bias_;
  const Matrix shared_gate_up_, shared_down_;
  const Values residual_;
  const std::vector<float> router_weights_, router_bias_, correction_, shared_gate_;
  const DeviceArray<float> d_router_weights_{router_weights_}, d_router_bias_{router_bias_},
      d_correction_{correction_}, d_shared_gate_{shared_gate_};
  const size_t rows_ = static_cast<size_t>(of_.rows), dim_ = static_cast<size_t>(of_.dim);
  const DeviceArray<uint8_t> y_{rows_ * dim_ * 2}, normed_{rows_ * dim_ * 2};
  const DeviceArray<float> scores_{rows_ * static_cast<size_t>(experts())}, gates_{rows_};
  const DeviceArray<uint8_t> inner_{rows_ * static_cast<size_t>(of_.router.top_k * of_.ffn) * 2};
  const DeviceArray<uint8_t> shared_inner_{rows_ * static_cast<size_t>(of_.shared_ffn) * 2};
};

TEST_F(CudaMoe, SmallBatchesAreOneOperation) {
  const auto traits = cuda::device_traits();
  ASSERT_TRUE(traits);
  if (traits->compute_capability < 90) GTEST_SKIP() << "small_batch_moe() is for Hopper";
  constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh,
                                         Activation::kClampedSwiglu};
  for (int round = 0; round < 48; ++round) {
    FewCase c{.rows = round % cuda::kSmallBatchMoeRows + 1,
              .dim = 8 * pick(1, 40),
              .ffn = 8 * pick(1, 40),
              .shared_ffn = round % 3 == 0 ? 8 * pick(1, 60) : 0,
              .router = {.num_experts = pick(3, 40)},
              .activation = kActivations[round % 5 % 3],
              .norm = round % 4 != 3,
              .bias = round % 7 == 0,
              .shared_gate = round % 2 == 0,
              .residual = round % 5 != 4};
    if (round % 4 == 1) {
      c.router.num_groups = pick(1, 4);
      c.router.num_experts = c.router.num_groups * pick(2, 9);
      c.router.top_groups = pick(1, c.router.num_groups);
      c.router.group_by_two = round % 8 == 1;
    }
    if (round % 6 == 2) {  // many tiles
      c.dim = 8 * pick(200, 400), c.ffn = 8 * pick(30, 130);
      c.router.num_experts = pick(3, 6);
    }
    const int open = c.router.num_experts / c.router.num_groups * c.router.top_groups;
    c.router.top_k = pick(1, std::min(open, cuda::kSmallBatchMoePairs / c.rows));
    c.router.scoring =
        round % 3 == 1 ? RouterSpec::Scoring::kSigmoid : RouterSpec::Scoring::kSoftmax;
    c.router.normalise = round % 2 == 0;
    c.router.scale = round % 7 == 0 ? 2.5f : 1.0f;
    c.router.correction = round % 3 == 1;
    if (round % 8 >= 4) {
      c.e4m3 = true;
      for (int* size : {&c.dim, &c.ffn, &c.shared_ffn}) *size = (*size + 8) / 16 * 16;
    }
    SCOPED_TRACE(fmt::format("round {}: {} rows, {} of {} experts, {} x {}, {} shared, e4m3 {}",
                             round, c.rows, c.router.top_k, c.router.num_experts, c.dim, c.ffn,
                             c.shared_ffn, c.e4m3));
    const FewExperts layer(rng_, c);
    const auto takes = cuda::small_batch_moe_supports(layer.args());
    ASSERT_TRUE(takes && *takes);
    ASSERT_TRUE(cuda::small_batch_moe(layer.args(), {.pdl = round % 2 == 1}).ok());
    layer.check();
    // Launches one behind the other with PDL: the same bits.
    const auto once = layer.bytes();
    for (int i = 0; i < 20; ++i)
      ASSERT_TRUE(cuda::small_batch_moe(layer.args(), {.pdl = true}).ok());
    EXPECT_EQ(layer.bytes(), once);
  }
}

TEST_F(CudaMoe, SmallBatchesOfSizesThatModelsHave) {
  const auto traits = cuda::device_traits();
  ASSERT_TRUE(traits);
  if (traits->compute_capability < 90) GTEST_SKIP() << "small_batch_moe() is for Hopper";
  const FewCase qwen3{.rows = 1,
                      .dim = 2048,
                      .ffn = 768,
                      .shared_ffn = 0,
                      .router = {.num_experts = 12, .top_k = 8, .normalise = true},
                      .activation = Activation::kSilu,
                      .norm = true,
                      .bias = false,
                      .shared_gate = false,
                      .residual = true};
  FewCase deepseek = qwen3;
  deepseek.ffn = 1408, deepseek.shared_ffn = 2816;
  deepseek.router = {.num_experts = 9, .top_k = 6};
  FewCase gpt_oss = qwen3;
  gpt_oss.dim = gpt_oss.ffn = 2880, gpt_oss.bias = true;
  gpt_oss.activation = Activation::kClampedSwiglu;
  gpt_oss.router = {.num_experts = 6, .top_k = 4, .normalise = true};
  FewCase qwen3_of_4 = qwen3, deepseek_of_3 = deepseek;
  qwen3_of_4.rows = 4, deepseek_of_3.rows = 3;
  FewCase coded_qwen3 = qwen3, coded_deepseek = deepseek_of_3, coded_gpt_oss = gpt_oss;
  coded_qwen3.e4m3 = coded_deepseek.e4m3 = coded_gpt_oss.e4m3 = true;
  for (const FewCase& c : {qwen3, qwen3_of_4, deepseek, deepseek_of_3, gpt_oss, coded_qwen3,
                           coded_deepseek, coded_gpt_oss}) {
    SCOPED_TRACE(fmt::format("{} x {}, {} rows", c.dim, c.ffn, c.rows));
    const FewExperts layer(rng_, c);
    const auto takes = cuda::small_batch_moe_supports(layer.args());
    ASSERT_TRUE(takes && *takes);
    ASSERT_TRUE(cuda::small_batch_moe(layer.args(), {.pdl = true}).ok());
    layer.check();
  }
}

TEST_F(CudaMoe, SmallBatchesHaveALimit) {
  Rng rng(5);
  FewCase c{
      .rows = cuda::kSmallBatchMoeRows,
      .dim = 64,
      .ffn = 64,
      .shared_ffn = 0,
      .router = {.num_experts = 16, .top_k = cuda::kSmallBatchMoePairs / cuda::kSmallBatchMoeRows},
      .activation = Activation::kSilu,
      .norm = true,
      .bias = false,
      .shared_gate = false,
      .residual = false};
  const FewExperts layer(rng, c);
  const auto traits = cuda::device_traits();
  ASSERT_TRUE(traits);
  const auto takes = [](const cuda::SmallBatchMoeArgs& args) {
    const auto result = cuda::small_batch_moe_supports(args);
    EXPECT_TRUE(result);
    return result && *result;
  };
  EXPECT_EQ(takes(layer.args()), traits->compute_capability >= 90);
  const auto changed = [&](auto change) {
    cuda::SmallBatchMoeArgs args = layer.args();
    change(args);
    return takes(args);
  };
  using Args = cuda::SmallBatchMoeArgs;
  EXPECT_FALSE(changed([](Args& a) { ++a.rows; }));
  EXPECT_FALSE(changed([](Args& a) { ++a.router.top_k; }));
  EXPECT_FALSE(changed([](Args& a) { a.dim += 4; }));
  EXPECT_FALSE(changed([](Args& a) { a.type = DType::kFloat32; }));
  EXPECT_FALSE(changed([](Args& a) { a.down = static_cast<const char*>(a.down) + 2; }));
  EXPECT_FALSE(changed([](Args& a) { a.dim = 1 << 20; }));
  EXPECT_FALSE(changed([](Args& a) { a.down_scales = a.router_weights; })) << "of some alone";
}

TEST_F(CudaMoe, RefusesWhatItCannotDo) {
  EXPECT_EQ(
      cuda::grouped_linear({.num_groups = 2, .in_features = 12, .out_features = 8}, {}).code(),
      StatusCode::kInvalidArgument);
  EXPECT_EQ(cuda::route({.spec = {.num_experts = 4, .top_k = 5}, .rows = 1}, {}).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(cuda::relayout({.kind = cuda::RelayoutArgs::From::kMxfp4, .rows = 2, .columns = 33}, {})
                .code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(cuda::gated({.type = DType::kFloat16, .rows = 1, .dim = 8}, {}).code(),
            StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace espalier::kernels
