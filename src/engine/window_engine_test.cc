// Layers with a sliding window in pages of their own: real models answer token for token as with
// one map of pages, with the radix cache and without, and the keys and values take less memory.
#include <gtest/gtest.h>

#include <string>

#include "engine/testing/test_requests.h"

namespace espalier {
namespace {

class SlidingWindow : public testing::TestWithParam<std::string> {};

TEST_P(SlidingWindow, AnswersAreThoseOfOneMap) {
  auto one_map = load_golden(GetParam(), {.cache = {.disable_hybrid_swa_memory = true}});
  ASSERT_NE(one_map, nullptr);
  EXPECT_EQ(one_map->config().cache.max_window_tokens, 0);
  const auto want = answers_to_long(*one_map);
  const auto check = [&](const std::string& how, EngineConfig config) {
    SCOPED_TRACE(how);
    auto engine = load_golden(GetParam(), std::move(config));
    ASSERT_NE(engine, nullptr);
    EXPECT_GT(engine->config().cache.max_window_tokens, 0);
    EXPECT_EQ(answers_to_long(*engine), want) << "cold";
    EXPECT_EQ(answers_to_long(*engine), want) << "warm";
    if (engine->config().cache.disable_radix_cache)
      EXPECT_EQ(engine->stats().tokens.cached, 0);
    else
      EXPECT_GT(engine->stats().tokens.cached, 300);
  };
  check("plenty", {.cache = {.max_total_tokens = 4000}});
  check("a short window pool", {.cache = {.max_total_tokens = 2000, .swa_full_tokens_ratio = 0.1}});
  check("both short", {.cache = {.max_total_tokens = 500, .swa_full_tokens_ratio = 0.2}});
  check("chunks", {.cache = {.max_total_tokens = 900, .swa_full_tokens_ratio = 0.1},
                   .schedule = {.chunked_prefill_size = 7}});
  check("pages",
        {.cache = {.max_total_tokens = 1600, .page_size = 16, .swa_full_tokens_ratio = 0.1}});
  check("no radix cache",
        {.cache = {
             .max_total_tokens = 1500, .disable_radix_cache = true, .swa_full_tokens_ratio = 0.1}});
  check("no overlap", {.compute = {.disable_overlap_schedule = true},
                       .cache = {.max_total_tokens = 1000, .swa_full_tokens_ratio = 0.1}});
}

INSTANTIATE_TEST_SUITE_P(Models, SlidingWindow,
                         testing::Values("gemma2", "gemma3", "gpt_oss", "mistral_f16"));

TEST(SlidingWindowMemory, TakesLess) {
  const auto bytes_of = [](const std::string& model, EngineConfig config) {
    config.cache.max_total_tokens = 4000;
    return load_golden(model, config)->stats().memory.kv_bytes;
  };
  const EngineConfig one_map{.cache = {.disable_hybrid_swa_memory = true}};
  const EngineConfig a_tenth{.cache = {.swa_full_tokens_ratio = 0.1}};
  // Two of three layers have a window; in the other model all of them.
  EXPECT_EQ(bytes_of("gemma2", a_tenth) * 30, bytes_of("gemma2", one_map) * (10 + 2));
  EXPECT_EQ(bytes_of("mistral_f16", a_tenth) * 10, bytes_of("mistral_f16", one_map));
}

TEST(SlidingWindowMemory, BadSettings) {
  EngineConfig config{.model = {.model_path = kModels / "gemma2", .skip_tokenizer_init = true}};
  config.cache.swa_full_tokens_ratio = 0;
  const auto refused = Engine::create(config);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("swa_full_tokens_ratio is 0"), std::string::npos);
}

}  // namespace
}  // namespace espalier
