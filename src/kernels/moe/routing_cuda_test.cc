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

// 8 experts in 12 slots, of which each of two ranks has a half; rows are some of the tokens.
TEST_F(CudaRouting, ReplicasAreArrangedByTheirSlots) {
  constexpr int kExperts = 8, kSlots = 12, kLocal = kSlots / 2;
  const std::vector<int32_t> table = {0, 2, 4, 5,  6, 8, 10, 11, 12,            // begins
                                      0, 9, 1, 10, 2, 3, 4,  11, 5,  8, 6, 7};  // slots
  const DeviceArray<int32_t> on_device(table);
  for (const int rows : {1, 5, 33, 256, 700}) {
    SCOPED_TRACE(fmt::format("{} rows", rows));
    const RouterSpec spec{.num_experts = kExperts, .top_k = 3, .normalise = true};
    const auto pairs = static_cast<size_t>(rows * spec.top_k);
    const DeviceArray<float> logits(test::random_floats(rng_, int64_t{rows} * kExperts, 2.0));
    std::vector<int32_t> positions, tokens;
    for (int i = 0; i < 2 * rows; ++i) positions.push_back(static_cast<int32_t>(rng_.below(5000)));
    for (int i = 0; i < rows; ++i) tokens.push_back(2 * i + 1);
    const DeviceArray<int32_t> device_positions(positions), device_tokens(tokens);
    const DeviceArray<int32_t> ids(pairs), slots(pairs), order(pairs), begins(kLocal + 1),
        tiles(kLocal + 1);
    const DeviceArray<float> weights(pairs);
    for (const int first : {0, kLocal}) {
      const cuda::RouteArgs chosen{.spec = spec,
                                   .logits = logits.get(),
                                   .rows = rows,
                                   .experts = ids.get(),
                                   .weights = weights.get()};
      const cuda::ArrangeArgs args{.experts = ids.get(),
                                   .num_pairs = static_cast<int32_t>(pairs),
                                   .num_experts = kSlots,
                                   .first_local = first,
                                   .num_local = kLocal,
                                   .plan = {slots.get(), order.get(), begins.get(), tiles.get()},
                                   .pairs_per_row = spec.top_k,
                                   .replicas = {.table = on_device.get(),
                                                .num_experts = kExperts,
                                                .num_slots = kSlots,
                                                .positions = device_positions.get(),
                                                .rows = device_tokens.get()}};
      ASSERT_TRUE(cuda::route_and_arrange(chosen, args, {.pdl = true}).ok());
      const std::vector<int32_t> experts = ids.read(), got = slots.read(), begin = begins.read();
      std::vector<int32_t> want(kLocal + 1);
      for (size_t pair = 0; pair < pairs; ++pair) {
        const auto expert = static_cast<size_t>(experts[pair]);
        const int32_t position = positions[static_cast<size_t>(tokens[pair / 3])];
        const int32_t count = table[expert + 1] - table[expert];
        const int32_t replica = replica_of(experts[pair], position, count);
        const int32_t local =
            table[static_cast<size_t>(kExperts + 1 + table[expert] + replica)] - first;
        if (local < 0 || local >= kLocal) {
          EXPECT_EQ(got[pair], cuda::kNoSlot) << pair;
          continue;
        }
        ++want[static_cast<size_t>(local) + 1];
        EXPECT_GE(got[pair], begin[static_cast<size_t>(local)]) << pair;
        EXPECT_LT(got[pair], begin[static_cast<size_t>(local) + 1]) << pair;
      }
      std::partial_sum(want.begin(), want.end(), want.begin());
      EXPECT_EQ(begin, want);
    }
  }
}

}  // namespace
}  // namespace espalier::kernels
