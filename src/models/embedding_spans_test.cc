// Prompts with pictures through a decoder, against transformers: whole, in chunks that cut
// pictures, beside other entries, on two ranks; and with the wrong rows, which must be noticed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
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
  const bool any_size = !std::string(GetParam()).starts_with("llava_clip") &&
                        !std::string(GetParam()).starts_with("llava_siglip");
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
  const auto model = load(), stages = load(1, 2);
  const std::vector<float> whole = run(*model, prompt_, 1000);
  for (const int32_t chunk : {1000, 7}) EXPECT_EQ(run(*stages, prompt_, chunk), whole);
}

TEST_P(EmbeddingSpans, WrongRowsAreNoticed) {
  const auto model = load();
  SeenPrompt swapped = prompt_;
  std::swap(swapped.spans[0].rows, swapped.spans[1].rows);
  if (swapped.spans[0].count == swapped.spans[1].count) {
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
                                         "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace espalier
