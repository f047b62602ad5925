// Encoders of texts against transformers: tests/golden/texts, made by
// tools/goldens/make_text_goldens.py.
#include "models/text_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/temp_folder.h"
#include "models/golden.h"
#include "models/model_plan.h"
#include "models/program/cpu_text_encoder.h"

namespace espalier {
namespace {

using golden::EncodedText;
using testing::ElementsAre;
using testing::HasSubstr;

const std::filesystem::path kTexts = "tests/golden/texts";
constexpr const char* kEncoders[] = {
    "bert_mean",          "bert_dense", "bert_rerank",        "bert_classes", "roberta",
    "xlm_roberta_rerank", "modernbert", "modernbert_classes", "colbert"};

std::vector<float> unit(std::vector<float> vector, size_t width) {
  for (size_t at = 0; at < vector.size(); at += width) {
    double sum = 0;
    for (size_t i = at; i < at + width; ++i) sum += double{vector[i]} * double{vector[i]};
    for (size_t i = at; i < at + width; ++i)
      vector[i] = static_cast<float>(vector[i] / std::sqrt(sum));
  }
  return vector;
}

// What the engine hands out of a text.
std::vector<float> shaped(const TextEncoder& encoder, std::vector<float> vector) {
  const PooledInfo& pooled = *encoder.info().pooled;
  if (!pooled.normalize || pooled.each_token) return vector;
  const size_t width = vector.size();
  return unit(std::move(vector), width);
}

// The largest error of texts that are encoded one by one, in units of the reference's spread.
float error_of(TextEncoder& encoder, const std::vector<EncodedText>& texts) {
  float worst = 0, least = INFINITY, most = -INFINITY;
  for (const EncodedText& text : texts) {
    const EncoderText one{text.tokens, text.types};
    auto vectors = encoder.encode({&one, 1});
    EXPECT_TRUE(vectors) << vectors.error().to_string();
    if (!vectors) return INFINITY;
    const std::vector<float> vector = shaped(encoder, std::move(vectors->front()));
    EXPECT_EQ(vector.size(), text.vector.size());
    if (vector.size() != text.vector.size()) return INFINITY;
    for (size_t i = 0; i < vector.size(); ++i) {
      worst = std::max(worst, std::abs(vector[i] - text.vector[i]));
      least = std::min(least, text.vector[i]);
      most = std::max(most, text.vector[i]);
    }
  }
  return worst / (most - least);
}

std::unique_ptr<TextEncoder> load(const std::string& name, const char* dtype, WorkPool& pool) {
  auto encoder = load_text_encoder({.path = kTexts / name, .dtype = dtype, .pool = &pool}, 100);
  EXPECT_TRUE(encoder) << encoder.error().to_string();
  return encoder ? *std::move(encoder) : nullptr;
}

class TextEncoders : public testing::TestWithParam<const char*> {};

TEST_P(TextEncoders, HaveTheVectorsOfTransformers) {
  WorkPool pool(2);
  const auto texts = golden::read_encoded_texts(kTexts / GetParam());
  ASSERT_EQ(texts.size(), 4u);
  for (const auto& [dtype, tolerance] : {std::pair{"float32", 1e-4f}, {"bfloat16", 3e-2f}}) {
    const auto encoder = load(GetParam(), dtype, pool);
    ASSERT_TRUE(encoder);
    const float error = error_of(*encoder, texts);
    RecordProperty(dtype, std::to_string(error));
    EXPECT_LE(error, tolerance) << dtype;
  }
}

// Several texts are one step, without padding, and a text's bits do not depend on the others.
TEST_P(TextEncoders, HaveTheSameBitsInAnyCompany) {
  WorkPool pool(2);
  const auto texts = golden::read_encoded_texts(kTexts / GetParam());
  const auto encoder = load(GetParam(), "float32", pool);
  ASSERT_TRUE(encoder);
  std::vector<std::vector<float>> alone;
  std::vector<EncoderText> all;
  for (const EncodedText& text : texts) {
    all.push_back({text.tokens, text.types});
    const auto one = encoder->encode({&all.back(), 1});
    ASSERT_TRUE(one);
    alone.push_back(one->front());
  }
  const auto together = encoder->encode(all);
  ASSERT_TRUE(together);
  EXPECT_EQ(*together, alone);
  std::ranges::reverse(all);
  std::ranges::reverse(alone);
  EXPECT_EQ(*encoder->encode(all), alone);
}

INSTANTIATE_TEST_SUITE_P(All, TextEncoders, testing::ValuesIn(kEncoders));

template <typename Change>
void each_layer(DecoderSpec& spec, const Change& change) {
  for (LayerSpec& layer : spec.layers) change(layer);
}

struct Mutation {
  const char* name;
  const char* golden;
  void (*change)(DecoderSpec&);
};
const Mutation kMutations[] = {
    {"norms in front of sums", "bert_mean", [](DecoderSpec& s) { s.texts->norms_of_sums = false; }},
    {"no norm of the embeddings", "bert_rerank",
     [](DecoderSpec& s) {
       s.texts->norm.reset();
       s.names.unused_prefixes.push_back("bert.embeddings.LayerNorm.");
     }},
    {"no token types", "bert_mean",
     [](DecoderSpec& s) {
       s.texts->token_types = 0;
       s.names.unused_prefixes.push_back("embeddings.token_type_embeddings.");
     }},
    {"no types in XLM-R, whose only one is a vector", "xlm_roberta_rerank",
     [](DecoderSpec& s) {
       s.texts->token_types = 0;
       s.names.unused_prefixes.push_back("roberta.embeddings.token_type_embeddings.");
     }},
    {"positions from 0", "roberta", [](DecoderSpec& s) { s.texts->first_position = 0; }},
    {"positions from the padding's", "xlm_roberta_rerank",
     [](DecoderSpec& s) { s.texts->first_position = 1; }},
    {"the quick GELU", "bert_mean",
     [](DecoderSpec& s) {
       each_layer(s, [](LayerSpec& l) { l.mlp.gelu = kernels::Gelu::kQuick; });
     }},
    {"SiLU for the tanh form of GELU", "bert_dense",
     [](DecoderSpec& s) {
       each_layer(s, [](LayerSpec& l) { l.mlp.activation = kernels::Activation::kSilu; });
     }},
    {"SiLU for a gated GELU", "modernbert",
     [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.mlp.gelu.reset(); }); }},
    {"the mean for the first token", "roberta",
     [](DecoderSpec& s) { s.pooling->kind = PoolingSpec::Kind::kMean; }},
    {"the first token for the mean", "modernbert_classes",
     [](DecoderSpec& s) { s.pooling->kind = PoolingSpec::Kind::kFirst; }},
    {"the mean for the largest", "bert_dense",
     [](DecoderSpec& s) { s.pooling->kind = PoolingSpec::Kind::kMean; }},
    {"no tanh in the head", "bert_rerank",
     [](DecoderSpec& s) { s.texts->head[0].activation = TextsSpec::HeadLayer::Activation::kNone; }},
    {"no norm in the head", "modernbert_classes",
     [](DecoderSpec& s) { s.texts->head[0].norm.reset(); }},
    {"no bias in the head", "bert_classes", [](DecoderSpec& s) { s.texts->head[1].bias = false; }},
    {"no Dense", "bert_dense", [](DecoderSpec& s) { s.texts->head[0].activation = {}; }},
    {"a wider reach", "modernbert",
     [](DecoderSpec& s) {
       each_layer(s, [](LayerSpec& l) { l.attention.reach += l.attention.reach > 0 ? 1 : 0; });
     }},
    {"no reach", "modernbert",
     [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.reach = 0; }); }},
    {"one rope", "modernbert",
     [](DecoderSpec& s) { each_layer(s, [](LayerSpec& l) { l.attention.rope = 0; }); }},
    {"another rope", "modernbert_classes", [](DecoderSpec& s) { s.ropes[0].theta = 10000; }},
    {"vectors of any length", "colbert", [](DecoderSpec& s) { s.pooling->normalize = false; }},
};

// Tolerances are 1e-4: a change of ten times that is noticed.
TEST(TextEncoderMutations, WhatIsLeftOutIsNoticed) {
  WorkPool pool(2);
  for (const Mutation& mutation : kMutations) {
    SCOPED_TRACE(mutation.name);
    const std::filesystem::path folder = kTexts / mutation.golden;
    ModelLoadOptions options{.path = folder, .dtype = "float32", .pool = &pool};
    auto plan = plan_model(options);
    ASSERT_TRUE(plan) << plan.error().to_string();
    mutation.change(plan->spec);
    auto head = TextHead::load(options, plan->spec);
    ASSERT_TRUE(head) << head.error().to_string();
    const auto checkpoint = Checkpoint::open(folder);
    ASSERT_TRUE(checkpoint);
    CheckpointSource source(*checkpoint, plan->spec, DType::kFloat32, &pool);
    auto encoder = program::CpuTextEncoder::create(plan->spec, *std::move(head), DType::kFloat32,
                                                   source, pool, 100);
    ASSERT_TRUE(encoder) << encoder.error().to_string();
    EXPECT_GT(error_of(**encoder, golden::read_encoded_texts(folder)), 1e-3f);
  }
}

TEST(TextEncoderInfo, FoldersSayWhatTheyMake) {
  const auto info_of = [](const char* name) { return read_model_info({.path = kTexts / name}); };
  const auto mean = info_of("bert_mean");
  ASSERT_TRUE(mean) << mean.error().to_string();
  EXPECT_TRUE(mean->pooled->normalize);
  EXPECT_EQ(mean->pooled->size, 32);
  EXPECT_EQ(mean->context_length, 48);  // sentence_bert_config.json
  EXPECT_EQ(info_of("bert_dense")->pooled->size, 24);
  EXPECT_EQ(info_of("roberta")->context_length, 64);  // two positions are the padding's
  const auto classes = info_of("bert_classes");
  EXPECT_THAT(classes->pooled->labels, ElementsAre("calm", "glad", "wild"));
  EXPECT_TRUE(classes->pooled->is_scores && classes->pooled->pairs && !classes->pooled->sigmoid);
  EXPECT_TRUE(info_of("bert_rerank")->pooled->sigmoid);
  EXPECT_FALSE(info_of("xlm_roberta_rerank")->pooled->sigmoid);  // its config.json says Identity
  const auto colbert = info_of("colbert");
  EXPECT_TRUE(colbert->pooled->each_token);
  EXPECT_EQ(colbert->pooled->size, 16);  // artifact.metadata
  EXPECT_TRUE(is_text_encoder({.path = kTexts / "roberta"}));
  EXPECT_FALSE(is_text_encoder({.path = "tests/golden/pooled/mistral_mean"}));
  EXPECT_FALSE(is_text_encoder({.path = "tests/golden/no_such_folder"}));
}

TEST(TextEncoderInfo, DummyWeightsNeedNoFiles) {
  WorkPool pool(2);
  for (const char* name : kEncoders) {
    auto encoder = load_text_encoder(
        {.path = kTexts / name, .format = LoadFormat::kDummy, .seed = 3, .pool = &pool}, 64);
    ASSERT_TRUE(encoder) << name << ": " << encoder.error().to_string();
    const std::vector<TokenId> ids = {5, 6, 7};
    const EncoderText text{ids, {}};
    const auto vectors = (*encoder)->encode({&text, 1});
    ASSERT_TRUE(vectors);
    for (const float v : vectors->front()) EXPECT_TRUE(std::isfinite(v)) << name;
  }
}

// A folder with one file changed; "" removes it.
std::string failure_of(const std::string& golden, const std::string& file, const std::string& text,
                       const std::string& overrides = "") {
  TempFolder folder;
  std::filesystem::copy(kTexts / golden, folder.path(), std::filesystem::copy_options::recursive);
  if (!file.empty()) std::filesystem::remove(folder.path() / file);
  if (!text.empty()) folder.write(file, text);
  WorkPool pool(1);
  const auto encoder =
      load_text_encoder({.path = folder.path(), .config_overrides = overrides, .pool = &pool}, 64);
  return encoder ? "" : encoder.error().message();
}

TEST(TextEncoderInfo, WhatIsNotDoneIsRefusedByName) {
  const auto changed = [](const char* golden, const char* overrides) {
    return failure_of(golden, "", "", overrides);
  };
  EXPECT_THAT(changed("bert_mean", R"({"position_embedding_type": "relative_key"})"),
              HasSubstr("position_embedding_type"));
  EXPECT_THAT(changed("bert_mean", R"({"is_decoder": true})"), HasSubstr("is_decoder"));
  EXPECT_THAT(changed("bert_mean", R"({"hidden_act": "relu"})"), HasSubstr("hidden_act"));
  EXPECT_THAT(changed("bert_mean", R"({"num_attention_heads": 5})"),
              HasSubstr("num_attention_heads"));
  EXPECT_THAT(changed("modernbert", R"({"norm_bias": true})"), HasSubstr("norm_bias"));
  EXPECT_THAT(changed("modernbert_classes", R"({"classifier_pooling": "max"})"),
              HasSubstr("classifier_pooling"));
  EXPECT_THAT(
      changed("bert_rerank", R"({"sentence_transformers": {"activation_fn": "x.Softmax"}})"),
      HasSubstr("x.Softmax"));
  EXPECT_THAT(failure_of("bert_mean", "1_Pooling/config.json",
                         R"({"pooling_mode_mean_sqrt_len_tokens": true})"),
              HasSubstr("mean_sqrt_len_tokens"));
  EXPECT_THAT(failure_of("bert_dense", "2_Dense/model.safetensors", ""), HasSubstr("2_Dense"));
  EXPECT_THAT(failure_of("bert_dense", "2_Dense/config.json",
                         R"({"out_features": 24, "activation_function": "a.Softsign"})"),
              HasSubstr("a.Softsign"));
  const auto decoder = load_model({.path = kTexts / "bert_mean"});
  ASSERT_FALSE(decoder);
  EXPECT_THAT(decoder.error().message(), HasSubstr("encoder of texts"));
}

}  // namespace
}  // namespace espalier
