// Configurations of models that read pictures: broken ones are refused, by the field's name where a
// field alone is broken, and none is followed into memory that it does not state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "base/rng.h"
#include "models/families/family.h"
#include "models/image_encoder.h"
#include "models/program/check.h"
#include "models/program/lower.h"
#include "models/rope_table.h"

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr const char* kSeeing[] = {"llava_clip",   "llava_siglip", "llava_next", "llava_onevision",
                                   "qwen2_vl",     "qwen2_5_vl",   "qwen3_vl",   "gemma3",
                                   "pixtral",      "mistral3",     "internvl",   "internvl_norms",
                                   "internvl_chat"};

std::string config_of(const std::string& name) {
  std::ifstream in(std::filesystem::path("tests/golden/images") / name / "config.json");
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// Of the decoder or the encoder that a configuration makes; empty where both are made.
std::string refusal_of(const std::string& text) {
  const auto config = JsonObject::parse(text, "config.json");
  if (!config) return std::string(config.error().message());
  if (const auto decoder = make_decoder_spec(*config); !decoder)
    return std::string(decoder.error().message());
  const auto encoder = make_encoder_spec(*config);
  if (!encoder) return std::string(encoder.error().message());
  if (*encoder) {
    EXPECT_TRUE(program::check(program::lower(**encoder)).ok());
  }
  return "";
}

std::string changed(const std::string& name, const std::string& pattern, const std::string& to) {
  const std::string text = config_of(name);
  std::string out = std::regex_replace(text, std::regex(pattern), to);
  EXPECT_NE(out, text) << pattern;
  return out;
}

TEST(SeeingConfig, BrokenFieldsAreNamed) {
  const auto error = [](const char* name, const char* pattern, const char* to) {
    return refusal_of(changed(name, pattern, to));
  };
  EXPECT_THAT(error("qwen2_vl", R"("mrope_section": \[\s*1,)", R"("mrope_section": [7,)"),
              HasSubstr("mrope_section"));
  EXPECT_THAT(error("qwen2_vl", R"("mrope_section")", R"("other")"), HasSubstr("mrope_section"));
  EXPECT_THAT(error("qwen2_vl", R"("mrope_section": \[\s*1,)", R"("mrope_section": [-1,)"),
              HasSubstr("mrope_section"));
  EXPECT_THAT(error("qwen2_vl", R"("image_token_id": 97)", R"("image_token_id": 99)"),
              HasSubstr("image_token_id"));
  EXPECT_THAT(error("qwen2_vl", R"("num_heads": 2)", R"("num_heads": 5)"), HasSubstr("num_heads"));
  EXPECT_THAT(error("qwen2_vl", R"("patch_size": 8)", R"("patch_size": 0)"),
              HasSubstr("patch_size"));
  EXPECT_THAT(
      error("qwen2_5_vl", R"("fullatt_block_indexes": \[\s*1)", R"("fullatt_block_indexes": [3)"),
      HasSubstr("fullatt_block_indexes"));
  EXPECT_THAT(error("qwen2_5_vl", R"("window_size": 32)", R"("window_size": 9)"),
              HasSubstr("window_size"));
  EXPECT_THAT(error("qwen2_5_vl", R"("out_hidden_size": 32)", R"("out_hidden_size": 33)"),
              HasSubstr("out_hidden_size"));
  for (const char* indexes : {"1, 4", "3, 1", "1, 1", "-1", "0, 1, 2"}) {
    EXPECT_THAT(error("qwen3_vl", R"("deepstack_visual_indexes": \[[^\]]*)",
                      (std::string("\"deepstack_visual_indexes\": [") + indexes).c_str()),
                HasSubstr("deepstack_visual_indexes"))
        << indexes;
  }
  EXPECT_THAT(
      error("qwen3_vl", R"("num_position_embeddings": 25)", R"("num_position_embeddings": 26)"),
      HasSubstr("num_position_embeddings"));
  EXPECT_THAT(
      error("qwen3_vl", R"("mrope_section": \[\s*4,\s*2,\s*2)", R"("mrope_section": [2, 3, 3)"),
      HasSubstr("mrope_interleaved"));
  EXPECT_THAT(error("qwen3_vl", R"("gelu_pytorch_tanh")", R"("relu")"), HasSubstr("hidden_act"));
  EXPECT_THAT(error("llava_next", R"(\[\s*28,\s*56\s*\])", "[28, 57]"),
              HasSubstr("image_grid_pinpoints"));
  EXPECT_THAT(error("llava_next", R"(\[\s*28,\s*56\s*\])", "[28, 2800000]"),
              HasSubstr("image_grid_pinpoints"));
  EXPECT_THAT(error("llava_onevision", "anyres_max_3", "anyres_max_"),
              HasSubstr("vision_aspect_ratio"));
  EXPECT_THAT(error("llava_onevision", "anyres_max_3", "pad"), HasSubstr("vision_aspect_ratio"));
}

TEST(SeeingConfig, BrokenFieldsOfMergingModelsAreNamed) {
  const auto error = [](const char* name, const char* pattern, const char* to) {
    return refusal_of(changed(name, pattern, to));
  };
  EXPECT_THAT(error("gemma3", R"("mm_tokens_per_image": 16)", R"("mm_tokens_per_image": 9)"),
              HasSubstr("mm_tokens_per_image"));
  EXPECT_THAT(error("gemma3", R"("image_token_index": 97)", R"("image_token_index": 99)"),
              HasSubstr("image_token_index"));
  EXPECT_THAT(error("mistral3", R"("vision_feature_layer": -1)", R"("vision_feature_layer": -5)"),
              HasSubstr("vision_feature_layer"));
  EXPECT_THAT(error("mistral3", R"("model_type": "mistral",)", R"("model_type": "mamba",)"),
              HasSubstr("known beside this encoder is mistral"));
  EXPECT_THAT(error("pixtral", R"("hidden_act": "silu",\s*"hidden_size": 24)",
                    R"("hidden_act": "relu", "hidden_size": 24)"),
              HasSubstr("hidden_act"));
  EXPECT_THAT(error("internvl", R"("downsample_ratio": 0.5)", R"("downsample_ratio": 0.3)"),
              HasSubstr("downsample_ratio"));
  EXPECT_THAT(error("internvl", R"("norm_type": "layer_norm")", R"("norm_type": "batch_norm")"),
              HasSubstr("norm_type"));
  EXPECT_THAT(error("internvl", R"("vision_feature_layer": -1)", R"("vision_feature_layer": 2)"),
              HasSubstr("vision_feature_layer"));
}

// Qwen3-VL's: of 64 pairs the first 60 take turns.
TEST(SeeingConfig, PairsTakeTurns) {
  const std::vector<uint8_t> components =
      rope_components({.rotary_dim = 128, .sections = {24, 20, 20}, .interleaved_sections = true});
  ASSERT_EQ(components.size(), 64u);
  for (size_t pair = 0; pair < 64; ++pair) EXPECT_EQ(components[pair], pair < 60 ? pair % 3 : 0);
  EXPECT_EQ(rope_components({.rotary_dim = 8, .sections = {1, 1, 2}}),
            (std::vector<uint8_t>{0, 1, 2, 2}));
  EXPECT_TRUE(rope_components({.rotary_dim = 8}).empty());
}

// The fields of Qwen3-VL-4B as they were released, with the rope in rope_scaling.
TEST(SeeingConfig, ReadsQwen3VlAsItWasReleased) {
  const auto config = JsonObject::parse(R"({
    "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655,
    "model_type": "qwen3_vl", "tie_word_embeddings": true,
    "text_config": {"attention_bias": false, "dtype": "bfloat16", "eos_token_id": 151645,
      "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560, "intermediate_size": 9728,
      "max_position_embeddings": 262144, "model_type": "qwen3_vl_text", "num_attention_heads": 32,
      "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
      "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20],
                       "rope_type": "default"},
      "rope_theta": 5000000, "vocab_size": 151936},
    "vision_config": {"deepstack_visual_indexes": [5, 11, 17], "depth": 24,
      "hidden_act": "gelu_pytorch_tanh", "hidden_size": 1024, "in_channels": 3,
      "intermediate_size": 4096, "model_type": "qwen3_vl", "num_heads": 16,
      "num_position_embeddings": 2304, "out_hidden_size": 2560, "patch_size": 16,
      "spatial_merge_size": 2, "temporal_patch_size": 2}})",
                                        "config.json");
  ASSERT_TRUE(config);
  const auto decoder = make_decoder_spec(*config);
  ASSERT_TRUE(decoder) << decoder.error().message();
  EXPECT_TRUE(decoder->tied_embeddings);
  EXPECT_EQ(decoder->ropes[0].sections, (std::vector<int32_t>{24, 20, 20}));
  EXPECT_TRUE(decoder->ropes[0].interleaved_sections);
  EXPECT_EQ(decoder->ropes[0].theta, 5e6);
  EXPECT_EQ(decoder->images->num_deep_parts, 3);
  EXPECT_TRUE(decoder->layers[0].attention.qk_norm);
  const auto encoder = make_encoder_spec(*config);
  ASSERT_TRUE(encoder) << encoder.error().message();
  EXPECT_EQ((*encoder)->projector->row_width(), decoder->span_width());
  EXPECT_EQ((*encoder)->patches->position_side, 48);
  EXPECT_EQ((*encoder)->projector->deepstack[2].layer, 17);
  // As transformers counts them.
  EXPECT_EQ((*encoder)->num_parameters(), 415'347'712);
  EXPECT_EQ(decoder->num_parameters(), 4'022'468'096);
}

TEST(SeeingConfig, RandomValuesAreTakenOrRefused) {
  const std::vector<std::string> values = {
      "0",    "-1",       "1",  "7",  "2147483647", "1e9", "null",
      "true", "\"text\"", "[]", "{}", "[1]",        "3.5", "99999999999999999999"};
  Rng rng(25);
  const std::regex field(R"(": ("[^"]*"|[0-9.e-]+|true|false|null))");
  for (const char* name : kSeeing) {
    const std::string text = config_of(name);
    EXPECT_EQ(refusal_of(text), "") << name;
    const std::vector<std::smatch> fields(std::sregex_iterator(text.begin(), text.end(), field),
                                          std::sregex_iterator());
    for (int round = 0; round < 300; ++round) {
      const auto& chosen = fields[rng.below(fields.size())];
      std::string broken = text;
      const std::string& value = values[rng.below(values.size())];
      broken.replace(static_cast<size_t>(chosen.position(1)), static_cast<size_t>(chosen.length(1)),
                     value);
      SCOPED_TRACE(std::string(name) + ", round " + std::to_string(round));
      refusal_of(broken);
    }
  }
}

}  // namespace
}  // namespace espalier
