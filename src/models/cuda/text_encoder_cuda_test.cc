// Encoders of texts on a GPU against transformers: tests/golden/texts.
#include "models/cuda/text_encoder.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "models/golden.h"
#include "tensor/cuda/device.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using golden::EncodedText;
const std::filesystem::path kGpuTexts = "tests/golden/texts";

std::vector<float> shaped(const TextEncoder& encoder, std::vector<float> vector) {
  const PooledInfo& pooled = *encoder.info().pooled;
  if (!pooled.normalize || pooled.each_token) return vector;
  double sum = 0;
  for (const float v : vector) sum += double{v} * double{v};
  for (float& v : vector) v = static_cast<float>(v / std::sqrt(sum));
  return vector;
}

// The largest difference, in units of the references' spread.
float difference(const std::vector<std::vector<float>>& got,
                 const std::vector<std::vector<float>>& expected) {
  float worst = 0, least = INFINITY, most = -INFINITY;
  EXPECT_EQ(got.size(), expected.size());
  for (size_t t = 0; t < got.size(); ++t) {
    EXPECT_EQ(got[t].size(), expected[t].size());
    for (size_t i = 0; i < std::min(got[t].size(), expected[t].size()); ++i) {
      const float error = std::abs(got[t][i] - expected[t][i]);
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
      least = std::min(least, expected[t][i]);
      most = std::max(most, expected[t][i]);
    }
  }
  return worst / (most - least);
}

class TextsCuda : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const auto device = cuda::open_device(0); !device) GTEST_SKIP() << device.error().message();
  }
  std::unique_ptr<CudaTextEncoder> load(const ModelLoadOptions& options,
                                        bool deterministic = false) {
    auto encoder =
        CudaTextEncoder::load(options, {.step_tokens_max = 256, .deterministic = deterministic});
    EXPECT_TRUE(encoder) << encoder.error().to_string();
    return encoder ? *std::move(encoder) : nullptr;
  }
};

TEST_P(TextsCuda, HaveTheVectorsOfTransformers) {
  const auto texts = golden::read_encoded_texts(kGpuTexts / GetParam());
  std::vector<EncoderText> all;
  std::vector<std::vector<float>> expected;
  for (const EncodedText& text : texts) {
    all.push_back({text.tokens, text.types});
    expected.push_back(text.vector);
  }
  // bfloat16 rounds each layer's states; one score of a tiny model has a small spread.
  for (const auto& [dtype, tolerance] : {std::pair{"float32", 2e-3f}, {"bfloat16", 8e-2f}}) {
    const auto encoder = load({.path = kGpuTexts / GetParam(), .dtype = dtype});
    ASSERT_TRUE(encoder);
    auto vectors = encoder->encode(all);
    ASSERT_TRUE(vectors) << vectors.error().to_string();
    for (auto& vector : *vectors) vector = shaped(*encoder, std::move(vector));
    const float error = difference(*vectors, expected);
    printf("%s %s: error %.3g\n", GetParam(), dtype, error);
    EXPECT_LT(error, tolerance) << dtype;
  }
}

// Texts of many lengths, some beyond a tile of attention, against the CPU with the same weights.
TEST_P(TextsCuda, HaveTheVectorsOfTheCpuInLargeSteps) {
  WorkPool pool(4);
  // Heads of 64 take the tensor cores' kernels, and reaches of 20 cross blocks of keys.
  const bool modern = std::string(GetParam()).starts_with("modern");
  const std::string sizes =
      R"({"hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 600)";
  const ModelLoadOptions options{
      .path = kGpuTexts / GetParam(),
      .format = LoadFormat::kDummy,
      .seed = 4,
      .dtype = "bfloat16",
      .config_overrides = sizes + (modern ? R"(, "local_attention": 40})" : "}"),
      .pool = &pool};
  auto encoder = CudaTextEncoder::load(options, {.step_tokens_max = 4000});
  ASSERT_TRUE(encoder) << encoder.error().to_string();
  auto cpu = load_text_encoder(options, 4000);
  ASSERT_TRUE(cpu) << cpu.error().to_string();
  Rng rng(3);
  const auto most = static_cast<uint64_t>((*cpu)->info().context_length);
  for (const bool equal : {true, false}) {
    std::vector<std::vector<TokenId>> ids;
    for (int i = 0; i < 9; ++i) {
      const uint64_t count =
          equal ? std::min<uint64_t>(300, most) : 1 + rng.below(std::min<uint64_t>(400, most));
      std::vector<TokenId>& text = ids.emplace_back();
      for (uint64_t k = 0; k < count; ++k) text.push_back(static_cast<TokenId>(rng.below(96)));
    }
    std::vector<EncoderText> texts;
    for (const auto& text : ids) texts.push_back({text, {}});
    const auto vectors = (*encoder)->encode(texts);
    ASSERT_TRUE(vectors) << vectors.error().to_string();
    const float error = difference(*vectors, *(*cpu)->encode(texts));
    printf("%s %s: error %.3g\n", GetParam(), equal ? "equal" : "ragged", error);
    EXPECT_LT(error, 5e-2f) << (equal ? "equal" : "ragged");
  }
}

TEST_P(TextsCuda, HaveTheSameBitsInAnyCompanyWhereRequested) {
  const auto texts = golden::read_encoded_texts(kGpuTexts / GetParam());
  const auto encoder = load({.path = kGpuTexts / GetParam(), .dtype = "bfloat16"}, true);
  ASSERT_TRUE(encoder);
  std::vector<EncoderText> all;
  std::vector<std::vector<float>> alone;
  for (const EncodedText& text : texts) {
    all.push_back({text.tokens, text.types});
    alone.push_back(encoder->encode({&all.back(), 1})->front());
  }
  EXPECT_EQ(*encoder->encode(all), alone);
}

INSTANTIATE_TEST_SUITE_P(All, TextsCuda,
                         testing::Values("bert_mean", "bert_dense", "bert_rerank", "bert_classes",
                                         "roberta", "xlm_roberta_rerank", "modernbert",
                                         "modernbert_classes", "colbert"));

}  // namespace
}  // namespace espalier
