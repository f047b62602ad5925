// Data-parallel attention in the whole engine: requests that belong to ranks get the tokens of one
// rank, alone, in a crowd, cut into chunks, from the cache and in small pools; and what does not go
// with it is refused by name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>
#include <string>
#include <vector>

#include "engine/testing/near_answers.h"
#include "engine/testing/test_requests.h"

namespace espalier {
namespace {

using testing::HasSubstr;

EngineConfig with_ranks(EngineConfig config, int32_t tp_size = 2) {
  config.model.dtype = "float32";
  config.compute.device = "cpu";
  config.compute.tp_size = tp_size;
  config.compute.enable_dp_attention = true;
  return config;
}

class WholeAttentionEngine : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto engine = load_golden(GetParam(), {.model = {.dtype = "float32"}});
    ASSERT_NE(engine, nullptr);
    whole_ = answers_alone(*engine);
  }
  // Of one rank up to the order of sums; among ranks and batches the same bits.
  EngineStats check(const std::string& how, const EngineConfig& config, int32_t tp_size = 2) {
    auto engine = load_golden(GetParam(), with_ranks(config, tp_size));
    EXPECT_NE(engine, nullptr) << how;
    if (engine == nullptr) return {};
    const std::vector<Answer> alone = answers_alone(*engine);
    expect_near_answers(alone, whole_, how + ", alone");
    EXPECT_EQ(answers_in_a_crowd(*engine), alone) << how << ", in a crowd";
    EXPECT_EQ(answers_in_a_crowd(*engine), alone) << how << ", warm";
    return engine->stats();
  }

  std::vector<Answer> whole_;
};

TEST_P(WholeAttentionEngine, GivesTheTokensOfOneRank) {
  const EngineStats stats = check("as it is", {});
  EXPECT_GT(stats.tokens.cached, 100);
  EXPECT_EQ(stats.memory.kv_tokens_running, 0);
  check("no overlap", {.compute = {.disable_overlap_schedule = true}});
  check("chunks of 3 a rank on pages of 5",
        {.cache = {.page_size = 5}, .schedule = {.chunked_prefill_size = 7}});
  check("no radix cache", {.cache = {.disable_radix_cache = true}});
  const SpeculationSettings speculation{.speculative_algorithm = "COMBINED",
                                        .measures_cost = false};
  EXPECT_GT(check("draft tokens", {.speculation = speculation}).speculation.accepted_tokens, 20);
  if (GetParam() == "deepseek_v2" || GetParam() == "mixtral")
    check("whole experts", {.compute = {.ep_size = 2}});
}

// A pool for about one sequence on each rank: some wait, and some lose their pages and come back,
// which depends on when they came. That no page is lost then is simulation_test.cc's.
TEST_P(WholeAttentionEngine, AnswersInASmallPool) {
  const EngineStats stats =
      check("a small pool",
            {.cache = {.max_total_tokens = 240}, .schedule = {.schedule_conservativeness = 0.01}});
  EXPECT_EQ(stats.memory.kv_tokens, 240);
  EXPECT_EQ(stats.memory.kv_tokens_running, 0);
}

INSTANTIATE_TEST_SUITE_P(Goldens, WholeAttentionEngine,
                         testing::Values("deepseek_v2", "mixtral", "qwen2_sharded", "gemma2"),
                         [](const auto& tested) { return tested.param; });

TEST(WholeAttentionRanks, RequestsThatEndEarlyLeaveNothing) {
  auto engine = load_golden("qwen2_sharded", with_ranks({}, 4));
  ASSERT_NE(engine, nullptr);
  std::list<Collector> collectors;
  std::vector<std::string> rids;
  for (GenerateRequest request : make_requests()) {
    request.sampling.max_new_tokens = 100;
    const auto rid = engine->submit(std::move(request), collectors.emplace_back().sink());
    ASSERT_TRUE(rid);
    rids.push_back(*rid);
  }
  for (size_t i = 0; i < rids.size(); i += 2) engine->abort(rids[i], Engine::AbortScope::kExact);
  size_t index = 0;
  for (Collector& collector : collectors) {
    ASSERT_TRUE(collector.wait_end());
    if (index++ % 2 == 0) continue;
    EXPECT_EQ(collector.finish_type(), FinishReason::Type::kLength)
        << collector.result().finish.status.to_string();
  }
  EXPECT_TRUE(engine->flush_cache().ok());
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.requests.num_running, 0);
  EXPECT_EQ(stats.memory.kv_tokens_running, 0);
  EXPECT_EQ(stats.memory.kv_tokens_cached, 0);
}

// Each rank has an equal part of what is stated for all.
TEST(WholeAttentionRanks, ShareThePoolEvenly) {
  auto engine =
      load_golden("qwen2_sharded", with_ranks({.cache = {.max_total_tokens = 1003, .page_size = 4},
                                               .schedule = {.max_running_requests = 7}}));
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->config().cache.max_total_tokens, 1000);
  EXPECT_EQ(engine->config().schedule.max_running_requests, 6);
  ASSERT_TRUE(engine->generate(make_requests().front()));  // so that the loop has published
  EXPECT_EQ(engine->stats().memory.kv_tokens, 1000);
  EXPECT_LE(engine->context_length(), 501);
  EXPECT_FALSE(engine->can_join_branches());
}

TEST(WholeAttentionRanks, AreRefusedByNameWhereTheyDoNotGo) {
  const auto refusal = [](EngineConfig config, int32_t tp_size = 2) {
    config = with_ranks(config, tp_size);
    config.model.model_path = kModels / "qwen2_sharded";
    config.model.skip_tokenizer_init = true;
    const auto engine = Engine::create(config);
    return engine ? std::string("it starts") : engine.error().message();
  };
  EXPECT_THAT(refusal({}, 1), HasSubstr("tp_size is 1"));
  EXPECT_THAT(refusal({.compute = {.dp_size = 3}}), HasSubstr("set --dp-size to 2"));
  EXPECT_EQ(refusal({.compute = {.dp_size = 2}}), "it starts");
  EXPECT_THAT(refusal({.compute = {.pp_size = 2}}), HasSubstr("leave --pp-size or"));
  EXPECT_THAT(refusal({}, 7), HasSubstr("features in an MLP"));
  EXPECT_THAT(refusal({.speculation = {.speculative_algorithm = "RADIX"}}),
              HasSubstr("--speculative-algorithm RADIX"));
  EXPECT_THAT(refusal({.lora = {.enable_lora = true}}), HasSubstr("--enable-lora"));
  EXPECT_THAT(refusal({.cache = {.num_cache_events = 10}}), HasSubstr("--kv-events-config"));
  EXPECT_THAT(refusal({.tiers = {.enable_hierarchical_cache = true, .hicache_size_gb = 1}}),
              HasSubstr("--enable-hierarchical-cache"));
  EXPECT_THAT(refusal({.cache = {.max_total_tokens = 1}}), HasSubstr("needs a page"));
}

}  // namespace
}  // namespace espalier
