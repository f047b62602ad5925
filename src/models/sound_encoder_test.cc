// Sounds through an encoder and a decoder, against transformers: tests/golden/sounds, by
// tools/goldens/make_sound_goldens.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <memory>

#include "checkpoint/checkpoint.h"
#include "media/drawn_sound.h"
#include "models/families/family.h"
#include "models/image_encoder.h"
#include "models/program/cpu_encoder.h"
#include "models/seen_prompt.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using testing::HasSubstr;

class SoundEncoder : public testing::Test {
 protected:
  void SetUp() override {
    auto encoder = load_image_encoder({.path = folder_, .pool = &pool_});
    ASSERT_TRUE(encoder) << encoder.error().message();
    encoder_ = *std::move(encoder);
  }

  std::vector<float> rows_of(const Audio& audio) {
    const auto prepared = encoder_->prepare_sound(audio);
    EXPECT_TRUE(prepared) << prepared.error().message();
    std::vector<float> rows(static_cast<size_t>(prepared->num_rows) *
                            static_cast<size_t>(encoder_->info().width));
    EXPECT_TRUE(encoder_->encode(*prepared, rows).ok());
    return rows;
  }

  static float error_of(const std::vector<float>& rows, const std::vector<float>& wanted) {
    if (rows.size() != wanted.size()) return INFINITY;
    const auto [low, high] = std::ranges::minmax(wanted);
    float most = 0;
    for (size_t i = 0; i < rows.size(); ++i) most = std::max(most, std::abs(rows[i] - wanted[i]));
    return most / (high - low);
  }

  const std::filesystem::path folder_ = "tests/golden/sounds/qwen2_audio";
  WorkPool pool_{2};
  std::unique_ptr<ImageEncoder> encoder_;
};

TEST_F(SoundEncoder, RowsEqualTransformers) {
  const auto sounds = golden::read_golden_sounds(folder_);
  ASSERT_EQ(sounds.size(), 4u);
  for (const golden::GoldenSound& sound : sounds)
    EXPECT_LT(error_of(rows_of(sound.audio), sound.rows), 1e-4f) << sound.audio.samples.size();
  // Of another sound they are others.
  Audio turned = sounds[1].audio;
  std::ranges::reverse(turned.samples);
  EXPECT_GT(error_of(rows_of(turned), sounds[1].rows), 2e-3f);
}

TEST_F(SoundEncoder, LogitsEqualTransformers) {
  const auto prompt = golden::read_sound_prompt(folder_, *encoder_);
  const auto model = load_model({.path = folder_, .dtype = "float32", .pool = &pool_});
  ASSERT_TRUE(model) << model.error().message();
  ASSERT_TRUE((*model)->info().images);
  EXPECT_TRUE((*model)->info().images->sounds);
  const auto run = [&](const golden::SeenPrompt& what, int32_t chunk) {
    return golden::run_seen_prompt(**model, what, KvType::kFloat32, chunk);
  };
  const std::vector<float> whole = run(prompt, 1000);
  EXPECT_LT(prompt.error(whole), 1e-4f);
  for (const int32_t chunk : {1, 5}) EXPECT_EQ(run(prompt, chunk), whole);
  golden::SeenPrompt moved = prompt;
  std::swap(moved.tokens[2], moved.tokens[3]);
  EXPECT_GT(prompt.error(run(moved, 1000)), 2e-3f);
}

// A sound at another rate is brought to 16 kHz first.
TEST_F(SoundEncoder, RatesAreConverted) {
  const Audio audio{.sample_rate = 32'000, .samples = test::drawn_samples(16'000)};
  const auto plan = encoder_->plan_sound(audio);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->num_rows, 12);  // 50 frames, 25 rows of the program
  EXPECT_EQ(rows_of(audio).size(), 12u * 32u);
}

TEST_F(SoundEncoder, LengthsThatTheModelDoesNotTakeAreRefused) {
  const auto refusal = [&](int64_t samples) {
    const auto plan = encoder_->plan_sound(
        {.sample_rate = 16'000, .samples = std::vector<float>(static_cast<size_t>(samples))});
    return plan ? "" : std::string(plan.error().message());
  };
  EXPECT_THAT(refusal(16'001), HasSubstr("takes 1 s at once"));
  EXPECT_EQ(refusal(16'000), "");
  EXPECT_THAT(refusal(320), HasSubstr("takes 321 or more"));
  EXPECT_EQ(refusal(321), "");
}

// Parts that are left out must be noticed.
TEST_F(SoundEncoder, TheEncodersPartsMatter) {
  const JsonObject config = read_model_config(folder_).value();
  const Checkpoint checkpoint = Checkpoint::open(folder_).value();
  const golden::GoldenSound sound = golden::read_golden_sounds(folder_)[1];
  const auto error_with = [&](const std::function<void(DecoderSpec&)>& change) {
    DecoderSpec spec = *make_encoder_spec(config).value();
    change(spec);
    // What the changed one does not read.
    spec.names.unused_prefixes.insert(spec.names.unused_prefixes.end(),
                                      {"audio_tower.", "multi_modal_projector."});
    CheckpointSource source(checkpoint, spec, DType::kFloat32);
    auto encoder =
        program::CpuEncoder::create(spec, {}, WeightTypes(DType::kFloat32), source, pool_);
    EXPECT_TRUE(encoder) << encoder.error().message();
    (*encoder)->set_stem(load_sound_stem({.path = folder_}, spec).value());
    encoder_ = *std::move(encoder);
    return error_of(rows_of(sound.audio), sound.rows);
  };
  EXPECT_LT(error_with([](DecoderSpec&) {}), 1e-4f);
  EXPECT_GT(error_with([](DecoderSpec& spec) { spec.patches->activation.reset(); }), 2e-3f);
  EXPECT_GT(error_with([](DecoderSpec& spec) { spec.patches->bias = false; }), 2e-3f);
  EXPECT_GT(error_with([](DecoderSpec& spec) { spec.projector->norm.reset(); }), 2e-3f);
  EXPECT_GT(error_with([](DecoderSpec& spec) { spec.layers[0].attention.qkv_bias = false; }),
            2e-3f);
}

}  // namespace
}  // namespace espalier
