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

constexpr const char* kSeeing[] = {"llava_clip", "llava_siglip", "llava_next", "llava_onevision",
                                   "qwen2_vl",   "qwen2_5_vl",   "qwen3_vl"};

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
