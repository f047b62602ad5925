// Experts on the GPU against slow loops over the same inputs: the choice, the products of every
// choice, what comes back to the rows; and weights that lie otherwise in a checkpoint.
#include <algorithm>
#include <cmath>

#include "kernels/activation/cuda.h"
#include "kernels/activation/op.h"
#include "kernels/cuda/test_device.h"
#include "kernels/experts/cuda.h"
#include "kernels/relayout/cuda.h"
#include "kernels/router/cuda.h"
#include "kernels/router/op.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;

// Random values rounded to `type`, and their bytes on the device.
struct Values {
  std::vector<float> host;
  DeviceArray<uint8_t> device;

  static Values random(Rng& rng, DType type, int64_t count, double deviation = 1.0) {
    return of(test::random_floats(rng, count, deviation), type);
  }
  static Values of(std::vector<float> values, DType type) {
    DeviceArray<uint8_t> device(values.size() * dtype_size(type));
    if (type == DType::kBFloat16) {
      const auto rounded = test::to_bfloat16s(values);
      values = test::to_floats(rounded);
      cudaMemcpy(device.get(), rounded.data(), rounded.size() * 2, cudaMemcpyDefault);
    } else {
      cudaMemcpy(device.get(), values.data(), values.size() * 4, cudaMemcpyDefault);
    }
    return {std::move(values), std::move(device)};
  }
};

std::vector<float> read(const DeviceArray<uint8_t>& device, DType type) {
  const auto bytes = device.read();
  if (type == DType::kFloat32) {
    std::vector<float> result(bytes.size() / 4);
    std::memcpy(result.data(), bytes.data(), bytes.size());
    return result;
  }
  std::vector<BFloat16> result(bytes.size() / 2);
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return test::to_floats(result);
}

double tolerance(DType type) { return type == DType::kFloat32 ? 1e-5 : 0.004; }

class CudaExperts : public test::OnDevice {
 protected:
  static constexpr DType kTypes[] = {DType::kBFloat16, DType::kFloat32};
  int pick(int low, int high) { return static_cast<int>(rng_.between(low, high)); }
};

TEST_F(CudaExperts, RouteChoosesAsTheCpuDoes) {
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
                            {.overlap = round % 2 == 0})
                    .ok());
    // The two exponentials differ in their last bits: choices that hang on those are not compared.
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

TEST_F(CudaExperts, RouteGivesNanForRowsThatHoldOne) {
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

TEST_F(CudaExperts, ScoresAreProductsInFloat32) {
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

// Rows through the experts they chose and back, in all sizes of tiles, with experts that nobody
// chose; shared experts, gates, residuals.
class ExpertsCase {
 public:
  int rows, top_k, experts, dim, ffn;
  DType type;

  void run(Rng& rng, bool bias, bool shared, bool residual) const {
    const int choices = rows * top_k;
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
      // Few experts are chosen by most, so that their numbers of rows differ.
      const int most = rng.between(0, 3) == 0 ? experts : std::max(top_k, experts / 3);
      for (int i = 0; i < top_k; ++i)
        std::swap(ids[static_cast<size_t>(i)], ids[static_cast<size_t>(rng.between(i, most - 1))]);
      std::sort(ids.begin(), ids.begin() + top_k);
      chosen.insert(chosen.end(), ids.begin(), ids.begin() + top_k);
    }
    const auto mix = test::random_floats(rng, choices);
    const auto gates = test::random_floats(rng, rows);
    const Values also = Values::random(rng, type, int64_t{rows} * dim);
    const Values before = Values::random(rng, type, int64_t{rows} * dim);

    const DeviceArray<int32_t> d_chosen(chosen), slots(chosen.size()), order(chosen.size());
    const DeviceArray<int32_t> begins(static_cast<size_t>(experts) + 1);
    const DeviceArray<int32_t> tiles(static_cast<size_t>(experts) + 1);
    const DeviceArray<float> d_mix(mix), d_gates(gates);
    const size_t size = dtype_size(type);
    const DeviceArray<uint8_t> inner(static_cast<size_t>(choices * ffn) * size);
    const DeviceArray<uint8_t> outer(static_cast<size_t>(choices * dim) * size);
    const DeviceArray<uint8_t> y(static_cast<size_t>(rows * dim) * size);
    const cuda::ExpertPlan plan{slots.get(), order.get(), begins.get(), tiles.get()};
    ASSERT_TRUE(cuda::arrange({.experts = d_chosen.get(),
                               .num_choices = choices,
                               .num_experts = experts,
                               .plan = plan},
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
                                  .num_choices = choices,
                                  .choices_per_row = top_k};
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
                                      .num_choices = choices},
                                     {.overlap = true})
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
        const auto choice = static_cast<size_t>(row * top_k + j);
        const int64_t expert = chosen[choice], slot = got_slots[choice];
        ASSERT_TRUE(slot >= 0 && slot < choices);
        for (int o = 0; o < ffn; ++o) {
          double value = bias ? biases.host[static_cast<size_t>(expert * ffn + o)] : 0;
          for (int i = 0; i < dim; ++i)
            value += double{x.host[static_cast<size_t>(row * dim + i)]} *
                     weights.host[static_cast<size_t>((expert * ffn + o) * dim + i)];
          want_inner[static_cast<size_t>(slot * ffn + o)] = static_cast<float>(value);
        }
        // From what the device rounded in between.
        for (int o = 0; o < dim; ++o) {
          double value = 0;
          for (int i = 0; i < ffn; ++i)
            value += double{got_inner[static_cast<size_t>(slot * ffn + i)]} *
                     back.host[static_cast<size_t>((expert * dim + o) * ffn + i)];
          sum[static_cast<size_t>(o)] += mix[choice] * value;
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

TEST_F(CudaExperts, RowsGoThroughTheExpertsTheyChose) {
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

TEST_F(CudaExperts, GroupsOfEqualRowsHaveTheirOwnMatrices) {
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

TEST_F(CudaExperts, ActivationsAreThoseOfTheCpu) {
  for (const DType type : kTypes) {
    for (const Activation activation :
         {Activation::kSilu, Activation::kGeluTanh, Activation::kClampedSwiglu}) {
      for (const int dim : {1, 24, 41, 512}) {
        const bool alone = activation != Activation::kClampedSwiglu && dim % 3 == 0;
        const int rows = pick(1, 9), stride = 2 * dim;
        const Values both = Values::random(rng_, type, int64_t{rows} * stride, 4.0);
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

TEST_F(CudaExperts, RelayoutTurnsPartsAndWidens) {
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

TEST_F(CudaExperts, RelayoutWidensMxfp4) {
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

TEST_F(CudaExperts, RefusesWhatItCannotDo) {
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
