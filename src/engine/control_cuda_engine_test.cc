// Control vectors on a GPU: as control_engine_test.cc on the CPU.
#include <gtest/gtest.h>

#include "engine/testing/control_cases.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

class ControlOnCudaOf : public testing::TestWithParam<const char*> {};

TEST_P(ControlOnCudaOf, AModelIsThatOfTransformers) {
  ESPALIER_REQUIRE_DEVICE();
  for (const bool graphs : {true, false}) {
    EngineConfig config;
    config.compute.device = "cuda";
    config.compute.disable_cuda_graph = !graphs;
    const auto engine = load_controlled(GetParam(), config);
    ASSERT_TRUE(engine);
    for (int round = 0; round < 3; ++round)  // as it is, recorded, replayed
      expect_all_controlled(*engine, GetParam(), 2e-4f, graphs ? "graphs" : "no graphs");
  }
}
INSTANTIATE_TEST_SUITE_P(All, ControlOnCudaOf, testing::ValuesIn(kControlledModels));

}  // namespace
}  // namespace espalier
