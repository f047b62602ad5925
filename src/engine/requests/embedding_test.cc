// Texts that become vectors, through the engine: those of transformers, the same bits whatever the
// batch, the chunks, the pages and the cache; and scores of items.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <thread>

#include "engine/engine.h"
#include "engine/requests/embedding.h"
#include "models/golden.h"

namespace espalier {
namespace {

using testing::HasSubstr;

const std::filesystem::path kPooled = "tests/golden/pooled";
const std::filesystem::path kLlama = "tests/golden/models/llama_tied_llama3";

EngineConfig config_of(const std::filesystem::path& path) {
  return {.model = {.model_path = path, .skip_tokenizer_init = true},
          .compute = {.device = "cpu", .num_threads = 2},
          .cache = {.max_total_tokens = 512},
          .check_invariants = true};
}

std::unique_ptr<Engine> start(const EngineConfig& config) {
  auto engine = Engine::create(config);
  EXPECT_TRUE(engine) << engine.error().to_string();
  return engine ? *std::move(engine) : nullptr;
}

class PooledEngine : public testing::TestWithParam<const char*> {};

TEST_P(PooledEngine, MakesTheVectorsOfTransformersInAnyCompany) {
  const golden::PooledGolden golden = golden::read_pooled(kPooled / GetParam());
  std::vector<std::vector<float>> first;
  for (const int32_t chunk : {-1, 5, 1}) {
    for (const int32_t page_size : {1, 8}) {
      for (const bool cached : {true, false}) {
        EngineConfig config = config_of(golden.folder);
        config.model.dtype = "float32";
        config.schedule.chunked_prefill_size = chunk;
        config.cache.page_size = page_size;
        config.cache.disable_radix_cache = !cached;
        const auto engine = start(config);
        ASSERT_TRUE(engine);
        for (int round = 0; round < 2; ++round) {  // the second from the cache
          std::vector<std::thread> threads;
          std::vector<std::vector<float>> vectors(golden.texts.size());
          for (size_t i = 0; i < golden.texts.size(); ++i) {
            threads.emplace_back([&, i] {
              const auto result = encode(*engine, {.input_ids = golden.texts[i].tokens});
              ASSERT_TRUE(result) << result.error().to_string();
              vectors[i] = result->embedding;
            });
          }
          for (std::thread& thread : threads) thread.join();
          for (size_t i = 0; i < vectors.size(); ++i) {
            ASSERT_EQ(vectors[i].size(), golden.texts[i].vector.size());
            for (size_t k = 0; k < vectors[i].size(); ++k) {
              ASSERT_NEAR(vectors[i][k], golden.texts[i].vector[k], 2e-4);
            }
          }
          if (first.empty()) first = vectors;
          EXPECT_EQ(vectors, first) << "chunks of " << chunk << ", pages of " << page_size;
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, PooledEngine,
                         testing::Values("qwen3_embedding", "mistral_mean", "llama_classes",
                                         "qwen2_reward"));

TEST(Embedding, TheLastTokensComeFromTheCacheAndMeansDoNot) {
  std::vector<TokenId> tokens(40);
  std::iota(tokens.begin(), tokens.end(), 3);
  const auto last = start(config_of(kPooled / "qwen3_embedding"));
  EXPECT_EQ(encode(*last, {.input_ids = tokens})->stats.cached_tokens, 0);
  EXPECT_EQ(encode(*last, {.input_ids = tokens})->stats.cached_tokens, 39);
  tokens.push_back(9);
  EXPECT_EQ(encode(*last, {.input_ids = tokens})->stats.cached_tokens, 40);
  const auto mean = start(config_of(kPooled / "mistral_mean"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(encode(*mean, {.input_ids = tokens})->stats.cached_tokens, 0);
  }
  EXPECT_EQ(mean->stats().memory.kv_tokens_running, 0);
}

TEST(Embedding, ShortensAndNormalises) {
  const golden::PooledGolden golden = golden::read_pooled(kPooled / "qwen3_embedding");
  const auto engine = start(config_of(golden.folder));
  const auto short_one =
      encode(*engine, {.input_ids = golden.texts[2].tokens, .dimensions = 5})->embedding;
  ASSERT_EQ(short_one.size(), 5u);
  EXPECT_NEAR(std::inner_product(short_one.begin(), short_one.end(), short_one.begin(), 0.0), 1.0,
              1e-6);
  const auto whole = encode(*engine, {.input_ids = golden.texts[2].tokens})->embedding;
  EXPECT_NEAR(short_one[0] / short_one[1], whole[0] / whole[1], 1e-4);
  EXPECT_THAT(encode(*engine, {.input_ids = {5}, .dimensions = 33}).error().message(),
              HasSubstr("the model's vectors have 32"));
  std::vector<float> zero(4);
  shape_embedding(zero, {.size = 4, .normalize = true}, 0);
  EXPECT_EQ(zero, std::vector<float>(4));
}

TEST(Embedding, ModelsAreAskedForWhatTheyMake) {
  const auto generating = start(config_of(kLlama));
  const auto refused = encode(*generating, {.input_ids = {5, 6}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message(), HasSubstr("--is-embedding"));

  const auto classes = start(config_of(kPooled / "llama_classes"));
  const auto no_text = classes->generate({.input_ids = {5, 6}});
  ASSERT_FALSE(no_text);
  EXPECT_EQ(no_text.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(no_text.error().message(), HasSubstr("does not generate text: it makes scores"));
  EXPECT_THAT(encode(*classes, {.input_ids = {5}, .dimensions = 2}).error().message(),
              HasSubstr("scores cannot be shortened"));
  EXPECT_THAT(encode(*classes, {.input_ids = {500}}).error().message(), HasSubstr("token 500"));

  EngineConfig config = config_of(kLlama);
  config.model.is_embedding = true;
  const auto explicit_kind = start(config);
  EXPECT_EQ(encode(*explicit_kind, {.input_ids = {5, 6}})->embedding.size(), 64u);
}

TEST(Score, IsTheProbabilityOfTheLabelsBehindQueryAndItem) {
  const auto engine = start(config_of(kLlama));
  ScoreRequest request{
      .query_ids = {5, 6, 7}, .item_ids = {{9, 10}, {11}}, .label_token_ids = {20, 30, 40}};
  const auto scores = score(*engine, request);
  ASSERT_TRUE(scores) << scores.error().to_string();
  ASSERT_EQ(scores->size(), 2u);
  const auto behind = [&](std::vector<TokenId> ids) {
    auto answer = engine->generate({.input_ids = std::move(ids),
                                    .sampling = {.max_new_tokens = 1, .temperature = 0.0f},
                                    .return_logprob = true,
                                    .token_ids_logprob = {20, 30, 40}});
    std::vector<float> out;
    for (const auto& [id, logprob] : answer->output_logprobs.at(0).wanted) {
      out.push_back(std::exp(logprob));
    }
    return out;
  };
  EXPECT_EQ((*scores)[0], behind({5, 6, 7, 9, 10}));
  EXPECT_EQ((*scores)[1], behind({5, 6, 7, 11}));
  request.item_first = true;
  EXPECT_EQ((*score(*engine, request))[0], behind({9, 10, 5, 6, 7}));
  request.apply_softmax = true;
  const std::vector<float> shares = (*score(*engine, request))[1];
  EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1.0, 1e-6);
  const std::vector<float> raw = behind({11, 5, 6, 7});
  EXPECT_NEAR(shares[0] / shares[2], raw[0] / raw[2], 1e-4 * raw[0] / raw[2]);

  request.label_token_ids = {200};
  EXPECT_THAT(score(*engine, request).error().message(), HasSubstr("[0, 200)"));
  request.label_token_ids.clear();
  EXPECT_THAT(score(*engine, request).error().message(), HasSubstr("label_token_ids is missing"));
}

TEST(Score, IsTheHeadsWhereThereIsOne) {
  const golden::PooledGolden golden = golden::read_pooled(kPooled / "qwen2_reward");
  const auto engine = start(config_of(golden.folder));
  const std::vector<TokenId>& tokens = golden.texts[3].tokens;
  const auto split = tokens.begin() + 10;
  const auto scores = score(
      *engine, {.query_ids = {tokens.begin(), split}, .item_ids = {{split, tokens.end()}, {4, 5}}});
  ASSERT_TRUE(scores) << scores.error().to_string();
  EXPECT_NEAR((*scores)[0].at(0), golden.texts[3].vector[0], 0.1);
  const auto embeds = start(config_of(kPooled / "qwen3_embedding"));
  EXPECT_THAT(score(*embeds, {.query_ids = {4}, .item_ids = {{5}}}).error().message(),
              HasSubstr("/v1/rerank"));
}

}  // namespace
}  // namespace espalier
