// Routing and arrangement as one kernel: what route() chooses, arranged as arrange() promises.
#include <numeric>
#include <vector>

#include "kernels/cuda/test_device.h"
#include "kernels/moe/cuda.h"
#include "kernels/moe/test_values.h"
#include "kernels/router/cuda.h"

namespace espalier::kernels {
namespace {

using test::DeviceArray;

// An arrangement is a permutation of the pairs whose slots ascend by expert.
void expect_arranged(const std::vector<int32_t>& experts, int num_experts,
                     const std::vector<int32_t>& slots, const std::vector<int32_t>& pairs,
                     const std::vector<int32_t>& begins) {
  std::vector<int32_t> want(static_cast<size_t>(num_experts) + 1);
  for (const int32_t expert : experts) ++want[static_cast<size_t>(expert) + 1];
  std::partial_sum(want.begin(), want.end(), want.begin());
  EXPECT_EQ(begins, want);
  for (size_t slot = 0; slot < pairs.size(); ++slot) {
    const auto pair = static_cast<size_t>(pairs[slot]);
    ASSERT_LT(pair, experts.size());
    EXPECT_EQ(slots[pair], static_cast<int32_t>(slot));
    const auto expert = static_cast<size_t>(experts[pair]);
    EXPECT_LE(want[expert], static_cast<int32_t>(slot));
    EXPECT_LT(static_cast<int32_t>(slot), want[expert + 1]);
  }
}

class CudaRouting : public test::OnDevice {};

TEST_F(CudaRouting, RouteAndArrangeDoWhatBothDo) {
  for (const int rows : {1, 5, 32, 33, 100, 256, 257, 700}) {
    for (const int num_experts : {8, 128, 600}) {
      const RouterSpec spec{.num_experts = num_experts, .top_k = 6, .normalise = true};
      const auto pairs = static_cast<size_t>(rows * spec.top_k);
      const auto experts_and_one = static_cast<size_t>(num_experts) + 1;
      const DeviceArray<float> logits(test::random_floats(rng_, int64_t{rows} * num_experts, 2.0));
      const DeviceArray<int32_t> want_ids(pairs), ids(pairs), slots(pairs), order(pairs),
          begins(experts_and_one), tiles(experts_and_one);
      const DeviceArray<float> want_weights(pairs), weights(pairs);
      cuda::RouteArgs chosen{.spec = spec,
                             .logits = logits.get(),
                             .rows = rows,
                             .experts = want_ids.get(),
                             .weights = want_weights.get()};
      ASSERT_TRUE(cuda::route(chosen, {}).ok());
      chosen.experts = ids.get(), chosen.weights = weights.get();
      const cuda::ArrangeArgs args{.experts = ids.get(),
                                   .num_pairs = static_cast<int32_t>(pairs),
                                   .num_experts = num_experts,
                                   .plan = {slots.get(), order.get(), begins.get(), tiles.get()}};
      ASSERT_TRUE(cuda::route_and_arrange(chosen, args, {.pdl = true}).ok());
      SCOPED_TRACE(fmt::format("{} rows, {} experts", rows, num_experts));
      EXPECT_EQ(ids.read(), want_ids.read());
      EXPECT_EQ(weights.read(), want_weights.read());
      expect_arranged(ids.read(), num_experts, slots.read(), order.read(), begins.read());
    }
  }
  const DeviceArray<int32_t> ids(4);
  EXPECT_EQ(cuda::route_and_arrange(
                {.spec = {.num_experts = 4, .top_k = 2}, .rows = 2, .experts = ids.get()},
                {.experts = ids.get(), .num_pairs = 3, .num_experts = 4}, {})
                .code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier::kernels
