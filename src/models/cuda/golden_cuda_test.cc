// The tiny random models of golden_test.cc on the GPU: the logits and greedy tokens of
// transformers, the same however a sequence is cut, and parts left out on purpose that must be
// noticed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <tuple>

#include "models/cuda/test_model.h"
#include "models/golden.h"
#include "tensor/cuda/testing.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using golden::Piece;

// As golden_test.cc's, but for activations: here they are of the weights' type, as transformers has
// them, and rounded at other places than there.
float tolerance(DType type, const golden::Golden& golden) {
  if (type == DType::kFloat32) return 1e-4f;
  return golden.spec.checkpoint_dtype == DType::kBFloat16 ? 1.5e-2f : 3e-2f;
}
KvType kv_type(DType type) {
  return type == DType::kFloat32 ? KvType::kFloat32 : KvType::kBFloat16;
}
const char* name_of(DType type) { return type == DType::kFloat32 ? "float32" : "bfloat16"; }

// Models that must run; others may have parts that the GPU has no code for yet, and skip.
constexpr std::string_view kMustRun[] = {
    "granite",       "llama_tied_llama3", "llama_untied_bias", "mistral_f16",    "olmo2",
    "phi3_longrope", "qwen2_f32",         "qwen2_sharded",     "qwen3_head_dim", "smollm3"};

std::unique_ptr<CudaTestModel> load(const DecoderSpec& spec, DType type,
                                    const ModelLoadOptions& options) {
  auto decoder = CudaDecoder::load({spec, type}, options);
  EXPECT_TRUE(decoder) << decoder.error().to_string();
  return decoder ? std::make_unique<CudaTestModel>(std::move(*decoder)) : nullptr;
}

class GoldenModelCuda : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    auto decoder = CudaDecoder::load({golden_.spec, type_}, {.path = golden_.folder});
    if (!decoder && decoder.error().code() == StatusCode::kUnimplemented &&
        std::ranges::find(kMustRun, std::get<0>(GetParam())) == std::end(kMustRun)) {
      GTEST_SKIP() << decoder.error().message();
    }
    ASSERT_TRUE(decoder) << decoder.error().to_string();
    model_ = std::make_unique<CudaTestModel>(std::move(*decoder));
  }
  const DType type_ = std::get<1>(GetParam());
  const golden::Golden golden_ = golden::read(std::get<0>(GetParam()));
  std::unique_ptr<CudaTestModel> model_;
};

TEST_P(GoldenModelCuda, HasTheLogitsOfTransformers) {
  const float error = golden::max_error(*model_, golden_, kv_type(type_));
  RecordProperty("error", std::to_string(error));
  EXPECT_LE(error, tolerance(type_, golden_));
}

TEST_P(GoldenModelCuda, DrawsTheSameGreedyTokens) {
  ASSERT_TRUE(model_->reserve(64, 4).ok());
  int compared = 0;
  for (const golden::Greedy& greedy : golden_.greedy) {
    Rng rng(3);
    golden::KvMemory kv(model_->info(), kv_type(type_), 4, 128, rng);
    golden::Track track{greedy.prompt, 0, {}, {}};
    golden::run_step(*model_, kv,
                     {{&track, static_cast<int32_t>(greedy.prompt.size()), Piece::Want::kLast}});
    for (size_t i = 0; i < greedy.tokens.size(); ++i) {
      const std::vector<float>& logits = track.logits.at(track.done - 1);
      const auto best = std::max_element(logits.begin(), logits.end()) - logits.begin();
      if (greedy.margins[i] > tolerance(type_, golden_) * golden_.spread) {
        ASSERT_EQ(best, greedy.tokens[i]) << "token " << i << ", margin " << greedy.margins[i];
        ++compared;
      }
      track.tokens.push_back(greedy.tokens[i]);
      golden::run_step(*model_, kv, {{&track, 1, Piece::Want::kLast}});
    }
  }
  EXPECT_GE(compared, 48);  // of 128
}

TEST_P(GoldenModelCuda, HasThemHoweverASequenceIsCut) {
  std::vector<std::vector<TokenId>> input;
  for (const golden::Sequence& sequence : golden_.sequences) input.push_back(sequence.tokens);
  for (const int32_t page_size : {1, 16}) {
    for (const int32_t chunk : {1, 5, 1 << 20}) {
      for (const bool together : {false, true}) {
        const auto logits =
            golden::run_all(*model_, input, kv_type(type_), page_size, chunk, together);
        for (size_t i = 0; i < logits.size(); ++i) {
          const std::vector<float>& expected = golden_.sequences[i].logits;
          ASSERT_EQ(logits[i].size(), expected.size());
          for (size_t j = 0; j < expected.size(); ++j) {
            ASSERT_NEAR(logits[i][j], expected[j], tolerance(type_, golden_) * golden_.spread)
                << "sequence " << i << ", logit " << j << ", pages of " << page_size
                << ", chunks of " << chunk << (together ? ", together" : ", one by one");
          }
        }
      }
    }
  }
}

// Chunks that want no logits skip the end of the pass; what comes after must not notice.
TEST_P(GoldenModelCuda, UnwantedRowsChangeNothing) {
  ASSERT_TRUE(model_->reserve(128, 8).ok());
  const golden::Sequence& sequence = golden_.sequences.back();
  const auto count = static_cast<int32_t>(sequence.tokens.size());
  Rng rng(4);
  golden::KvMemory kv(model_->info(), kv_type(type_), 1, 512, rng);
  golden::Track parts{sequence.tokens, 0, {}, {}};
  golden::run_step(*model_, kv, {{&parts, 7, Piece::Want::kNothing}});
  golden::run_step(*model_, kv, {{&parts, 9, Piece::Want::kNothing}});
  golden::run_step(*model_, kv, {{&parts, count - 16, Piece::Want::kAll}});
  ASSERT_EQ(parts.logits.size(), static_cast<size_t>(count - 16));
  const auto vocab = static_cast<size_t>(model_->info().vocab_size);
  for (const auto& [position, logits] : parts.logits) {
    for (size_t j = 0; j < vocab; ++j) {
      ASSERT_NEAR(logits[j], sequence.logits[static_cast<size_t>(position) * vocab + j],
                  tolerance(type_, golden_) * golden_.spread)
          << position;
    }
  }
}

// What is broken on purpose must be seen: else the tests above prove nothing.
TEST_P(GoldenModelCuda, NoticesWhatIsLeftOut) {
  const auto error_of = [&](const auto& break_it) {
    DecoderSpec spec = golden_.spec;
    break_it(spec);
    const auto model = load(spec, type_, {.path = golden_.folder});
    return golden::max_error(*model, golden_, kv_type(type_));
  };
  const float limit = 2 * tolerance(type_, golden_);
  EXPECT_GT(error_of([](DecoderSpec& s) { s.faults.drop_attention_residual = true; }), limit);
  EXPECT_GT(error_of([](DecoderSpec& s) { s.faults.drop_mlp_residual = true; }), limit);
  EXPECT_GT(error_of([](DecoderSpec& s) {
              for (LayerSpec& layer : s.layers) layer.attention.rope.reset();
            }),
            limit);
  EXPECT_GT(error_of([](DecoderSpec& s) {
              for (LayerSpec& layer : s.layers) layer.attention.scale = 0;
            }),
            limit);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModelCuda,
                         testing::Combine(testing::ValuesIn(golden::names()),
                                          testing::Values(DType::kFloat32, DType::kBFloat16)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) + "_" +
                                  name_of(std::get<1>(tested.param));
                         });

// Dummy weights are the same values on both: else the logits would have nothing in common.
TEST(DummyModelCuda, DrawsTheWeightsOfTheCpu) {
  ESPALIER_REQUIRE_DEVICE();
  golden::Golden golden = golden::read("qwen3_head_dim");
  const ModelLoadOptions options{
      .path = golden.folder, .format = LoadFormat::kDummy, .seed = 11, .dtype = "float32"};
  WorkPool pool(2);
  ModelLoadOptions on_cpu = options;
  on_cpu.pool = &pool;
  const auto cpu = load_model(on_cpu);
  ASSERT_TRUE(cpu);
  const auto gpu = load(golden.spec, DType::kFloat32, options);
  ASSERT_NE(gpu, nullptr);
  std::vector<std::vector<TokenId>> input;
  for (const golden::Sequence& sequence : golden.sequences) input.push_back(sequence.tokens);
  const auto expected = golden::run_all(**cpu, input, KvType::kFloat32, 16, 1 << 20, true);
  const auto got = golden::run_all(*gpu, input, KvType::kFloat32, 16, 1 << 20, true);
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto [low, high] = std::ranges::minmax(expected[i]);
    for (size_t j = 0; j < expected[i].size(); ++j) {
      ASSERT_NEAR(got[i][j], expected[i][j], 1e-4f * (high - low)) << i << " " << j;
    }
  }
}

}  // namespace
}  // namespace espalier
