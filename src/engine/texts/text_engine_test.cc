// The engine of encoders of texts: whole lives of requests on the folders of tests/golden/texts.
#include "engine/texts/text_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "engine/texts/text_queue.h"
#include "engine/texts/typed_text.h"
#include "models/golden.h"

namespace espalier {
namespace {

using testing::HasSubstr;
const std::string kTextFolders = "tests/golden/texts/";

EngineConfig config_of(const std::string& name) {
  return {.model = {.model_path = kTextFolders + name},
          .compute = {.device = "cpu", .num_threads = 2}};
}

std::unique_ptr<Engine> start(const EngineConfig& config) {
  auto engine = Engine::create(config);
  EXPECT_TRUE(engine) << engine.error().to_string();
  return engine ? *std::move(engine) : nullptr;
}

std::string refusal(const EngineConfig& config) {
  const auto engine = Engine::create(config);
  return engine ? "" : engine.error().message();
}

TEST(TextEngine, GivesTheVectorsOfTheReferencesWhateverRunsBeside) {
  EngineConfig config = config_of("xlm_roberta_rerank");
  config.model.skip_tokenizer_init = true;
  config.schedule.chunked_prefill_size = 70;  // steps of a few texts
  const auto engine = start(config);
  ASSERT_TRUE(engine);
  const auto texts = golden::read_encoded_texts(kTextFolders + "xlm_roberta_rerank");
  std::vector<std::future<void>> all;
  for (int i = 0; i < 40; ++i) {
    const golden::EncodedText& text = texts[static_cast<size_t>(i) % texts.size()];
    all.push_back(std::async(std::launch::async, [&] {
      const auto result = encode(*engine, {.input_ids = text.tokens});
      ASSERT_TRUE(result) << result.error().to_string();
      EXPECT_NEAR(result->embedding[0], text.vector[0], 1e-4f);
      EXPECT_EQ(result->stats.prompt_tokens, std::ssize(text.tokens));
    }));
  }
  for (auto& one : all) one.get();
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.requests.num_finished, 40);
  EXPECT_EQ(stats.requests.num_running + stats.requests.num_waiting, 0);
  EXPECT_LE(stats.steps.num_steps, 40);
}

TEST(TextEngine, ScoresPairsAndTokens) {
  const auto pairs = start(config_of("bert_rerank"));
  ASSERT_TRUE(pairs);
  const std::vector<std::string> items = {"the cat eats fish", "a tree is green", "the bird flies"};
  const auto scores = score(*pairs, {.query = "what eats fish", .items = items});
  ASSERT_TRUE(scores) << scores.error().to_string();
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_GT((*scores)[i][0], 0);  // a sigmoid's
    EXPECT_LT((*scores)[i][0], 1);
    const auto one =
        encode(*pairs, {.text = "what eats fish", .embed = true, .text_pair = items[i]});
    ASSERT_TRUE(one);
    EXPECT_FLOAT_EQ(fitting_score(one->embedding, *pairs->model_info().pooled), (*scores)[i][0]);
    // The types of the second text count: the texts as one have another score.
    const auto joined = encode(*pairs, {.text = "what eats fish " + items[i]});
    EXPECT_NE(joined->embedding[0], one->embedding[0]);
  }
  const auto turned =
      score(*pairs, {.query = "what eats fish", .items = items, .item_first = true});
  EXPECT_NE(*turned, *scores);

  const auto late = start(config_of("colbert"));
  ASSERT_TRUE(late);
  const auto sims = score(*late, {.query = "what eats fish", .items = items});
  ASSERT_TRUE(sims) << sims.error().to_string();
  GenerateRequest query{.text = "what eats fish", .text_role = GenerateRequest::TextRole::kQuery};
  GenerateRequest item{.text = items[1], .text_role = GenerateRequest::TextRole::kDocument};
  const std::vector<float> q = encode(*late, query)->embedding, d = encode(*late, item)->embedding;
  EXPECT_EQ(q.size(), 6u * 16);  // [CLS] [unused0] what eats fish [SEP]
  EXPECT_FLOAT_EQ((*sims)[1][0], max_sim(q, d, 16));
  EXPECT_FALSE(score(*late, {.query_ids = {5}, .item_ids = {{6}}}));
}

TEST(TextEngine, LongTextsAreRefusedOrCut) {
  const auto engine = start(config_of("bert_mean"));  // 48 tokens
  ASSERT_TRUE(engine);
  std::string text;
  for (int i = 0; i < 60; ++i) text += "cat ";
  const auto refused = encode(*engine, {.text = text});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("62 tokens"));
  const auto cut = encode(*engine, {.text = text, .truncate_to = -1});
  ASSERT_TRUE(cut) << cut.error().to_string();
  EXPECT_EQ(cut->stats.prompt_tokens, 48);
  std::string shorter;
  for (int i = 0; i < 46; ++i) shorter += "cat ";
  EXPECT_EQ(encode(*engine, {.text = shorter})->embedding, cut->embedding);
  EXPECT_EQ(encode(*engine, {.text = text, .truncate_to = 10})->stats.prompt_tokens, 10);
  EXPECT_THAT(encode(*engine, {.text = text, .truncate_to = 49}).error().message(),
              HasSubstr("truncate_prompt_tokens"));
  EXPECT_EQ(encode(*engine, {.text = "cat", .dimensions = 8})->embedding.size(), 8u);
}

TEST(TextEngine, RefusesByName) {
  const auto engine = start(config_of("bert_mean"));
  ASSERT_TRUE(engine);
  EXPECT_THAT(engine->generate({.text = "cat"}).error().message(),
              HasSubstr("does not generate text"));
  EXPECT_THAT(encode(*engine, {.input_ids = {5, 4000}}).error().message(), HasSubstr("4000"));
  EXPECT_THAT(encode(*engine, {.text = "a", .text_pair = "b"}).error().message(),
              HasSubstr("no pairs"));
  EXPECT_THAT(encode(*engine, {.text = "a", .lora = "b"}).error().message(),
              HasSubstr("lora_path"));
  EngineConfig config = config_of("bert_mean");
  config.compute.tp_size = 2;
  EXPECT_THAT(refusal(config), HasSubstr("--tp-size"));
  config = config_of("bert_mean");
  config.lora.enable_lora = true;
  EXPECT_THAT(refusal(config), HasSubstr("--enable-lora"));
  config = config_of("bert_mean");
  config.schedule.max_queued_requests = -1;
  EXPECT_THAT(refusal(config), HasSubstr("max_queued_requests"));
}

// Each request ends once, whatever is aborted meanwhile and when the engine goes.
TEST(TextEngine, AbortsAndDrains) {
  std::atomic<int> ended{0}, aborted{0};
  int accepted = 0;
  {
    EngineConfig config = config_of("bert_mean");
    config.schedule.chunked_prefill_size = 48;
    const auto engine = start(config);
    ASSERT_TRUE(engine);
    const auto sink = [&](TokenEvent&& event) {
      ASSERT_TRUE(event.finish);
      ++ended;
      aborted += event.finish->type == FinishReason::Type::kAbort;
    };
    for (int i = 0; i < 300; ++i) {
      GenerateRequest request{
          .rid = fmt::format("text-{}", i), .text = "the cat eats fish", .embed = true};
      accepted += engine->submit(std::move(request), sink).has_value();
      if (i % 10 == 9) engine->abort(fmt::format("text-{}", i), Engine::AbortScope::kExact);
      if (i == 150) engine->abort("text-1", Engine::AbortScope::kPrefix);
    }
    engine->drain(std::chrono::seconds(60));
    EXPECT_EQ(ended, accepted);
    EXPECT_EQ(engine->stats().requests.num_aborted, aborted.load());
    EXPECT_FALSE(engine->submit({.text = "cat", .embed = true}, sink));  // it has been drained
  }
  EXPECT_EQ(ended, accepted);
}

TEST(TextQueue, TakesWholeTextsByPriorityAndAge) {
  TextQueue queue;
  const auto put = [&](RequestId id, int32_t priority, size_t tokens) {
    auto job = std::make_unique<TextJob>();
    job->id = id;
    job->request.priority = priority;
    job->text = TypedIds{std::vector<TokenId>(tokens), {}};
    queue.push(std::move(job));
    queue.push_tokenised(queue.next_raw());
  };
  put(1, 0, 10), put(2, 0, 10), put(3, 5, 10), put(4, 0, 100), put(5, 0, 1);
  const auto ids_of = [](const std::vector<TextJobPtr>& jobs) {
    std::vector<RequestId> ids;
    for (const auto& job : jobs) ids.push_back(job->id);
    return ids;
  };
  EXPECT_EQ(queue.num_waiting(), 5);
  EXPECT_EQ(ids_of(queue.next_step(25)), (std::vector<RequestId>{3, 1}));
  queue.abort({2});
  // An aborted text takes no tokens of the step; one that is too long for a step runs alone.
  const auto step = queue.next_step(25);
  EXPECT_EQ(ids_of(step), (std::vector<RequestId>{2}));
  EXPECT_TRUE(step[0]->aborted);
  EXPECT_EQ(ids_of(queue.next_step(25)), (std::vector<RequestId>{4}));
  queue.close();
  EXPECT_TRUE(queue.next_step(25)[0]->aborted);
  EXPECT_TRUE(queue.next_step(25).empty());
}

}  // namespace
}  // namespace espalier
