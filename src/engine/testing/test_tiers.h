// For tests that compare an engine with tiers with one without, on any device.
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "engine/testing/test_requests.h"

namespace espalier {

// Prompts that together exceed a pool of 320 tokens.
inline std::vector<std::vector<TokenId>> tier_prompts() {
  Rng rng(19);
  std::vector<std::vector<TokenId>> prompts(6);
  for (auto& prompt : prompts)
    for (int i = 0; i < 101; ++i) prompt.push_back(static_cast<TokenId>(3 + rng.below(kVocab - 3)));
  return prompts;
}

// One after the other, so that each evicts others. Adds what was loaded from the host's memory.
inline std::vector<std::vector<TokenId>> answers_of_tiers(Engine& engine, int64_t& num_from_host) {
  std::vector<std::vector<TokenId>> answers;
  for (const std::vector<TokenId>& prompt : tier_prompts()) {
    GenerateRequest request{.input_ids = prompt};
    request.sampling = {.max_new_tokens = 12, .temperature = 0.0f, .ignore_eos = true};
    const auto r = engine.generate(std::move(request));
    EXPECT_TRUE(r) << r.error().to_string();
    answers.push_back(r ? r->output_ids : std::vector<TokenId>());
    num_from_host += r ? r->stats.cached_tokens_host : 0;
  }
  return answers;
}

// Prefixes that the device has given up come back from the host's memory, for every policy and
// pages of several sizes, and the answers are those of an engine without tiers.
inline void expect_tiers_change_nothing(const std::string& model, EngineConfig config) {
  config.model.dtype = "float32";
  int64_t unused = 0;
  auto plain = load_golden(model, config);
  ASSERT_NE(plain, nullptr);
  const auto want = answers_of_tiers(*plain, unused);
  plain.reset();
  config.cache.max_total_tokens = 320;
  config.tiers.enable_hierarchical_cache = true;
  config.tiers.hicache_size_gb = 0.05;
  for (const char* policy : {"write_through", "write_through_selective", "write_back"})
    for (const int32_t page_size : {1, 16}) {
      SCOPED_TRACE(model + ", " + policy + ", pages of " + std::to_string(page_size));
      config.tiers.hicache_write_policy = policy;
      config.cache.page_size = page_size;
      auto engine = load_golden(model, config);
      ASSERT_NE(engine, nullptr);
      int64_t num_cold = 0, num_from_host = 0;
      EXPECT_EQ(answers_of_tiers(*engine, num_cold), want) << "cold";
      const bool selects = std::string(policy) == "write_through_selective";
      EXPECT_EQ(num_cold, 0);
      for (int round = 0; round < 2; ++round)
        EXPECT_EQ(answers_of_tiers(*engine, num_from_host), want) << "round " << round;
      EXPECT_GE(num_from_host, selects ? 0 : 2 * 6 * 80);
      EXPECT_EQ(engine->stats().tiers.loads_late, 0);
      EXPECT_TRUE(engine->flush_cache().ok());
      EXPECT_EQ(engine->stats().tiers.stores.at(0).store.num_pages, 0);
    }
}

}  // namespace espalier
