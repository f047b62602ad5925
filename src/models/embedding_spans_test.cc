// Prompts with pictures through a decoder, against transformers: whole, in chunks that cut
// pictures, beside other entries, on two ranks; and with the wrong rows, which must be noticed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>

#include "checkpoint/safetensors.h"
#include "media/drawn.h"
#include "models/golden.h"
#include "models/image_encoder.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using golden::KvMemory;
using golden::Piece;
using golden::Track;

// A prompt of tests/golden/images, whose pictures are the first and the third of its folder.
struct SeenPrompt {
  std::vector<TokenId> tokens;  // placeholders are keys
  std::vector<EmbeddingSpan> spans;
  std::vector<RotarySpan> rotary_spans;
  std::vector<float> logits;  // [tokens, vocab], of transformers
  float spread = 0;
};

template <typename T>
std::vector<T> values(const SafetensorsFile& file, const std::string& name) {
  for (const CheckpointTensor& tensor : file.tensors()) {
    if (tensor.name != name) continue;
    std::vector<T> out(tensor.bytes.size() / sizeof(T));
    std::memcpy(out.data(), tensor.bytes.data(), tensor.bytes.size());
    return out;
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

std::shared_ptr<const EncodedRows> encode(ImageEncoder& encoder, const Image& image) {
  auto rows = std::make_shared<EncodedRows>();
  const PreparedImage prepared = encoder.prepare(image).value();
  rows->num_rows = prepared.num_rows;
  rows->width = encoder.info().width;
  rows->grid_columns = prepared.grid_columns;
  rows->values.resize(static_cast<size_t>(rows->num_rows * rows->width));
  EXPECT_TRUE(encoder.encode(prepared, rows->values).ok());
  return rows;
}

// Where a picture stands, and the text behind it: transformers' get_rope_index, written again.
std::vector<RotarySpan> rotary_spans(const SeenPrompt& prompt) {
  std::vector<RotarySpan> out;
  int32_t position = 0, done = 0;
  const auto add_text = [&](int32_t end) {
    if (end > done) out.push_back({.token_begin = done, .count = end - done, .position = position});
    position += end - done;
    done = end;
  };
  for (const EmbeddingSpan& span : prompt.spans) {
    if (span.rows->grid_columns == 0) return {};
    add_text(span.token_begin);
    const int32_t columns = span.rows->grid_columns;
    out.push_back(
        {.token_begin = done, .count = span.count, .position = position, .columns = columns});
    position += std::max(columns, span.count / columns);
    done += span.count;
  }
  add_text(static_cast<int32_t>(prompt.tokens.size()));
  return out;
}

class EmbeddingSpans : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path("tests/golden/images") / GetParam();
    const auto file = SafetensorsFile::open(folder_ / "reference.safetensors");
    ASSERT_TRUE(file) << file.error().message();
    prompt_.tokens = values<TokenId>(*file, "seen_prompt");
    prompt_.logits = values<float>(*file, "seen_logits");
    const auto [low, high] = std::ranges::minmax(prompt_.logits);
    prompt_.spread = high - low;
    auto encoder = load_image_encoder({.path = folder_, .pool = &pool_});
    ASSERT_TRUE(encoder) << encoder.error().message();
    auto at = prompt_.tokens.begin();
    for (const char* size : {"size_0", "size_2"}) {
      const auto sides = values<int32_t>(*file, size);
      const auto rows = encode(**encoder, test::drawn(sides[0], sides[1]));
      at = std::find(at, prompt_.tokens.end(), kPlaceholder);
      prompt_.spans.push_back({.token_begin = static_cast<int32_t>(at - prompt_.tokens.begin()),
                               .count = rows->num_rows,
                               .rows = rows});
      at = std::fill_n(at, rows->num_rows, kFirstSpanKey + std::ssize(prompt_.spans));
    }
    prompt_.rotary_spans = rotary_spans(prompt_);
  }

  std::unique_ptr<Model> load(int32_t tp_size = 1) {
    auto model =
        load_model({.path = folder_, .dtype = "float32", .pool = &pool_, .tp_size = tp_size});
    EXPECT_TRUE(model) << model.error().message();
    return *std::move(model);
  }

  // Logits of all positions, in pieces of at most `chunk` tokens; `beside`: tokens of another
  // entry that has one token in each step.
  std::vector<float> run(Model& model, const SeenPrompt& prompt, int32_t chunk,
                         std::vector<TokenId> beside = {}) {
    Rng rng(5);
    EXPECT_TRUE(model.reserve(512, 2).ok());
    KvMemory kv(model.info(), KvType::kFloat32, 4, 512, rng);
    Track track{.tokens = prompt.tokens,
                .pages = {},
                .logits = {},
                .spans = prompt.spans,
                .rotary_spans = prompt.rotary_spans};
    Track other{
        .tokens = std::move(beside), .pages = {}, .logits = {}, .spans = {}, .rotary_spans = {}};
    while (track.done < std::ssize(track.tokens)) {
      const auto left = static_cast<int32_t>(track.tokens.size()) - track.done;
      std::vector<Piece> pieces;
      if (other.done < std::ssize(other.tokens)) pieces.push_back({&other, 1, Piece::Want::kLast});
      pieces.push_back({&track, std::min(chunk, left)});
      run_step(model, kv, pieces);
    }
    std::vector<float> all;
    for (const auto& [position, logits] : track.logits)
      all.insert(all.end(), logits.begin(), logits.end());
    return all;
  }

  float error(const std::vector<float>& logits) const {
    EXPECT_EQ(logits.size(), prompt_.logits.size());
    float most = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const float off = std::abs(logits[i] - prompt_.logits[i]);
      if (!(off <= most)) most = off;
    }
    return most / prompt_.spread;
  }

  static constexpr TokenId kPlaceholder = 97;
  std::filesystem::path folder_;
  WorkPool pool_{2};
  SeenPrompt prompt_;
};

TEST_P(EmbeddingSpans, LogitsEqualTransformers) {
  const auto model = load();
  ASSERT_TRUE(model->info().images);
  EXPECT_EQ(model->info().images->placeholder, kPlaceholder);
  const bool any_size = !std::string(GetParam()).starts_with("llava_clip") &&
                        !std::string(GetParam()).starts_with("llava_siglip");
  EXPECT_EQ(model->info().images->num_rows, any_size ? 0 : 16);
  EXPECT_EQ(model->info().images->width, 32);
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
      kPlaceholder);
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

INSTANTIATE_TEST_SUITE_P(All, RotarySpans, testing::Values("qwen2_vl", "qwen2_5_vl"),
                         [](const auto& tested) { return std::string(tested.param); });
INSTANTIATE_TEST_SUITE_P(All, EmbeddingSpans,
                         testing::Values("llava_clip", "llava_siglip", "llava_next",
                                         "llava_onevision", "qwen2_vl", "qwen2_5_vl"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace espalier
