// Control vectors of requests, against transformers with hooks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/testing/control_cases.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

class ControlOf : public testing::TestWithParam<const char*> {};

TEST_P(ControlOf, AModelIsThatOfTransformers) {
  EngineConfig config;
  config.schedule.chunked_prefill_size = 5;
  const auto engine = load_controlled(GetParam(), config);
  ASSERT_TRUE(engine);
  expect_all_controlled(*engine, GetParam(), 1e-4f, "whole");
}
INSTANTIATE_TEST_SUITE_P(All, ControlOf, testing::ValuesIn(kControlledModels));

TEST(Control, ActsOnRanksAndStages) {
  for (const auto& [tp, pp] : {std::pair(2, 1), std::pair(1, 3), std::pair(2, 2)}) {
    EngineConfig config;
    config.compute.tp_size = tp;
    config.compute.pp_size = pp;
    config.compute.num_threads = tp * pp;
    const auto engine = load_controlled(kControlledModels[0], config);
    ASSERT_TRUE(engine);
    expect_all_controlled(*engine, kControlledModels[0], 1e-4f,
                          fmt::format("{} ranks, {} stages", tp, pp));
  }
}

// A scale of 0, and layers that the file has no direction for, change nothing, and other scales of
// one vector share no prefix.
TEST(Control, ThatAddsNothingChangesNothing) {
  const auto cases = golden::read_controlled_answers(kControlledModels[0]);
  const auto engine = load_controlled(kControlledModels[0], {});
  GenerateRequest request = controlled_request(cases[0]);
  for (const auto& [scale, last] : {std::pair(0.0f, -1), std::pair(5.0f, 0)}) {
    request.control_vector = ControlRequest{.name = "own", .scale = scale, .last_layer = last};
    const auto got = engine->generate(request);
    ASSERT_TRUE(got) << got.error().to_string();
    expect_controlled(cases[0], *got, 1e-4f, "without effect");
  }
  request.control_vector = ControlRequest{.name = "own"};
  EXPECT_EQ(engine->generate(request)->stats.cached_tokens, 0);
  EXPECT_GT(engine->generate(request)->stats.cached_tokens, 0);
  request.control_vector->scale = 1.25f;
  EXPECT_EQ(engine->generate(request)->stats.cached_tokens, 0);
}

TEST(Control, IsRefusedByName) {
  const auto engine = load_controlled(kControlledModels[0], {});
  const auto message_of = [&](Engine& of, ControlRequest control) {
    GenerateRequest request{.input_ids = {5, 9}, .sampling = {.max_new_tokens = 1}};
    request.control_vector = std::move(control);
    const auto result = of.generate(request);
    EXPECT_FALSE(result);
    return result ? std::string() : result.error().message();
  };
  EXPECT_THAT(message_of(*engine, {.name = "other"}),
              HasSubstr("control_vector is 'other', but the server has own"));
  EXPECT_THAT(message_of(*engine, {.name = "own", .last_layer = 3}),
              HasSubstr("control_vector.layers holds 3, but must hold numbers in [0, 2]"));
  EXPECT_THAT(message_of(*engine, {.name = "own", .first_layer = 2, .last_layer = 1}),
              HasSubstr("[2, 1]: the first comes first"));
  const auto plain = load_golden(kControlledModels[0], {});
  EXPECT_THAT(message_of(*plain, {.name = "own"}), HasSubstr("--control-vector NAME=PATH"));
  EngineConfig config;
  config.compute.device = "cpu";
  config.model.model_path = kModels / "gpt2";
  config.model.skip_tokenizer_init = true;
  config.control.control_vectors = {
      "own=tests/golden/control/llama_tied_llama3.vector.safetensors"};
  const auto wrong = Engine::create(config);
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message(), HasSubstr("control vector 'own'"));
}

}  // namespace
}  // namespace espalier
