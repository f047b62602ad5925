// Models that make a vector of a text, against transformers: tests/golden/pooled, made by
// tools/goldens/make_pooled_goldens.py. How parts of a text are put together is the engine's; see
// engine/requests/embedding_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/temp_folder.h"
#include "models/golden.h"
#include "models/model_plan.h"
#include "models/program/cpu_model.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::filesystem::path kRoot = "tests/golden/pooled";

// The pooled vector of a whole text in one step, as the executor makes it.
std::vector<float> vector_of(Model& model, const std::vector<TokenId>& tokens) {
  EXPECT_TRUE(model.reserve(64, 1).ok());
  Rng rng(5);
  golden::KvMemory kv(model.info(), KvType::kFloat32, 4, 64, rng);
  ForwardBatch batch;
  BatchEntry entry;
  entry.num_query_tokens = static_cast<int32_t>(tokens.size());
  entry.num_pages = (entry.num_query_tokens + 3) / 4;
  entry.pooled_begin = model.info().pooled->all_tokens ? 0 : entry.num_query_tokens - 1;
  entry.pooled_end = true;
  for (int32_t i = 0; i < entry.num_pages; ++i) batch.page_tables.push_back(kv.take_page());
  for (int32_t i = 0; i < entry.num_query_tokens; ++i) batch.positions.push_back(i);
  batch.token_ids = tokens;
  batch.entries.push_back(entry);
  const ForwardOutput output = model.forward(batch, tokens, kv.view(), {});
  EXPECT_TRUE(output.sample_logits.empty());
  const auto count = static_cast<size_t>(entry.num_query_tokens - entry.pooled_begin);
  const size_t size = output.pooled_rows.size() / count;
  std::vector<double> sum(size);
  for (size_t i = 0; i < output.pooled_rows.size(); ++i) sum[i % size] += output.pooled_rows[i];
  std::vector<float> mean;
  for (const double v : sum) mean.push_back(static_cast<float>(v / static_cast<double>(count)));
  std::vector<float> vector = model.finish_pooled(mean);
  if (!model.info().pooled->normalize) return vector;
  double length = 0;
  for (const float v : vector) length += double{v} * double{v};
  for (float& v : vector) v = static_cast<float>(v / std::sqrt(length));
  return vector;
}

// The largest error, in units of the reference's spread.
float error_of(Model& model, const golden::PooledGolden& golden) {
  float worst = 0, least = INFINITY, most = -INFINITY;
  for (const golden::Pooled& text : golden.texts) {
    const std::vector<float> vector = vector_of(model, text.tokens);
    EXPECT_EQ(vector.size(), text.vector.size());
    for (size_t i = 0; i < vector.size(); ++i) {
      worst = std::max(worst, std::abs(vector[i] - text.vector[i]));
      least = std::min(least, text.vector[i]);
      most = std::max(most, text.vector[i]);
    }
  }
  return worst / (most - least);
}

std::unique_ptr<Model> load(const std::string& name, const char* dtype, WorkPool& pool,
                            int32_t pp_size = 1) {
  auto model = load_model({.path = kRoot / name,
                           .dtype = dtype,
                           .pool = &pool,
                           .pp_size = pp_size,
                           .pp_micro_batch_tokens = 3});
  EXPECT_TRUE(model) << model.error().to_string();
  return model ? *std::move(model) : nullptr;
}

class PooledModel : public testing::TestWithParam<const char*> {};

TEST_P(PooledModel, HasTheVectorsOfTransformers) {
  WorkPool pool(2);
  const golden::PooledGolden golden = golden::read_pooled(kRoot / GetParam());
  ASSERT_EQ(golden.texts.size(), 4u);
  for (const auto& [dtype, tolerance] : {std::pair{"float32", 1e-4f}, {"bfloat16", 2e-2f}}) {
    const auto model = load(GetParam(), dtype, pool);
    ASSERT_TRUE(model);
    const float error = error_of(*model, golden);
    RecordProperty(dtype, std::to_string(error));
    EXPECT_LE(error, tolerance) << dtype;
  }
}

TEST_P(PooledModel, HasTheSameBitsInStages) {
  WorkPool pool(2);
  const auto whole = load(GetParam(), "bfloat16", pool),
             stages = load(GetParam(), "bfloat16", pool, 2);
  ASSERT_TRUE(whole && stages);
  for (const golden::Pooled& text : golden::read_pooled(kRoot / GetParam()).texts)
    EXPECT_EQ(vector_of(*stages, text.tokens), vector_of(*whole, text.tokens));
}

INSTANTIATE_TEST_SUITE_P(All, PooledModel,
                         testing::Values("qwen3_embedding", "mistral_mean", "llama_classes",
                                         "qwen2_reward"));

TEST(Pooling, WhatIsLeftOutIsNoticed) {
  WorkPool pool(2);
  struct Mutation {
    const char* name;
    const char* golden;
    void (*change)(DecoderSpec&);
  };
  const Mutation mutations[] = {
      {"the last token for the mean", "mistral_mean",
       [](DecoderSpec& s) { s.pooling->kind = PoolingSpec::Kind::kLast; }},
      {"the mean for the last token", "qwen3_embedding",
       [](DecoderSpec& s) { s.pooling->kind = PoolingSpec::Kind::kMean; }},
      {"no normalisation", "qwen3_embedding", [](DecoderSpec& s) { s.pooling->normalize = false; }},
      {"normalisation", "mistral_mean", [](DecoderSpec& s) { s.pooling->normalize = true; }},
      {"another norm at the end", "llama_classes",
       [](DecoderSpec& s) { s.final_norm->kind = NormSpec::Kind::kRmsOneCentred; }},
      {"no bias in the head", "qwen2_reward",
       [](DecoderSpec& s) {
         s.pooling->head[0].bias = false;
         s.names.unused_suffixes.push_back("score.0.bias");
       }},
      {"no rope", "llama_classes",
       [](DecoderSpec& s) {
         for (LayerSpec& layer : s.layers) layer.attention.rope.reset();
       }},
  };
  for (const Mutation& mutation : mutations) {
    const golden::PooledGolden golden = golden::read_pooled(kRoot / mutation.golden);
    auto plan = plan_model({.path = kRoot / mutation.golden});
    ASSERT_TRUE(plan);
    mutation.change(plan->spec);
    const auto checkpoint = Checkpoint::open(kRoot / mutation.golden);
    ASSERT_TRUE(checkpoint);
    CheckpointSource source(*checkpoint, plan->spec, DType::kFloat32, &pool);
    auto model = program::CpuModel::create(plan->spec, DType::kFloat32, source, pool);
    ASSERT_TRUE(model) << mutation.name << ": " << model.error().to_string();
    EXPECT_GT(error_of(**model, golden), 1e-3f) << mutation.name;
  }
}

TEST(Pooling, FoldersSayWhatTheyMake) {
  const auto classes = read_model_info({.path = kRoot / "llama_classes"});
  ASSERT_TRUE(classes);
  EXPECT_TRUE(classes->pooled->is_scores);
  EXPECT_THAT(classes->pooled->labels, ElementsAre("calm", "glad", "wild"));
  EXPECT_EQ(read_model_info({.path = kRoot / "qwen2_reward"})->pooled->size, 1);
  const auto mean = read_model_info({.path = kRoot / "mistral_mean"});
  EXPECT_TRUE(mean->pooled->all_tokens);
  EXPECT_FALSE(mean->pooled->normalize);
  EXPECT_EQ(mean->pooled->size, 32);
  // A generating model becomes one that makes embeddings only when the options request it.
  const std::filesystem::path llama = "tests/golden/models/llama_tied_llama3";
  EXPECT_FALSE(read_model_info({.path = llama})->pooled);
  const auto changed = read_model_info({.path = llama, .is_embedding = true});
  ASSERT_TRUE(changed->pooled);
  EXPECT_TRUE(changed->pooled->normalize);
  EXPECT_FALSE(changed->pooled->all_tokens);
  WorkPool pool(1);
  for (const char* name : {"llama_tied_llama3", "llama_untied_bias", "gpt2"}) {
    const auto model =
        load_model({.path = llama.parent_path() / name, .is_embedding = true, .pool = &pool});
    EXPECT_TRUE(model) << name << ": " << model.error().to_string();
  }
}

// A folder with one file changed; "" removes it.
std::string failure_of(const std::string& golden, const std::string& file,
                       const std::string& text) {
  TempFolder folder;
  std::filesystem::copy(kRoot / golden, folder.path(), std::filesystem::copy_options::recursive);
  std::filesystem::remove(folder.path() / file);
  if (!text.empty()) folder.write(file, text);
  const auto info = read_model_info({.path = folder.path()});
  return info ? "" : info.error().message();
}

TEST(Pooling, WhatIsNotDoneIsRefusedByName) {
  EXPECT_THAT(failure_of("qwen3_embedding", "modules.json",
                         R"([{"type":"sentence_transformers.models.Dense","path":"2_Dense"}])"),
              HasSubstr("the module 'sentence_transformers.models.Dense' is not supported"));
  EXPECT_THAT(failure_of("qwen3_embedding", "modules.json", "[]"), HasSubstr("no Pooling"));
  EXPECT_THAT(failure_of("qwen3_embedding", "modules.json", "[1]"), HasSubstr("list of objects"));
  EXPECT_THAT(failure_of("qwen3_embedding", "modules.json", "{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(
      failure_of("mistral_mean", "1_Pooling/config.json", R"({"pooling_mode_cls_token":true})"),
      HasSubstr("the pooling is 'cls_token'"));
  EXPECT_THAT(failure_of("mistral_mean", "1_Pooling/config.json",
                         R"({"pooling_mode_lasttoken":true,"pooling_mode_mean_tokens":true})"),
              HasSubstr("lasttoken, mean_tokens"));
  EXPECT_THAT(failure_of("mistral_mean", "1_Pooling/config.json", ""), HasSubstr("config.json"));
  const auto bidirectional = read_model_info(
      {.path = kRoot / "mistral_mean", .config_overrides = R"({"is_causal": false})"});
  ASSERT_FALSE(bidirectional);
  EXPECT_THAT(bidirectional.error().message(), HasSubstr("attention to both sides"));
}

}  // namespace
}  // namespace espalier
