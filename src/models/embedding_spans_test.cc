// Prompts with pictures through a decoder, against transformers: whole, in chunks that cut
// pictures, beside other entries, on two ranks; and with the wrong rows, which must be noticed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "checkpoint/checkpoint.h"
#include "models/families/family.h"
#include "models/image_encoder.h"
#include "models/program/cpu_model.h"
#include "models/seen_prompt.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using golden::kSeenPlaceholder;
using golden::SeenPrompt;

class EmbeddingSpans : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path("tests/golden/images") / GetParam();
    auto encoder = load_image_encoder({.path = folder_, .pool = &pool_});
    ASSERT_TRUE(encoder) << encoder.error().message();
    prompt_ = golden::read_seen_prompt(folder_, **encoder);
  }

  std::unique_ptr<Model> load(int32_t tp_size = 1, int32_t pp_size = 1) {
    auto model = load_model({.path = folder_,
                             .dtype = "float32",
                             .pool = &pool_,
                             .tp_size = tp_size,
                             .pp_size = pp_size,
                             .pp_micro_batch_tokens = 5});
    EXPECT_TRUE(model) << model.error().message();
    return *std::move(model);
  }

  static std::vector<float> run(Model& model, const SeenPrompt& prompt, int32_t chunk,
                                std::vector<TokenId> beside = {}) {
    return golden::run_seen_prompt(model, prompt, KvType::kFloat32, chunk, std::move(beside));
  }
  float error(const std::vector<float>& logits) const { return prompt_.error(logits); }

  std::filesystem::path folder_;
  WorkPool pool_{2};
  SeenPrompt prompt_;
};

TEST_P(EmbeddingSpans, LogitsEqualTransformers) {
  const auto model = load();
  ASSERT_TRUE(model->info().images);
  EXPECT_EQ(model->info().images->placeholder, kSeenPlaceholder);
  const std::string name = GetParam();
  const bool any_size = name != "llava_clip" && name != "llava_siglip" && name != "gemma3";
  EXPECT_EQ(model->info().images->num_rows, any_size ? 0 : 16);
  EXPECT_EQ(model->info().images->width, std::string(GetParam()) == "qwen3_vl" ? 3 * 32 : 32);
  const float most = error(run(*model, prompt_, 1000));
  RecordProperty("error", fmt::format("{:.1e}", most));
  EXPECT_LT(most, 1e-4f);
}

TEST_P(EmbeddingSpans, ChunksAndCompanyDoNotMatter) {
  const auto model = load();
  const std::vector<float> whole = run(*model, prompt_, 1000);
  for (const int32_t chunk : {1, 3, 7, 16, 23}) EXPECT_EQ(run(*model, prompt_, chunk), whole);
  EXPECT_EQ(run(*model, prompt_, 5, {1, 2, 3, 4, 5, 6, 7, 8, 9}), whole);
}

TEST_P(EmbeddingSpans, RanksAddTheRowsOnce) {
  const auto model = load(2);
  EXPECT_LT(error(run(*model, prompt_, 1000)), 1e-4f);
  EXPECT_LT(error(run(*model, prompt_, 9)), 1e-4f);
}

// Micro-batches begin within pictures.
TEST_P(EmbeddingSpans, StagesHaveTheSameBits) {
  if (std::string(GetParam()) == "gemma3") {
    const auto refused = load_model({.path = folder_, .pool = &pool_, .pp_size = 2});
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message().find("--pp-size 1"), std::string_view::npos);
    return;
  }
  const auto model = load(), stages = load(1, 2);
  const std::vector<float> whole = run(*model, prompt_, 1000);
  for (const int32_t chunk : {1000, 7}) EXPECT_EQ(run(*stages, prompt_, chunk), whole);
}

TEST_P(EmbeddingSpans, WrongRowsAreNoticed) {
  const auto model = load();
  SeenPrompt swapped = prompt_;
  std::swap(swapped.spans.front().rows, swapped.spans.back().rows);
  if (swapped.spans.front().count == swapped.spans.back().count) {
    EXPECT_GT(error(run(*model, swapped, 1000)), 2e-3f);
  }
  SeenPrompt words = prompt_;
  words.spans.clear();
  std::replace_if(
      words.tokens.begin(), words.tokens.end(), [](TokenId id) { return id >= kFirstSpanKey; },
      kSeenPlaceholder);
  EXPECT_GT(error(run(*model, words, 1000)), 2e-3f);
  SeenPrompt shifted = prompt_;
  --shifted.spans[1].count;
  ++shifted.spans[1].first_row;
  ++shifted.spans[0].token_begin;
  --shifted.spans[0].count;
  EXPECT_GT(error(run(*model, shifted, 1000)), 2e-3f);
}

// Of Gemma 3: a picture's rows that see their own picture's up to themselves alone, and windows
// that end with the picture.
TEST(WholePictures, OtherMasksAreNoticed) {
  const std::filesystem::path folder = "tests/golden/images/gemma3";
  WorkPool pool(2);
  auto encoder = load_image_encoder({.path = folder, .pool = &pool});
  ASSERT_TRUE(encoder) << encoder.error().message();
  const SeenPrompt prompt = golden::read_seen_prompt(folder, **encoder);
  const JsonObject config = read_model_config(folder).value();
  const Checkpoint checkpoint = Checkpoint::open(folder).value();
  const auto error_of = [&](const std::function<void(DecoderSpec&)>& change) {
    DecoderSpec spec = make_decoder_spec(config).value();
    change(spec);
    CheckpointSource source(checkpoint, spec, DType::kFloat32);
    const auto model = program::CpuModel::create(spec, DType::kFloat32, source, pool);
    EXPECT_TRUE(model) << model.error().message();
    return prompt.error(golden::run_seen_prompt(**model, prompt, KvType::kFloat32, 1000));
  };
  EXPECT_LT(error_of([](DecoderSpec&) {}), 1e-4f);
  EXPECT_GT(error_of([](DecoderSpec& spec) { spec.images->bidirectional = false; }), 2e-3f);
  for (const int32_t window : {0, 19, 21}) {
    EXPECT_GT(
        error_of([&](DecoderSpec& spec) { spec.layers[0].attention.sliding_window = window; }),
        2e-3f)
        << window;
  }
}

class RotarySpans : public EmbeddingSpans {};

TEST_P(RotarySpans, WrongPositionsAreNoticed) {
  const auto model = load();
  SeenPrompt changed = prompt_;
  changed.rotary_spans.clear();
  EXPECT_GT(error(run(*model, changed, 1000)), 2e-3f);
  changed = prompt_;
  ++changed.rotary_spans.back().position;
  EXPECT_GT(error(run(*model, changed, 1000)), 2e-3f);
  changed = prompt_;
  for (RotarySpan& span : changed.rotary_spans) span.columns = span.columns > 0 ? 2 : 0;
  EXPECT_GT(error(run(*model, changed, 1000)), 2e-3f);
}

class Videos : public EmbeddingSpans {};

// Grids of a video have times, and the frames of one differ.
TEST_P(Videos, RowsAndLogitsEqualTransformers) {
  auto encoder = load_image_encoder({.path = folder_, .pool = &pool_});
  ASSERT_TRUE(encoder) << encoder.error().message();
  golden::DrawnVideo video = golden::read_video(folder_);
  const auto rows_of = [&](const std::vector<Image>& frames) {
    const auto prepared = (*encoder)->prepare_video(frames, video.frames_per_second);
    EXPECT_TRUE(prepared) << prepared.error().message();
    std::vector<float> rows(static_cast<size_t>(prepared->num_rows) *
                            static_cast<size_t>((*encoder)->info().width));
    EXPECT_TRUE((*encoder)->encode(*prepared, rows).ok());
    return rows;
  };
  const auto [low, high] = std::ranges::minmax(video.rows);
  const auto error_of = [&, spread = high - low](const std::vector<float>& rows) {
    float most = 0;
    for (size_t i = 0; i < rows.size(); ++i)
      most = std::max(most, std::abs(rows[i] - video.rows[i]));
    return most / spread;
  };
  const std::vector<float> rows = rows_of(video.frames);
  ASSERT_EQ(rows.size(), video.rows.size());
  EXPECT_LT(error_of(rows), 1e-4f);
  std::vector<Image> turned = video.frames;
  std::swap(turned[0], turned[1]);  // of one grid
  EXPECT_GT(error_of(rows_of(turned)), 2e-3f);

  const SeenPrompt prompt = golden::read_video_prompt(folder_, **encoder);
  const auto model = load();
  EXPECT_EQ(model->info().images->video_placeholder, golden::kVideoPlaceholder);
  const std::vector<float> whole = run(*model, prompt, 1000);
  EXPECT_LT(prompt.error(whole), 1e-4f);
  for (const int32_t chunk : {1, 7, 23}) EXPECT_EQ(run(*model, prompt, chunk), whole);
  SeenPrompt timeless = prompt;
  const bool apart = prompt.spans.back().rows->frame_positions == 0;
  for (RotarySpan& span : timeless.rotary_spans) {
    span.time = 0;
    if (apart && span.columns > 0) span.position = timeless.rotary_spans[1].position;
  }
  EXPECT_GT(prompt.error(run(*model, timeless, 1000)), 2e-3f);
}

TEST_P(Videos, FramesOfOtherSizesAreRefused) {
  auto encoder = load_image_encoder({.path = folder_, .pool = &pool_});
  ASSERT_TRUE(encoder);
  std::vector<Image> frames = golden::read_video(folder_).frames;
  frames[2] = frames[0];
  frames[2].width = frames[0].height;
  frames[2].height = frames[0].width;
  const auto refused = (*encoder)->prepare_video(frames, 2);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("one size"), std::string_view::npos);
}

INSTANTIATE_TEST_SUITE_P(All, Videos, testing::Values("qwen2_vl", "qwen2_5_vl", "qwen3_vl"),
                         [](const auto& tested) { return std::string(tested.param); });

// Parts of rows that the decoder's first layers add.
class DeepSpans : public EmbeddingSpans {
 protected:
  // The error where change(row) changes each row of the pictures, [parts, hidden].
  template <typename Change>
  float error_of(Model& model, const Change& change) {
    SeenPrompt changed = prompt_;
    for (EmbeddingSpan& span : changed.spans) {
      auto rows = std::make_shared<EncodedRows>(*span.rows);
      const auto width = static_cast<size_t>(rows->width);
      for (size_t at = 0; at < rows->values.size(); at += width)
        change(std::span(rows->values).subspan(at, width));
      span.rows = std::move(rows);
    }
    return error(run(model, changed, 1000));
  }
};

TEST_P(DeepSpans, EachPartIsAddedOnceAndInItsLayer) {
  const auto model = load();
  const size_t hidden = 32;
  EXPECT_LT(error_of(*model, [](std::span<float>) {}), 1e-4f);
  for (const size_t part : {size_t{1}, size_t{2}}) {
    const float error = error_of(*model, [&](std::span<float> row) {
      std::ranges::fill(row.subspan(part * hidden, hidden), 0.0f);
    });
    EXPECT_GT(error, 2e-3f) << part;
  }
  const float swapped = error_of(*model, [&](std::span<float> row) {
    std::ranges::swap_ranges(row.subspan(hidden, hidden), row.subspan(2 * hidden, hidden));
  });
  EXPECT_GT(swapped, 2e-3f);
}

// Sections that do not take turns.
TEST_P(DeepSpans, PairsOfAnotherOrderAreNoticed) {
  const JsonObject config = read_model_config(folder_).value();
  DecoderSpec spec = make_decoder_spec(config).value();
  ASSERT_TRUE(spec.ropes[0].interleaved_sections);
  const Checkpoint checkpoint = Checkpoint::open(folder_).value();
  const auto error_of_spec = [&] {
    CheckpointSource source(checkpoint, spec, DType::kFloat32);
    const auto model = program::CpuModel::create(spec, DType::kFloat32, source, pool_);
    EXPECT_TRUE(model) << model.error().message();
    return error(run(**model, prompt_, 1000));
  };
  EXPECT_LT(error_of_spec(), 1e-4f);
  spec.ropes[0].interleaved_sections = false;
  EXPECT_GT(error_of_spec(), 2e-3f);
}

INSTANTIATE_TEST_SUITE_P(All, DeepSpans, testing::Values("qwen3_vl"),
                         [](const auto& tested) { return std::string(tested.param); });
INSTANTIATE_TEST_SUITE_P(All, RotarySpans, testing::Values("qwen2_vl", "qwen2_5_vl", "qwen3_vl"),
                         [](const auto& tested) { return std::string(tested.param); });
INSTANTIATE_TEST_SUITE_P(All, EmbeddingSpans,
                         testing::Values("llava_clip", "llava_siglip", "llava_next",
                                         "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl",
                                         "gemma3", "pixtral", "mistral3", "internvl",
                                         "internvl_norms", "internvl_chat"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace espalier
