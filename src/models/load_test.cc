// Reading config.json and weights: what is wrong is named, and dummy weights are sane.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/mapped_file.h"
#include "checkpoint/json_object.h"
#include "checkpoint/temp_folder.h"
#include "models/families/family.h"
#include "models/golden.h"
#include "models/model_plan.h"
#include "models/rope_table.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kLlama[] = "tests/golden/models/llama_tied_llama3";
constexpr char k1B[] = "bench/configs/llama_1.24b";

std::string text_of(const std::filesystem::path& path) {
  const auto text = read_text_file(path);
  EXPECT_TRUE(text) << text.error().to_string();
  return text.value_or("");
}

std::string edited(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// A golden's folder with its config.json, or the header of its weights, edited.
class EditedModel : public testing::Test {
 protected:
  EditedModel() {
    std::filesystem::copy(kLlama, folder_.path(), std::filesystem::copy_options::recursive);
  }
  void edit_config(const std::string& from, const std::string& to) {
    folder_.write("config.json", edited(text_of(folder_.path() / "config.json"), from, to));
  }
  void edit_weights(const std::string& from, const std::string& to) {
    ASSERT_EQ(from.size(), to.size());  // the header keeps its length
    folder_.write("model.safetensors",
                  edited(text_of(folder_.path() / "model.safetensors"), from, to));
  }
  void expect_failure(StatusCode code, const char* message) {
    const auto model = load_model({.path = folder_.path(), .pool = &pool_});
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().code(), code) << model.error().message();
    EXPECT_THAT(model.error().message(), HasSubstr(message));
  }
  TempFolder folder_;
  WorkPool pool_{1};
};

// What a change of config.json's fields leads to.
Result<DecoderSpec> plan_with(const std::filesystem::path& path, std::string overrides) {
  auto plan = plan_model({.path = path, .config_overrides = std::move(overrides)});
  if (!plan) return fail(plan.error());
  return plan->spec;
}

TEST(ConfigOverrides, ChangeFieldsNestedOnesToo) {
  const auto longer = plan_with(kLlama, R"({"max_position_embeddings": 4096})");
  ASSERT_TRUE(longer) << longer.error().to_string();
  EXPECT_EQ(longer->context_length, 4096);
  // One number of the scaling that the folder has; the others stay.
  const auto factor = plan_with(kLlama, R"({"rope_scaling": {"factor": 32.0}})");
  ASSERT_TRUE(factor) << factor.error().to_string();
  EXPECT_EQ(factor->ropes[0].factor, 32.0);
  EXPECT_EQ(factor->ropes[0].original_max_positions, 32);
  EXPECT_EQ(factor->ropes[0].scaling, RopeSpec::Scaling::kLlama3);
  // Another scaling altogether.
  const auto yarn = plan_with(kLlama, R"({"max_position_embeddings": 128, "rope_scaling":
      {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}})");
  ASSERT_TRUE(yarn) << yarn.error().to_string();
  EXPECT_EQ(yarn->ropes[0].scaling, RopeSpec::Scaling::kYarn);
  EXPECT_NE(rope_frequencies(yarn->ropes[0]), rope_frequencies(factor->ropes[0]));
  const auto none = plan_with(kLlama, R"({"rope_scaling": null})");
  ASSERT_TRUE(none) << none.error().to_string();
  EXPECT_EQ(none->ropes[0].scaling, RopeSpec::Scaling::kNone);
  // A family by another's name: Mistral is Llama with a window.
  const auto mistral =
      plan_with(kLlama, R"({"architectures": ["MistralForCausalLM"], "sliding_window": 5})");
  ASSERT_TRUE(mistral) << mistral.error().to_string();
  EXPECT_EQ(mistral->layers[1].attention.sliding_window, 5);
}

TEST(ConfigOverrides, WhatIsWrongIsNamed) {
  const auto failure = [](const char* overrides) {
    const auto spec = plan_with(kLlama, overrides);
    EXPECT_FALSE(spec) << overrides;
    return spec ? "" : spec.error().message();
  };
  EXPECT_THAT(failure("{"), HasSubstr("json_model_override_args is not valid JSON"));
  EXPECT_THAT(failure("[1]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(failure(R"({"rope_theta": 1, "rope_theta": 2})"), HasSubstr("stands twice"));
  EXPECT_THAT(failure(R"({"max_positions": 99})"), HasSubstr("'max_positions' is not a field"));
  EXPECT_THAT(failure(R"({"rope_scaling": {"faktor": 2}})"), HasSubstr("'rope_scaling.faktor'"));
  EXPECT_THAT(failure(R"({"rope_scaling": {"factor": "2"}})"),
              HasSubstr("'rope_scaling.factor' must be a number"));
  EXPECT_THAT(failure(R"({"max_position_embeddings": true})"), HasSubstr("must be an integer"));
  EXPECT_THAT(failure(R"({"rope_scaling": 3})"), HasSubstr("must be an object"));
  // transformers 5 writes rope_parameters, and then nobody reads the older name.
  const auto spec = plan_with("tests/golden/models/llama_untied_bias",
                              R"({"rope_scaling": {"rope_type": "linear", "factor": 2}})");
  ASSERT_FALSE(spec);
  EXPECT_THAT(spec.error().message(), HasSubstr("'rope_scaling' is not a field"));
}

TEST_F(EditedModel, LoadsUnchanged) {
  const auto model = load_model({.path = folder_.path(), .context_length = 99, .pool = &pool_});
  ASSERT_TRUE(model) << model.error().to_string();
  const ModelInfo& info = (*model)->info();
  EXPECT_EQ(info.architecture, "LlamaForCausalLM");
  EXPECT_EQ(info.model_type, "llama");
  EXPECT_EQ(info.vocab_size, 200);
  EXPECT_EQ(info.context_length, 99);
  EXPECT_EQ(info.num_layers, 3);
  EXPECT_EQ(info.num_kv_heads, 2);
  EXPECT_EQ(info.head_dim, 16);
  EXPECT_EQ(info.num_parameters, 105408);
  EXPECT_GE(info.weight_bytes, 2 * info.num_parameters);
  EXPECT_THAT(info.eos_ids, ElementsAre(2));
  EXPECT_EQ(info.kv_bytes_per_token(KvType::kBFloat16), 2 * 3 * 2 * 16 * 2);
}

TEST_F(EditedModel, TensorThatIsMissingIsNamed) {
  edit_config("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 4");
  expect_failure(StatusCode::kNotFound, "'model.layers.3.input_layernorm.weight' is missing");
}

TEST_F(EditedModel, TensorThatIsLeftOverIsNamed) {
  edit_config("\"num_hidden_layers\": 3", "\"num_hidden_layers\": 2");
  expect_failure(StatusCode::kInvalidArgument,
                 "'model.layers.2.input_layernorm.weight' [64] belongs to nothing");
}

TEST_F(EditedModel, TensorOfAnotherShapeIsNamed) {
  edit_config("\"intermediate_size\": 96", "\"intermediate_size\": 95");
  expect_failure(
      StatusCode::kInvalidArgument,
      "'model.layers.0.mlp.gate_proj.weight' has shape [96, 64] and config.json asks for "
      "[95, 64]");
}

TEST_F(EditedModel, UntiedModelNeedsAHead) {
  edit_config("\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
  expect_failure(StatusCode::kNotFound, "'lm_head.weight' is missing");
}

TEST_F(EditedModel, TiedModelMayHoldItsHeadAgainButNoOther) {
  std::string bytes = text_of(folder_.path() / "model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  std::string header = bytes.substr(8, header_bytes);
  std::string data = bytes.substr(8 + header_bytes);
  while (header.back() != '}') header.pop_back();
  header.pop_back();
  const size_t table = size_t{200} * 64 * 2;
  header += fmt::format(R"(,"lm_head.weight":{{"dtype":"BF16","shape":[200,64],"data_offsets":)"
                        R"([{},{}]}}}})",
                        data.size(), data.size() + table);
  const auto file = SafetensorsFile::open(folder_.path() / "model.safetensors");
  ASSERT_TRUE(file);
  const auto embedding =
      std::ranges::find(file->tensors(), "model.embed_tokens.weight", &CheckpointTensor::name);
  ASSERT_NE(embedding, file->tensors().end());
  data.append(reinterpret_cast<const char*>(embedding->bytes.data()), table);
  folder_.write("model.safetensors", safetensors_bytes(header, data));
  EXPECT_TRUE(load_model({.path = folder_.path(), .pool = &pool_}));
  data.back() ^= 1;
  folder_.write("model.safetensors", safetensors_bytes(header, data));
  expect_failure(StatusCode::kInvalidArgument, "'lm_head.weight' is another matrix");
}

TEST_F(EditedModel, TensorsMayLieAskew) {
  std::string bytes = text_of(folder_.path() / "model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  const std::string header = bytes.substr(8, header_bytes) + " ";
  folder_.write("model.safetensors", safetensors_bytes(header, bytes.substr(8 + header_bytes)));
  const auto askew = load_model({.path = folder_.path(), .dtype = "float32", .pool = &pool_});
  ASSERT_TRUE(askew) << askew.error().to_string();
  const golden::Golden golden = golden::read("llama_tied_llama3");
  EXPECT_LT(golden::max_error(**askew, golden, KvType::kFloat32), 1e-4f);
}

struct ConfigEdit {
  const char* from;
  const char* to;
  const char* message;
};

TEST_F(EditedModel, ConfigErrorsNameTheField) {
  const ConfigEdit edits[] = {
      {"LlamaForCausalLM", "GPTForever", "'GPTForever' is not known; those that are: BertModel, "},
      {"\"architectures\"", "\"architecture\"", "'architectures' is missing"},
      {"\"hidden_size\": 64", "\"hidden_size\": \"64\"", "'hidden_size' must be an integer"},
      {"\"hidden_size\": 64", "\"hidden_size\": 0", "'hidden_size' is 0"},
      {"\"hidden_size\": 64", "\"hidden_size\": 99999999999", "'hidden_size' is 99999999999"},
      {"\"vocab_size\": 200", "\"vocab_size\": null", "'vocab_size' is missing"},
      {"\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3", "a multiple of"},
      {"\"head_dim\": 16", "\"head_dim\": 15", "do not fit a head_dim of 15"},
      {"\"head_dim\": 16", "\"head_dim\": 1024", "head_dim 1024 is not between 1 and 512"},
      {"\"rms_norm_eps\": 1e-05", "\"rms_norm_eps\": -1", "'rms_norm_eps' must be above 0"},
      {"\"silu\"", "\"gelu\"", "'hidden_act' is 'gelu'"},
      {"\"llama3\"", "\"ntk\"", "the rope type 'ntk' is not supported"},
      {"\"factor\": 8.0,", "", "'rope_scaling.factor' is missing"},
      {"\"factor\": 8.0", "\"factor\": 0", "rope factor 0"},
      {"\"high_freq_factor\": 4.0", "\"high_freq_factor\": 1.0", "must be above low_freq_factor"},
      {"\"rope_theta\": 10000.0", "\"rope_theta\": true", "'rope_theta' must be a number"},
      {"\"bfloat16\"", "\"int3\"", "'torch_dtype' is 'int3'"},
      {"\"use_cache\": true", "\"quantization_config\": {}", "'quantization_config' is there"},
      {"{", "{,", "config.json is not valid JSON"}};
  const std::string good = text_of(folder_.path() / "config.json");
  for (const ConfigEdit& edit : edits) {
    folder_.write("config.json", edited(good, edit.from, edit.to));
    const auto info = read_model_info({.path = folder_.path()});
    ASSERT_FALSE(info) << edit.to;
    EXPECT_THAT(info.error().message(), HasSubstr(edit.message));
    EXPECT_THAT(info.error().message(), HasSubstr("config.json"));
  }
  EXPECT_EQ(read_model_info({.path = "/nonexistent"}).error().code(), StatusCode::kNotFound);
  std::filesystem::remove(folder_.path() / "config.json");
  EXPECT_EQ(read_model_info({.path = folder_.path()}).error().code(), StatusCode::kNotFound);
}

TEST_F(EditedModel, GenerationConfigCorrectsTheEnd) {
  folder_.write("generation_config.json", R"({"eos_token_id":[9,7],"temperature":0.6})");
  EXPECT_THAT(read_model_info({.path = folder_.path()})->eos_ids, ElementsAre(7, 9));
  EXPECT_EQ(read_generation_defaults(folder_.path())->temperature, 0.6f);
  folder_.write("generation_config.json", R"({"eos_token_id":200})");
  EXPECT_THAT(read_model_info({.path = folder_.path()}).error().message(),
              HasSubstr("generation_config.json: eos_token_id 200"));
  std::filesystem::remove(folder_.path() / "generation_config.json");
  EXPECT_THAT(read_model_info({.path = folder_.path()})->eos_ids, ElementsAre(2));
  EXPECT_FALSE(read_generation_defaults(folder_.path())->temperature.has_value());
}

TEST_F(EditedModel, OptionsAreChecked) {
  const auto message = [&](const ModelLoadOptions& options) {
    const auto model = load_model(options);
    return model ? "" : model.error().message();
  };
  EXPECT_THAT(message({.path = folder_.path(), .dtype = "int8", .pool = &pool_}),
              HasSubstr("dtype 'int8' is not known; use auto"));
  EXPECT_THAT(message({.path = folder_.path(), .context_length = 300, .pool = &pool_}),
              HasSubstr("context length 300 is not between 1 and the model's own 256"));
  // A dynamic scaling lets a model see more than it was trained for, where the options request it.
  const std::string config = text_of(folder_.path() / "config.json");
  folder_.write("config.json", edited(config, "\"llama3\"", "\"dynamic\""));
  EXPECT_EQ(message({.path = folder_.path(), .context_length = 300, .pool = &pool_}), "");
  EXPECT_THAT(message({.path = folder_.path(), .context_length = 2049, .pool = &pool_}),
              HasSubstr("context length 2049 is not between 1 and the model's own 2048"));
  EXPECT_EQ(read_model_info({.path = folder_.path()})->context_length, 256);
  folder_.write("config.json", config);
  std::filesystem::remove(folder_.path() / "model.safetensors");
  EXPECT_THAT(message({.path = folder_.path(), .pool = &pool_}), HasSubstr("has no weights"));
  EXPECT_EQ(message({.path = folder_.path(), .format = LoadFormat::kDummy}), "");
}

// Whatever a config.json holds, reading it ends in a spec or in an error.
TEST_F(EditedModel, SurvivesSeededMutationsOfTheConfig) {
  constexpr uint64_t kSeed = 5;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  Rng rng(kSeed);
  const std::string good = text_of(folder_.path() / "config.json");
  constexpr std::string_view kTokens[] = {"0",
                                          "-1",
                                          "1e308",
                                          "null",
                                          "true",
                                          "[]",
                                          "{}",
                                          "\"x\"",
                                          "4294967296",
                                          "0.5",
                                          "9223372036854775807"};
  int accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (uint64_t edits = 1 + rng.below(2); edits > 0; --edits) {
      const size_t colon = text.find(": ", rng.below(text.size()));
      if (colon == std::string::npos) continue;
      const size_t end = text.find_first_of(",\n}", colon);
      text.replace(colon + 2, end - colon - 2, kTokens[rng.below(std::size(kTokens))]);
    }
    const auto config = JsonObject::parse(text, "config.json");
    if (!config) continue;
    const auto spec = make_decoder_spec(*config);
    if (!spec) {
      ASSERT_THAT(spec.error().message(), HasSubstr("config.json")) << text;
      continue;
    }
    ++accepted;
    ASSERT_GT(spec->num_parameters(), 0);
    for (const RopeSpec& rope : spec->ropes) {
      for (const float frequency : rope_frequencies(rope)) {
        ASSERT_TRUE(std::isfinite(frequency)) << text;
      }
    }
  }
  EXPECT_GT(accepted, 300);
}

TEST(DummyWeights, AreTheSeedsAndSane) {
  const golden::Golden golden = golden::read("qwen3_head_dim");
  std::vector<std::vector<TokenId>> input = {golden.sequences.back().tokens};
  const auto logits = [&](uint64_t seed, const char* dtype, int threads) {
    WorkPool pool(threads);
    auto model = load_model({.path = golden.folder,
                             .format = LoadFormat::kDummy,
                             .seed = seed,
                             .dtype = dtype,
                             .pool = &pool});
    EXPECT_TRUE(model);
    return golden::run_all(**model, input, KvType::kFloat32, 16, 1000, true)[0];
  };
  const std::vector<float> one = logits(1, "float32", 1);
  EXPECT_EQ(one, logits(1, "float32", 3));
  EXPECT_NE(one, logits(2, "float32", 1));
  double squares = 0, difference = 0;
  const std::vector<float> rounded = logits(1, "bfloat16", 2);
  for (size_t i = 0; i < one.size(); ++i) {
    squares += one[i] * one[i];
    difference += (one[i] - rounded[i]) * (one[i] - rounded[i]);
  }
  const double deviation = std::sqrt(squares / static_cast<double>(one.size()));
  EXPECT_GT(deviation, 0.5);
  EXPECT_LT(deviation, 2.0);
  EXPECT_LT(difference, 0.01 * squares);
}

TEST(Families, CountTheParametersOfKnownModels) {
  EXPECT_EQ(read_model_info({.path = k1B})->num_parameters, 1235814400);  // Llama 3.2 1B
  EXPECT_EQ(read_model_info({.path = k1B})->kv_bytes_per_token(KvType::kBFloat16), 32768);
  const auto llama2 = JsonObject::parse(
      R"({"architectures":["LlamaForCausalLM"],"hidden_size":4096,"intermediate_size":11008,)"
      R"("num_attention_heads":32,"num_hidden_layers":32,"vocab_size":32000,)"
      R"("max_position_embeddings":4096,"torch_dtype":"float16","rope_scaling":null})",
      "config.json");
  EXPECT_EQ(make_decoder_spec(*llama2)->num_parameters(), 6738415616);  // Llama 2 7B
  const auto qwen3 = JsonObject::parse(
      R"({"architectures":["Qwen3ForCausalLM"],"hidden_size":1024,"intermediate_size":3072,)"
      R"("num_attention_heads":16,"num_key_value_heads":8,"head_dim":128,"num_hidden_layers":28,)"
      R"("tie_word_embeddings":true,"vocab_size":151936,"max_position_embeddings":40960,)"
      R"("rope_theta":1000000,"sliding_window":null,"use_sliding_window":false})",
      "config.json");
  EXPECT_EQ(make_decoder_spec(*qwen3)->num_parameters(), 596049920);  // Qwen 3 0.6B
  EXPECT_EQ(make_decoder_spec(*qwen3)->ropes[0].theta, 1e6);
}

// Numbers of transformers' ROPE_INIT_FUNCTIONS["dynamic"] for texts of 128 and 256 tokens.
TEST(Rope, DynamicStretchesWhatIsLongerThanThePretraining) {
  RopeSpec rope{.rotary_dim = 16, .theta = 10000, .scaling = RopeSpec::Scaling::kDynamic};
  rope.factor = 4;
  rope.original_max_positions = 64;
  const RopeSpec plain{.rotary_dim = 16, .theta = 10000};
  EXPECT_EQ(rope_frequencies(rope, 32), rope_frequencies(plain));
  EXPECT_EQ(rope_frequencies(rope, 64), rope_frequencies(plain));
  const float at_128[] = {1,           0.25127375f,  0.063138507f,  0.015865048f,
                          0.00398647f, 0.001001695f, 0.0002516998f, 0.00006324555f};
  const float at_256[] = {1,           0.21921247f,  0.048054103f,  0.010534058f,
                          0.00230920f, 0.000506205f, 0.0001109664f, 0.00002432521f};
  const auto frequencies_128 = rope_frequencies(rope, 128);
  const auto frequencies_256 = rope_frequencies(rope, 256);
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_NEAR(frequencies_128[i] / at_128[i], 1, 2e-6) << i;
    EXPECT_NEAR(frequencies_256[i] / at_256[i], 1, 2e-6) << i;
  }
}

// Values from the formula of Llama 3.1's release, worked out by hand for three of its frequencies.
TEST(Rope, Llama3StretchesLowFrequenciesOnly) {
  const RopeSpec plain{.rotary_dim = 64, .theta = 500000};
  RopeSpec scaled = plain;
  scaled.scaling = RopeSpec::Scaling::kLlama3;
  scaled.factor = 32;
  scaled.original_max_positions = 8192;
  const std::vector<float> before = rope_frequencies(plain), after = rope_frequencies(scaled);
  ASSERT_EQ(after.size(), 32u);
  EXPECT_EQ(after[0], 1.0f);
  EXPECT_FLOAT_EQ(after[31], before[31] / 32);
  // Pair 15: wavelength 2948.6, 2.7783 turns, so 0.59276 of it stays as it is.
  EXPECT_NEAR(after[15] / before[15], 0.59276 + (1 - 0.59276) / 32, 2e-4);
}

}  // namespace
}  // namespace espalier
