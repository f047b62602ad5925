// Layers with a sliding window in pages of their own: real models answer token for token as with
// one map of pages, with the radix cache and without, and the keys and values take less memory.
#include <gtest/gtest.h>

#include <list>
#include <string>

#include "engine/test_requests.h"

namespace espalier {
namespace {

// Conversations over one long beginning, longer than the window and a block of attention; greedy
// and sampled.
std::vector<GenerateRequest> make_long_requests() {
  Rng rng(7);
  std::vector<TokenId> shared;
  for (int i = 0; i < 110; ++i) shared.push_back(static_cast<TokenId>(3 + rng.below(kVocab - 3)));
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 8; ++i) {
    const auto kept = static_cast<std::ptrdiff_t>(i % 2 == 0 ? 110 : rng.between(1, 110));
    GenerateRequest r{.input_ids = {shared.begin(), shared.begin() + kept}};
    for (auto own = 1 + rng.below(40); own > 0; --own)
      r.input_ids.push_back(static_cast<TokenId>(3 + rng.below(kVocab - 3)));
    r.sampling = {.max_new_tokens = static_cast<int32_t>(20 + rng.below(60)),
                  .temperature = i % 3 == 0 ? 0.8f : 0.0f,
                  .ignore_eos = true,
                  .sampling_seed = static_cast<uint64_t>(i)};
    requests.push_back(std::move(r));
  }
  return requests;
}

std::vector<std::vector<TokenId>> answers(Engine& engine) {
  std::list<Collector> collectors;
  for (const GenerateRequest& request : make_long_requests())
    EXPECT_TRUE(engine.submit(request, collectors.emplace_back().sink()));
  std::vector<std::vector<TokenId>> out;
  for (Collector& c : collectors) {
    EXPECT_TRUE(c.wait_end());
    EXPECT_EQ(c.finish_type(), FinishReason::Type::kLength) << c.result().finish.status.to_string();
    out.push_back(c.result().output_ids);
  }
  return out;
}

class SlidingWindow : public testing::TestWithParam<std::string> {};

TEST_P(SlidingWindow, AnswersAreThoseOfOneMap) {
  auto one_map = load_golden(GetParam(), {.disable_hybrid_swa_memory = true});
  ASSERT_NE(one_map, nullptr);
  EXPECT_EQ(one_map->config().max_window_tokens, 0);
  const auto want = answers(*one_map);
  const auto check = [&](const std::string& how, EngineConfig config) {
    SCOPED_TRACE(how);
    auto engine = load_golden(GetParam(), std::move(config));
    ASSERT_NE(engine, nullptr);
    EXPECT_GT(engine->config().max_window_tokens, 0);
    EXPECT_EQ(answers(*engine), want) << "cold";
    EXPECT_EQ(answers(*engine), want) << "warm";
    if (engine->config().disable_radix_cache)
      EXPECT_EQ(engine->stats().cached_tokens_total, 0);
    else
      EXPECT_GT(engine->stats().cached_tokens_total, 300);
  };
  check("plenty", {.max_total_tokens = 4000});
  check("a short window pool", {.max_total_tokens = 2000, .swa_full_tokens_ratio = 0.1});
  check("both short", {.max_total_tokens = 500, .swa_full_tokens_ratio = 0.2});
  check("chunks",
        {.max_total_tokens = 900, .chunked_prefill_size = 7, .swa_full_tokens_ratio = 0.1});
  check("pages", {.max_total_tokens = 1600, .page_size = 16, .swa_full_tokens_ratio = 0.1});
  check("no radix cache",
        {.max_total_tokens = 1500, .disable_radix_cache = true, .swa_full_tokens_ratio = 0.1});
  check("no overlap",
        {.max_total_tokens = 1000, .swa_full_tokens_ratio = 0.1, .disable_overlap_schedule = true});
}

INSTANTIATE_TEST_SUITE_P(Models, SlidingWindow,
                         testing::Values("gemma2", "gemma3", "gpt_oss", "mistral_f16"));

TEST(SlidingWindowMemory, TakesLess) {
  const auto bytes_of = [](const std::string& model, EngineConfig config) {
    config.max_total_tokens = 4000;
    return load_golden(model, config)->stats().kv_bytes;
  };
  const EngineConfig one_map{.disable_hybrid_swa_memory = true};
  const EngineConfig a_tenth{.swa_full_tokens_ratio = 0.1};
  // Two of three layers have a window; in the other model all of them.
  EXPECT_EQ(bytes_of("gemma2", a_tenth) * 30, bytes_of("gemma2", one_map) * (10 + 2));
  EXPECT_EQ(bytes_of("mistral_f16", a_tenth) * 10, bytes_of("mistral_f16", one_map));
}

TEST(SlidingWindowMemory, BadSettings) {
  EngineConfig config{.model_path = kModels / "gemma2", .skip_tokenizer_init = true};
  config.swa_full_tokens_ratio = 0;
  const auto refused = Engine::create(config);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("swa_full_tokens_ratio is 0"), std::string::npos);
}

}  // namespace
}  // namespace espalier
