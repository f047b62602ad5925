// Requests with pictures through an engine on a GPU: the tokens of the CPU's engine, the same bits
// whatever is cached, cut or beside them where the engine is deterministic, batches of pictures,
// and text beside them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "engine/testing/near_answers.h"
#include "engine/testing/seeing_requests.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

// In float32, where the best two logits are never so close that the order of a sum decides.
class ImagesEngineCuda : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { ESPALIER_REQUIRE_DEVICE(); }

  static std::unique_ptr<Engine> load(EngineConfig config, const std::string& model) {
    config.compute.device = "cuda";
    config.model.dtype = "float32";
    auto engine = load_golden(model, config);
    EXPECT_TRUE(engine == nullptr || engine->config().compute.device == "cuda");
    return engine;
  }
  // Pictures of answers(): OneVision makes other rows of those beside others.
  int num_different() const { return model_.ends_with("llava_onevision") ? 5 : 3; }

  const std::string model_ = std::string("../images/") + GetParam();
};

TEST_P(ImagesEngineCuda, GivesTheTokensOfTheCpu) {
  auto cpu = load_golden(model_, {.model = {.dtype = "float32"}});
  ASSERT_NE(cpu, nullptr);
  const std::vector<Answer> wanted = answers(*cpu);
  const auto check = [&](const std::string& how, EngineConfig config) {
    auto engine = load(std::move(config), model_);
    ASSERT_NE(engine, nullptr);
    expect_near_answers(answers(*engine), wanted, how + ", cold");
    expect_near_answers(answers(*engine), wanted, how + ", warm");
    expect_near_answers(answers_together(*engine), wanted, how + ", together");
    EXPECT_GT(engine->stats().tokens.cached, 100) << how;
    EXPECT_EQ(engine->stats().images.num_encoded, num_different()) << how;
  };
  check("defaults", {});
  for (const int32_t chunk : {1, 5, 17})
    check("chunks of " + std::to_string(chunk), {.schedule = {.chunked_prefill_size = chunk}});
  check("pages of 5", {.cache = {.page_size = 5}, .schedule = {.chunked_prefill_size = 7}});
  check("no graphs", {.compute = {.disable_cuda_graph = true}});
  check("draft tokens", {.speculation = {.speculative_algorithm = "COMBINED"}});
}

// Bit for bit, and log-probabilities too.
TEST_P(ImagesEngineCuda, DeterministicAnswersDoNotDependOnTheCompany) {
  const EngineConfig alone{.compute = {.enable_deterministic_inference = true},
                           .cache = {.disable_radix_cache = true}};
  auto engine = load(alone, model_);
  ASSERT_NE(engine, nullptr);
  const std::vector<Answer> wanted = answers(*engine);
  auto cached = load({.compute = {.enable_deterministic_inference = true},
                      .schedule = {.chunked_prefill_size = 5}},
                     model_);
  ASSERT_NE(cached, nullptr);
  EXPECT_EQ(answers_together(*cached), wanted);
  EXPECT_EQ(answers(*cached), wanted);
}

// Rank 0 has the pictures' rows, which the ranks' sum of embeddings adds once.
TEST_P(ImagesEngineCuda, RanksGiveTheTokensOfTheCpu) {
  if (cuda::count_devices() < 2) GTEST_SKIP() << "SKIPPED: needs two GPUs";
  auto cpu = load_golden(model_, {.model = {.dtype = "float32"}});
  ASSERT_NE(cpu, nullptr);
  auto engine = load({.compute = {.tp_size = 2}, .schedule = {.chunked_prefill_size = 9}}, model_);
  ASSERT_NE(engine, nullptr);
  const std::vector<Answer> wanted = answers(*cpu);
  expect_near_answers(answers(*engine), wanted, "two ranks");
  expect_near_answers(answers_together(*engine), wanted, "two ranks, together");
}

// Many pictures at once, more than a batch of the encoder has, beside requests of text alone.
TEST_P(ImagesEngineCuda, ManyPicturesBesideText) {
  auto engine = load({.images = {.image_threads = 24}}, model_);
  ASSERT_NE(engine, nullptr);
  const auto ask = [&](int i) {
    GenerateRequest request = seen_request();
    request.input_ids = {1, 3, kPlaceholder, 5, static_cast<TokenId>(i % 90)};
    request.images = {picture(10 + i, 31)};
    if (i % 3 == 0) request.images.clear(), request.input_ids[2] = 7;
    return engine->generate(std::move(request));
  };
  constexpr int kRequests = 60;
  std::vector<std::future<Result<GenerateResult>>> running;
  for (int i = 0; i < kRequests; ++i) running.push_back(std::async(std::launch::async, ask, i));
  std::vector<std::vector<TokenId>> together;
  for (auto& one : running) {
    auto result = one.get();
    ASSERT_TRUE(result) << result.error().message();
    together.push_back(result->output_ids);
  }
  EXPECT_EQ(engine->stats().images.num_encoded, kRequests * 2 / 3);
  ASSERT_TRUE(engine->flush_cache().ok());
  for (int i = 0; i < kRequests; ++i) {
    const auto result = ask(i);
    ASSERT_TRUE(result) << result.error().message();
    EXPECT_EQ(result->output_ids, together[static_cast<size_t>(i)]) << i;
  }
}

TEST_P(ImagesEngineCuda, TheSecondQuestionFindsThePicture) {
  auto engine = load({}, model_);
  ASSERT_NE(engine, nullptr);
  GenerateRequest request = seen_request();
  request.input_ids = {1, 3, kPlaceholder, 5, 6, 7};
  request.images = {picture(40, 31)};
  const auto first = engine->generate(request);
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_EQ(first->stats.cached_tokens, 0);
  request.input_ids = {1, 3, kPlaceholder, 8, 9};
  const auto second = engine->generate(request);
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(second->stats.cached_tokens, first->stats.prompt_tokens - 3);
  EXPECT_EQ(engine->stats().images.num_encoded, 1);
}

INSTANTIATE_TEST_SUITE_P(All, ImagesEngineCuda,
                         testing::Values("llava_clip", "llava_siglip", "llava_next",
                                         "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl",
                                         "pixtral", "mistral3", "internvl"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace espalier
