// Encoder and decoder against transformers, and parts broken on purpose.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "speech/test_model.h"

namespace espalier::speech {
namespace {

using test::LoadedModel;

// The largest difference, as a share of the expected values' spread.
double share_of_spread(std::span<const float> made, const std::vector<float>& expected) {
  EXPECT_EQ(made.size(), expected.size());
  const auto [low, high] = std::ranges::minmax_element(expected);
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(made[i] - expected[i])));
  }
  return largest / static_cast<double>(*high - *low);
}

double source_error(LoadedModel& model, const test::Reference& reference) {
  return share_of_spread(model.encoder->encode(reference.mel, 0), reference.source);
}

// Logits of all tokens: `chunk` of them a step, in slot 1.
std::vector<float> all_logits(LoadedModel& model, const test::Reference& reference, size_t chunk) {
  model.decoder->set_source(1, model.encoder->encode(reference.mel, 0));
  std::vector<float> logits;
  const std::span<const TokenId> tokens = reference.tokens;
  for (size_t i = 0; i < tokens.size(); i += chunk) {
    const DecoderEntry entry{.slot = 1,
                             .num_cached = static_cast<int32_t>(i),
                             .tokens = tokens.subspan(i, std::min(chunk, tokens.size() - i)),
                             .logits_row = chunk == 2 && i + 1 < tokens.size() ? 0 : -1};
    const auto made = model.decoder->step({&entry, 1});
    logits.insert(logits.end(), made.begin(), made.end());
  }
  return logits;
}

double logits_error(LoadedModel& model, const test::Reference& reference) {
  return share_of_spread(all_logits(model, reference, 1), reference.logits);
}

class WhisperGolden : public testing::TestWithParam<const char*> {};

TEST_P(WhisperGolden, EqualsTransformers) {
  const test::Reference reference = test::read_reference(GetParam());
  const auto model = LoadedModel::load(GetParam(), nullptr, "float32");
  const double source = source_error(*model, reference), logits = logits_error(*model, reference);
  RecordProperty("source", std::to_string(source));
  RecordProperty("logits", std::to_string(logits));
  EXPECT_LT(source, 1e-4);
  EXPECT_LT(logits, 1e-4);
}

TEST_P(WhisperGolden, Bfloat16IsNear) {
  const test::Reference reference = test::read_reference(GetParam());
  const auto model = LoadedModel::load(GetParam(), nullptr, "bfloat16");
  EXPECT_EQ(model->weights.type, DType::kBFloat16);
  EXPECT_LT(source_error(*model, reference), 5e-2);
  EXPECT_LT(logits_error(*model, reference), 5e-2);
  EXPECT_GT(logits_error(*model, reference), 1e-6);
}

// A row has the same bits in any chunk, and beside other slots.
TEST_P(WhisperGolden, LogitsDoNotDependOnCompany) {
  const test::Reference reference = test::read_reference(GetParam());
  const auto model = LoadedModel::load(GetParam());
  const std::vector<float> one = all_logits(*model, reference, 1);
  EXPECT_EQ(all_logits(*model, reference, 2), one);
  model->decoder->set_source(0,
                             std::vector<float>(model->encoder->encode(reference.mel, 0).size()));
  const size_t vocab = static_cast<size_t>(model->sizes.vocab_size);
  const std::span<const TokenId> tokens = reference.tokens;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto cached = static_cast<int32_t>(i);
    const DecoderEntry entries[] = {
        {.slot = 0, .num_cached = cached, .tokens = tokens.last(i + 1).first(1)},
        {.slot = 1, .num_cached = cached, .tokens = tokens.subspan(i, 1)}};
    const auto made = model->decoder->step(entries);
    ASSERT_EQ(made.size(), 2 * vocab);
    ASSERT_TRUE(std::ranges::equal(made.subspan(vocab), std::span(one).subspan(i * vocab, vocab)));
  }
}

struct WhisperFault {
  const char* name;
  LoadedModel::Change change;
  bool encoder = true;  // the encoder's output shows it, too
};

std::vector<WhisperFault> whisper_faults() {
  return {
      {"no_bias_of_conv1", [](auto&, auto& w) { std::ranges::fill(w.conv1.bias, 0.0f); }},
      {"no_bias_of_conv2", [](auto&, auto& w) { std::ranges::fill(w.conv2.bias, 0.0f); }},
      {"no_source_positions", [](auto&, auto& w) { std::ranges::fill(w.source_positions, 0.0f); }},
      {"a_layer_less", [](auto&, auto& w) { w.encoder_layers.pop_back(); }},
      {"heads_of_half_the_size", [](auto& s, auto&) { s.encoder.num_heads *= 2; }},
      {"no_bias_of_qkv",
       [](auto&, auto& w) { std::ranges::fill(w.encoder_layers[0].attention.qkv.bias, 0.0f); }},
      {"layers_swapped",
       [](auto&, auto& w) { std::swap(w.encoder_layers[0], w.encoder_layers[1]); }},
      {"no_encoder_norm", [](auto&, auto& w) { std::ranges::fill(w.encoder_norm.weight, 1.0f); }},
      {"no_target_positions", [](auto&, auto& w) { std::ranges::fill(w.target_positions, 0.0f); },
       false},
      {"a_decoder_layer_less", [](auto&, auto& w) { w.decoder_layers.pop_back(); }, false},
      {"decoder_heads", [](auto& s, auto&) { s.decoder.num_heads /= 2; }, false},
      {"no_bias_of_cross_values",
       [](auto&, auto& w) { std::ranges::fill(w.decoder_layers[0].cross.value.bias, 0.0f); },
       false},
      {"cross_swapped",
       [](auto&, auto& w) { std::swap(w.decoder_layers[0].cross, w.decoder_layers[1].cross); },
       false},
      {"keys_for_values",
       [](auto&, auto& w) {
         std::swap(w.decoder_layers[0].cross.key, w.decoder_layers[0].cross.value);
       },
       false},
      {"no_bias_of_up",
       [](auto&, auto& w) { std::ranges::fill(w.decoder_layers[1].mlp.up.bias, 0.0f); }, false},
      {"no_decoder_norm", [](auto&, auto& w) { std::ranges::fill(w.decoder_norm.bias, 0.0f); },
       false},
  };
}

TEST_P(WhisperGolden, FaultsAreNoticed) {
  const test::Reference reference = test::read_reference(GetParam());
  for (const WhisperFault& fault : whisper_faults()) {
    const auto model = LoadedModel::load(GetParam(), fault.change, "float32");
    EXPECT_GT(logits_error(*model, reference), 1e-3) << fault.name;
    const double source = source_error(*model, reference);
    EXPECT_EQ(source > 1e-3, fault.encoder) << fault.name << ": " << source;
  }
}

INSTANTIATE_TEST_SUITE_P(All, WhisperGolden, testing::Values("multilingual", "english"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(WhisperEncoder, WindowsBeginAtTheirFrame) {
  const auto model = LoadedModel::load("multilingual");
  const MelSpectrogram mel = log_mel(test::drawn_samples(80'000), {.num_mels = 80});
  ASSERT_EQ(mel.num_frames, 500);
  MelSpectrogram part{.num_mels = 80, .num_frames = 200, .values = {}};
  for (int32_t row = 0; row < 80; ++row) {
    for (int64_t i = 0; i < 200; ++i) {
      const int64_t frame = 350 + i;
      part.values.push_back(frame < 500 ? mel.row(row)[static_cast<size_t>(frame)] : 0.0f);
    }
  }
  const auto whole = model->encoder->encode(mel, 350);
  const std::vector<float> first(whole.begin(), whole.end());
  EXPECT_TRUE(std::ranges::equal(model->encoder->encode(part, 0), first));
  EXPECT_FALSE(std::ranges::equal(model->encoder->encode(mel, 349), first));
}

}  // namespace
}  // namespace espalier::speech
