// Beam search on a GPU, against transformers: as beam_engine_test.cc on the CPU.
#include <gtest/gtest.h>

#include "engine/testing/beam_cases.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

class BeamsOnCudaOf : public testing::TestWithParam<const char*> {};

// In float32, whose sums on a GPU are in another order.
TEST_P(BeamsOnCudaOf, AModelAreThoseOfTransformers) {
  ESPALIER_REQUIRE_DEVICE();
  const std::vector<BeamCase> cases = read_beam_cases(GetParam());
  for (const bool graphs : {true, false}) {
    EngineConfig config;
    config.compute.device = "cuda";
    config.compute.disable_cuda_graph = !graphs;
    const auto engine = load_beam_model(GetParam(), config);
    ASSERT_TRUE(engine);
    for (const BeamCase& one : cases) {
      const auto got = engine->generate_all(one.request);
      ASSERT_TRUE(got) << got.error().to_string();
      expect_beams(one, *got, 1e-4f, graphs ? "alone" : "alone, without graphs");
    }
    expect_beams_in_a_crowd(*engine, cases, 1e-4f, "in a crowd");
  }
}

TEST_P(BeamsOnCudaOf, AModelWaitForMemory) {
  ESPALIER_REQUIRE_DEVICE();
  for (const int32_t page_size : {1, 16}) {
    EngineConfig config;
    config.compute.device = "cuda";
    config.cache.page_size = page_size;
    config.cache.max_total_tokens = 480;
    config.schedule.max_running_requests = 8;
    config.schedule.max_queued_requests = 100;
    config.schedule.chunked_prefill_size = 7;
    const auto engine = load_beam_model(GetParam(), config);
    ASSERT_TRUE(engine);
    expect_beams_in_a_crowd(*engine, read_beam_cases(GetParam()), 1e-4f,
                            fmt::format("pages of {}", page_size));
  }
}
INSTANTIATE_TEST_SUITE_P(All, BeamsOnCudaOf, testing::ValuesIn(kBeamModels));

}  // namespace
}  // namespace espalier
