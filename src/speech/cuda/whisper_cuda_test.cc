// A Whisper model on the GPU against transformers, and as a transcriber.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "speech/cuda/cuda_whisper.h"
#include "speech/test_model.h"
#include "speech/transcriber.h"
#include "tensor/cuda/testing.h"

namespace espalier::speech {
namespace {

double share_of_spread(std::span<const float> made, std::span<const float> expected) {
  EXPECT_EQ(made.size(), expected.size());
  const auto [low, high] = std::ranges::minmax_element(expected);
  double largest = 0;
  for (size_t i = 0; i < std::min(made.size(), expected.size()); ++i) {
    const double off = std::fabs(static_cast<double>(made[i]) - expected[i]);
    if (!(off <= largest)) largest = off;  // a NaN stays
  }
  return largest / static_cast<double>(*high - *low);
}

class WhisperCuda : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    sizes_ = read_whisper_sizes(test::golden_folder(GetParam())).value();
    reference_ = test::read_reference(GetParam());
  }

  std::unique_ptr<WhisperRunner> load(std::string_view dtype) {
    const Checkpoint checkpoint = Checkpoint::open(test::golden_folder(GetParam())).value();
    auto runner = make_cuda_runner(
        {.checkpoint = checkpoint, .sizes = sizes_, .pool = pool_, .dtype = dtype, .num_slots = 5},
        0);
    EXPECT_TRUE(runner) << runner.error().to_string();
    return runner ? std::move(*runner) : nullptr;
  }

  // Logits of all tokens, `chunk` of them a step, in the slot; others run beside it.
  std::vector<float> all_logits(WhisperRunner& runner, int32_t slot, size_t chunk,
                                const std::vector<int32_t>& others = {}) {
    EXPECT_TRUE(runner.set_source(slot, reference_.mel, 0).ok());
    const std::span<const TokenId> tokens = reference_.tokens;
    std::vector<float> logits;
    for (size_t i = 0; i < tokens.size(); i += chunk) {
      const DecoderEntry entry{.slot = slot,
                               .num_cached = static_cast<int32_t>(i),
                               .tokens = tokens.subspan(i, std::min(chunk, tokens.size() - i)),
                               .logits_row = chunk == 2 && i + 1 < tokens.size() ? 0 : -1};
      std::vector<DecoderEntry> entries;
      for (const int32_t other : others)
        entries.push_back({.slot = other,
                           .num_cached = static_cast<int32_t>(i),
                           .tokens = tokens.last(i + 1).first(1)});
      entries.push_back(entry);
      const auto made = runner.step(entries);
      EXPECT_TRUE(made) << made.error().to_string();
      if (!made) return {};
      const auto own = made->subspan(others.size() * static_cast<size_t>(sizes_.vocab_size));
      logits.insert(logits.end(), own.begin(), own.end());
    }
    return logits;
  }

  WorkPool pool_{2};
  WhisperSizes sizes_;
  test::Reference reference_;
};

TEST_P(WhisperCuda, EqualsTransformers) {
  for (const auto& [dtype, allowed] : {std::pair("float32", 1e-4), std::pair("bfloat16", 5e-2)}) {
    const auto runner = load(dtype);
    ASSERT_NE(runner, nullptr);
    EXPECT_GT(runner->info().num_parameters, 0);
    for (const size_t chunk : {1, 2}) {
      const double error = share_of_spread(all_logits(*runner, 1, chunk), reference_.logits);
      printf("%s, chunks of %zu: error of logits %.3g\n", dtype, chunk, error);
      EXPECT_LT(error, allowed) << dtype << ", chunks of " << chunk;
    }
  }
}

// Slots know nothing of each other, in graphs of several numbers of entries.
TEST_P(WhisperCuda, SlotsStandApart) {
  const auto runner = load("float32");
  ASSERT_NE(runner, nullptr);
  const MelSpectrogram silence{
      .num_mels = sizes_.num_mels,
      .num_frames = 10,
      .values = std::vector<float>(static_cast<size_t>(sizes_.num_mels) * 10, -1.0f)};
  for (const int32_t other : {0, 1, 3, 4}) ASSERT_TRUE(runner->set_source(other, silence, 0).ok());
  for (const std::vector<int32_t>& others :
       {std::vector<int32_t>{}, std::vector<int32_t>{4}, std::vector<int32_t>{0, 3},
        std::vector<int32_t>{0, 1, 3, 4}}) {
    const double error = share_of_spread(all_logits(*runner, 2, 1, others), reference_.logits);
    EXPECT_LT(error, 1e-4) << others.size() << " others";
  }
  // Another window than the reference's gives other logits.
  ASSERT_TRUE(runner->set_source(2, silence, 0).ok());
  const DecoderEntry entry{
      .slot = 2, .num_cached = 0, .tokens = std::span<const TokenId>(reference_.tokens).first(1)};
  const auto made = runner->step({&entry, 1});
  ASSERT_TRUE(made);
  EXPECT_GT(share_of_spread(
                *made, std::span(reference_.logits).first(static_cast<size_t>(sizes_.vocab_size))),
            1e-3);
}

// All requests of the golden at once, by their text.
TEST_P(WhisperCuda, TranscribesAsTransformersDoes) {
  auto transcriber = Transcriber::create(
      {.path = test::golden_folder(GetParam()),
       .dtype = "float32",
       .num_threads = 2,
       .running_max = 3,
       .make_runner = [](const RunnerParts& parts) { return make_cuda_runner(parts, 0); }});
  ASSERT_TRUE(transcriber) << transcriber.error().to_string();
  for (const test::SpeechCase& each : test::read_cases(GetParam())) {
    const auto made = (*transcriber)
                          ->transcribe({.samples = test::drawn_samples(each.samples),
                                        .language = each.language,
                                        .translate = each.translate,
                                        .prompt = each.prompt,
                                        .timestamps = each.timestamps});
    ASSERT_TRUE(made) << made.error().to_string();
    EXPECT_EQ(made->text, each.text) << each.samples;
    if (each.timestamps) {
      EXPECT_EQ(made->segments.size(), each.segments.size());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, WhisperCuda, testing::Values("multilingual"),
                         [](const auto& tested) { return std::string(tested.param); });

// The other golden's heads have 4 elements, and released models' 64.
TEST(WhisperCudaStart, HeadsThatNoKernelTakesAreRefused) {
  ESPALIER_REQUIRE_DEVICE();
  const auto refused = Transcriber::create(
      {.path = test::golden_folder("english"),
       .num_threads = 2,
       .make_runner = [](const RunnerParts& parts) { return make_cuda_runner(parts, 0); }});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kUnimplemented);
  EXPECT_NE(refused.error().message().find("head_dim is 4"), std::string_view::npos)
      << refused.error().message();
}

}  // namespace
}  // namespace espalier::speech
