// Tiers of keys and values beside a GPU: what comes back from the host's memory gives the tokens of
// an engine without tiers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <list>
#include <string>
#include <thread>

#include "engine/testing/test_tiers.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

class TiersCuda : public testing::TestWithParam<std::string> {};

TEST_P(TiersCuda, PrefixesComeBackFromTheHost) {
  ESPALIER_REQUIRE_DEVICE();
  expect_tiers_change_nothing(GetParam(), {.compute = {.device = "cuda"}});
}

INSTANTIATE_TEST_SUITE_P(Models, TiersCuda,
                         testing::Values("llama_untied_bias", "deepseek_v2", "gpt2"),
                         [](const auto& model) { return model.param; });

// Requests in a crowd, whose loads and saves run beside others' steps.
TEST(TiersCudaCrowd, GetsTheTokensOfNoTier) {
  ESPALIER_REQUIRE_DEVICE();
  const EngineConfig base{.model = {.dtype = "float32"}, .compute = {.device = "cuda"}};
  auto plain = load_golden("llama_untied_bias", base);
  ASSERT_NE(plain, nullptr);
  const auto want = answers_to_long(*plain);
  for (const char* policy : {"write_through", "write_back"}) {
    SCOPED_TRACE(policy);
    EngineConfig config = base;
    config.cache.max_total_tokens = 480;
    config.cache.page_size = 4;
    config.tiers.enable_hierarchical_cache = true;
    config.tiers.hicache_size_gb = 0.05;
    config.tiers.hicache_write_policy = policy;
    auto engine = load_golden("llama_untied_bias", config);
    ASSERT_NE(engine, nullptr);
    for (int round = 0; round < 4; ++round) EXPECT_EQ(answers_to_long(*engine), want) << round;
    EXPECT_GT(engine->stats().tokens.cached_host, 0);
  }
}

// In parts, beside requests, until all of it is.
TEST(TiersCudaMemory, IsPinnedWhileRequestsAreServed) {
  ESPALIER_REQUIRE_DEVICE();
  EngineConfig config{.compute = {.device = "cuda"}};
  config.cache.page_size = 16;
  config.tiers.enable_hierarchical_cache = true;
  config.tiers.hicache_size_gb = 0.5;
  auto engine = load_golden("llama_tied_llama3", config);
  ASSERT_NE(engine, nullptr);
  const auto tiers = [&] { return engine->stats().tiers; };
  const int64_t arena = tiers().stores.at(0).store.num_pages_max * tiers().stores.at(0).page_bytes;
  int64_t unused = 0;
  answers_of_tiers(*engine, unused);
  for (int i = 0; i < 2000 && tiers().pinned_bytes < arena; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(tiers().pinned_bytes, arena);
}

TEST(TiersCudaStart, PagesOfAWindowAreRefused) {
  ESPALIER_REQUIRE_DEVICE();
  auto engine =
      Engine::create({.model = {.model_path = kModels / "gemma2", .skip_tokenizer_init = true},
                      .compute = {.device = "cuda"},
                      .cache = {.max_total_tokens = 2000, .swa_full_tokens_ratio = 0.1f},
                      .tiers = {.enable_hierarchical_cache = true, .hicache_size_gb = 0.1}});
  ASSERT_FALSE(engine);
  EXPECT_THAT(engine.error().message(), ::testing::HasSubstr("--disable-hybrid-swa-memory"));
}

}  // namespace
}  // namespace espalier
