#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/generation_config.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/json_object.h"
#include "checkpoint/temp_folder.h"
#include "checkpoint/tensor_writer.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

JsonObject parse(std::string_view text) {
  auto object = JsonObject::parse(text, "config.json");
  EXPECT_TRUE(object) << object.error().to_string();
  return *std::move(object);
}

TEST(JsonObject, ReadsTypedFields) {
  const JsonObject config =
      parse(R"({"n":7,"whole":1e3,"x":0.5,"flag":true,"s":"text","o":{"inner":[1,2]},"none":null,)"
            R"("list":["a","b"]})");
  EXPECT_EQ(*config.integer("n"), 7);
  EXPECT_EQ(*config.integer("whole"), 1000);
  EXPECT_EQ(*config.number("x"), 0.5);
  EXPECT_EQ(*config.number("n"), 7.0);
  EXPECT_TRUE(*config.boolean("flag"));
  EXPECT_EQ(*config.string("s"), "text");
  EXPECT_THAT(*config.integers("n"), ElementsAre(7));
  EXPECT_THAT(*config.object("o")->integers("inner"), ElementsAre(1, 2));
  EXPECT_THAT(*config.strings("list"), ElementsAre("a", "b"));
  EXPECT_FALSE(config.has("none"));
  EXPECT_EQ(*config.integer_or("none", 4), 4);
  EXPECT_EQ(*config.string_or("absent", "z"), "z");
  EXPECT_EQ(config.keys().size(), 8u);
}

TEST(JsonObject, ErrorsNameFileAndField) {
  const JsonObject config = parse(R"({"n":"7","x":1.5,"o":{"inner":[1,"b"]}})");
  EXPECT_EQ(config.integer("n").error().message(), "config.json: 'n' must be an integer");
  EXPECT_EQ(config.integer_or("x", 1).error().message(), "config.json: 'x' must be an integer");
  EXPECT_EQ(config.number("absent").error().message(), "config.json: 'absent' is missing");
  EXPECT_EQ(config.object("o")->integers("inner").error().message(),
            "config.json: 'o.inner' must be an integer or a list of integers");
  EXPECT_THAT(parse(R"({"n":70})").integer("n", 1, 8).error().message(),
              HasSubstr("'n' is 70, which is not between 1 and 8"));
  EXPECT_THAT(parse(R"({"n":18446744073709551615})").integer("n").error().message(),
              HasSubstr("'n' must be an integer"));
  EXPECT_FALSE(config.boolean("x"));
  EXPECT_FALSE(config.string("x"));
  EXPECT_FALSE(config.strings("o"));
  EXPECT_FALSE(config.object("x"));
}

TEST(JsonObject, RefusesWhatIsNoObject) {
  EXPECT_EQ(JsonObject::parse("{,}", "f").error().code(), StatusCode::kDataLoss);
  EXPECT_EQ(JsonObject::parse("[]", "f").error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(JsonObject::parse(std::string(100000, '['), "f").error().code(), StatusCode::kDataLoss);
  EXPECT_EQ(JsonObject::parse("{} x", "f").error().code(), StatusCode::kDataLoss);
  EXPECT_TRUE(JsonObject::parse(R"({"a":1,"a":2})", "f"));
  EXPECT_EQ(JsonObject::parse(R"({"b":{"a":1,"\u0061":2}})", "f", DuplicateKeys::kError)
                .error()
                .message(),
            "f: the key 'a' stands twice in one object");
  EXPECT_TRUE(JsonObject::parse(R"({"a":{"a":1},"b":{"a":1}})", "f", DuplicateKeys::kError));
  EXPECT_EQ(JsonObject::read("/nonexistent/config.json").error().code(), StatusCode::kNotFound);
}

TEST(GenerationConfig, ReadsWhatIsThere) {
  TempFolder folder;
  folder.write("generation_config.json",
               R"({"temperature":0.6,"top_p":0.9,"top_k":20,"min_p":null,)"
               R"("repetition_penalty":1.05,"max_new_tokens":64,"eos_token_id":[9,3,9]})");
  const auto config = read_generation_config(folder.path());
  ASSERT_TRUE(config) << config.error().to_string();
  EXPECT_EQ(config->temperature, 0.6f);
  EXPECT_EQ(config->top_p, 0.9f);
  EXPECT_EQ(config->top_k, 20);
  EXPECT_FALSE(config->min_p.has_value());
  EXPECT_EQ(config->repetition_penalty, 1.05f);
  EXPECT_EQ(config->max_new_tokens, 64);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(3, 9));
}

TEST(GenerationConfig, AbsentFileIsNoErrorAndBadFieldIs) {
  TempFolder folder;
  const auto absent = read_generation_config(folder.path());
  ASSERT_TRUE(absent);
  EXPECT_FALSE(absent->temperature.has_value());
  EXPECT_TRUE(absent->eos_token_ids.empty());
  const std::pair<const char*, const char*> bad[] = {
      {R"({"temperature":-1})", "'temperature' is -1, which is not at least 0"},
      {R"({"temperature":"hot"})", "'temperature' must be a number"},
      {R"({"top_p":0})", "'top_p' is 0, which is not in (0, 1]"},
      {R"({"min_p":2})", "'min_p'"},
      {R"({"top_k":-7})", "'top_k' is -7"},
      {R"({"repetition_penalty":0})", "'repetition_penalty'"},
      {R"({"max_new_tokens":1e40})", "'max_new_tokens'"},
      {R"({"eos_token_id":-2})", "'eos_token_id' holds -2"},
      {R"({"eos_token_id":["x"]})", "'eos_token_id' must be an integer or a list"}};
  for (const auto& [text, message] : bad) {
    folder.write("generation_config.json", text);
    const auto config = read_generation_config(folder.path());
    ASSERT_FALSE(config) << text;
    EXPECT_THAT(config.error().message(), HasSubstr(message));
    EXPECT_THAT(config.error().message(), HasSubstr("generation_config.json"));
  }
  folder.write("generation_config.json", R"({"top_k":0,"eos_token_id":5})");
  EXPECT_EQ(read_generation_config(folder.path())->top_k, -1);
  EXPECT_THAT(read_generation_config(folder.path())->eos_token_ids, ElementsAre(5));
}

GenerationConfig a_generation_config() {
  GenerationConfig config;
  config.temperature = 0.6f;
  config.top_p = 0.95f;
  config.min_p = 0;
  config.repetition_penalty = 1.05f;
  config.top_k = 20;
  return config;
}

void expect_same_sampling(const Result<GenerationConfig>& found, const GenerationConfig& wanted) {
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(found->temperature, wanted.temperature);
  EXPECT_EQ(found->top_p, wanted.top_p);
  EXPECT_EQ(found->min_p, wanted.min_p);
  EXPECT_EQ(found->repetition_penalty, wanted.repetition_penalty);
  EXPECT_EQ(found->top_k, wanted.top_k);
}

TEST(GenerationConfig, WhatIsWrittenComesBackFromBothFormats) {
  GenerationConfig without_limit = a_generation_config(), greedy, none;
  without_limit.top_k = -1;
  greedy.temperature = 0;
  for (const GenerationConfig& config : {a_generation_config(), without_limit, greedy, none}) {
    TempFolder folder;
    GgufMetadata metadata;
    add_generation_config(config, metadata);
    ASSERT_TRUE(write_gguf(folder.path() / "model.gguf", metadata, {}, {}).ok());
    expect_same_sampling(read_generation_config(folder.path() / "model.gguf"), config);
    expect_same_sampling(read_generation_config(folder.path()), config);  // which has one GGUF
    GenerationConfig whole = config;
    whole.max_new_tokens = 9;
    whole.eos_token_ids = {3, 9};
    folder.write("generation_config.json", generation_config_text(whole));
    const auto found = read_generation_config(folder.path());
    expect_same_sampling(found, whole);
    EXPECT_EQ(found->max_new_tokens, 9);
    EXPECT_THAT(found->eos_token_ids, ElementsAre(3, 9));
  }
}

TEST(GenerationConfig, TheTextSaysWhetherSamplingIsWanted) {
  GenerationConfig config;
  EXPECT_EQ(generation_config_text(config), "{\n}\n");
  config.eos_token_ids = {2};
  EXPECT_EQ(generation_config_text(config), "{\n  \"eos_token_id\": [2]\n}\n");
  config.temperature = 0.7f;
  EXPECT_EQ(generation_config_text(config),
            "{\n  \"temperature\": 0.7,\n  \"do_sample\": true,\n  \"eos_token_id\": [2]\n}\n");
  config.temperature = 0;
  EXPECT_THAT(generation_config_text(config), HasSubstr("\"do_sample\": false"));
}

TEST(GenerationConfig, AWrongKeyOfAGgufIsNamed) {
  TempFolder folder;
  GgufWriter writer;
  folder.write("model.gguf", writer.real("general.sampling.top_p", 1.5f).bytes());
  const auto config = read_generation_config(folder.path() / "model.gguf");
  ASSERT_FALSE(config);
  EXPECT_THAT(config.error().message(),
              HasSubstr("model.gguf: 'general.sampling.top_p' is 1.5, which is not in (0, 1]"));
}

}  // namespace
}  // namespace espalier
