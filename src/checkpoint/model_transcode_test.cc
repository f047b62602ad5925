// Models written in other formats and types: block by block, file by file, and what is refused.
#include "checkpoint/model_transcode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/rng.h"
#include "checkpoint/convert.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/staged_output.h"
#include "checkpoint/temp_folder.h"
#include "tensor/dtype.h"
#include "tensor/float16.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr size_t kBlock = 32;

std::vector<float> decoded(const BlockEncoder& encoder, std::span<const float> elements) {
  const BlockType& type = block_type_of(encoder);
  std::vector<std::byte> blocks(elements.size() / type.elements * type.bytes);
  encode_blocks(encoder, elements, blocks);
  std::vector<float> out(elements.size());
  for (size_t i = 0; i < elements.size() / type.elements; ++i)
    type.dequantize(blocks.data() + i * type.bytes, out.data() + i * type.elements);
  return out;
}

// How far the nearest code may be: half a step of the scale, and what rounding scale and minimum to
// float16 moves.
double error_max(std::string_view name, std::span<const float> x) {
  const auto [low, high] = std::ranges::minmax(x);
  const double largest = std::max(std::abs(low), std::abs(high)), range = high - low;
  const double rounding = largest * 0x1p-10 + range * 0x1p-10;
  if (name == "Q8_0") return largest / 127 / 2 + rounding;
  // The side opposite to the element farthest from zero has one code fewer.
  if (name == "Q4_0") return largest / 8 + rounding;
  if (name == "Q5_0") return largest / 16 + rounding;
  if (name == "Q4_1") return range / 15 / 2 + rounding;
  if (name == "Q5_1") return range / 31 / 2 + rounding;
  return name == "F32" ? 0 : name == "F16" ? largest * 0x1p-11 : largest * 0x1p-8;
}

TEST(BlockEncoder, ElementsComeBackWithinAStep) {
  constexpr uint64_t kSeed = 5;
  Rng rng(kSeed);
  for (const BlockEncoder& encoder : block_encoders()) {
    for (int round = 0; round < 500; ++round) {
      const double spread = std::exp2(static_cast<double>(rng.below(12)) - 6);
      const double middle = rng.below(3) == 0 ? spread * 3 : 0;
      std::vector<float> x(kBlock);
      for (float& each : x)
        each = static_cast<float>(middle +
                                  spread * (static_cast<double>(rng.below(20001)) / 10000 - 1));
      const std::vector<float> back = decoded(encoder, x);
      for (size_t i = 0; i < kBlock; ++i)
        ASSERT_LE(std::abs(static_cast<double>(back[i]) - static_cast<double>(x[i])),
                  error_max(encoder.name, x))
            << encoder.name << " seed " << kSeed << " round " << round << " element " << i;
    }
  }
}

// Each code's own value, with a scale that float16 holds, is the block that has these codes: so no
// code is out of place, and encoding a second time changes nothing.
TEST(BlockEncoder, ValuesOfCodesAreTheirBlocks) {
  for (const BlockEncoder& encoder : block_encoders()) {
    std::vector<float> x(kBlock);
    const bool centred = encoder.name.ends_with("_0");
    const int top = encoder.name == "Q8_0" ? 127 : encoder.name.starts_with("Q5") ? 31 : 15;
    const int middle = encoder.name == "Q8_0" ? 0 : (top + 1) / 2;
    for (size_t i = 0; i < kBlock; ++i) {
      const int code =
          encoder.name == "Q8_0" ? static_cast<int>(i) * 8 - 121 : static_cast<int>(i) % (top + 1);
      x[i] = 0.25f * static_cast<float>(centred ? code - middle : code) + (centred ? 0.0f : 1.0f);
    }
    if (encoder.name == "Q8_0") x[3] = 0.25f * 127;
    EXPECT_EQ(decoded(encoder, x), x) << encoder.name;
  }
}

TEST(BlockEncoder, BlocksAreTheReferencesToTheBit) {
  const SafetensorsFile goldens =
      SafetensorsFile::open("tests/golden/checkpoint/encoded.safetensors").value();
  const auto find = [&](std::string_view name) {
    return std::ranges::find(goldens.tensors(), name, &CheckpointTensor::name);
  };
  std::vector<float> values(static_cast<size_t>(find("values")->num_elements()));
  copy_as_float(*find("values"), 0, values);
  int compared = 0;
  for (const BlockEncoder& encoder : block_encoders()) {
    const auto expected = find(fmt::format("{}.blocks", encoder.name));
    if (expected == goldens.tensors().end()) continue;
    const BlockType& type = block_type_of(encoder);
    std::vector<std::byte> blocks(values.size() / type.elements * type.bytes);
    encode_blocks(encoder, values, blocks);
    ASSERT_EQ(blocks.size(), expected->bytes.size());
    for (size_t i = 0; i < blocks.size(); ++i)
      ASSERT_EQ(blocks[i], expected->bytes[i])
          << encoder.name << " block " << i / type.bytes << " byte " << i % type.bytes;
    ++compared;
  }
  EXPECT_EQ(compared, 7);
}

TEST(BlockEncoder, ZerosAndNumbersThatAreNone) {
  for (const BlockEncoder& encoder : block_encoders()) {
    std::vector<float> x(kBlock, 0.0f);
    EXPECT_EQ(decoded(encoder, x), x) << encoder.name;
    x[5] = std::numeric_limits<float>::quiet_NaN();
    x[6] = std::numeric_limits<float>::infinity();
    (void)decoded(encoder, x);  // no crash, and no undefined conversion
  }
}

// ---- files ----

constexpr int64_t kHidden = 64, kInner = 96, kVocab = 40, kHeadDim = 16;

struct Named {
  std::string name;
  std::vector<int64_t> shape;
};

const std::vector<Named>& tensor_names() {
  static const std::vector<Named> all = {
      {"model.embed_tokens.weight", {kVocab, kHidden}},
      {"model.norm.weight", {kHidden}},
      {"lm_head.weight", {kVocab, kHidden}},
      {"model.layers.0.input_layernorm.weight", {kHidden}},
      {"model.layers.0.post_attention_layernorm.weight", {kHidden}},
      {"model.layers.0.self_attn.q_proj.weight", {4 * kHeadDim, kHidden}},
      {"model.layers.0.self_attn.k_proj.weight", {2 * kHeadDim, kHidden}},
      {"model.layers.0.self_attn.k_proj.bias", {2 * kHeadDim}},
      {"model.layers.0.self_attn.v_proj.weight", {2 * kHeadDim, kHidden}},
      {"model.layers.0.self_attn.o_proj.weight", {kHidden, 4 * kHeadDim}},
      {"model.layers.0.mlp.gate_proj.weight", {kInner, kHidden}},
      {"model.layers.0.mlp.up_proj.weight", {kInner, kHidden}},
      {"model.layers.0.mlp.down_proj.weight", {kHidden, kInner}},
  };
  return all;
}

std::string config_text(std::string_view more = "") {
  return fmt::format(
      R"({{"architectures":["LlamaForCausalLM"],"vocab_size":{},"hidden_size":{},"intermediate_size":{},)"
      R"("num_hidden_layers":1,"num_attention_heads":4,"num_key_value_heads":2,"rms_norm_eps":1e-5,)"
      R"("max_position_embeddings":128,"rope_theta":5000,"attention_bias":true{}}})",
      kVocab, kHidden, kInner, more);
}

// A small Llama from a seed, in a folder.
void write_model(const TempFolder& folder, std::string_view more = "",
                 std::string_view extra = "") {
  Rng rng(8);
  std::vector<std::vector<float>> values;
  std::vector<TensorToWrite> tensors;
  std::vector<Named> names = tensor_names();
  if (!extra.empty()) names.push_back({std::string(extra), {4}});
  for (const Named& each : names) {
    TensorToWrite& out = tensors.emplace_back(TensorToWrite{
        .name = each.name, .shape = each.shape, .encoder = find_block_encoder("F32")});
    std::vector<float>& held = values.emplace_back(static_cast<size_t>(out.num_elements()));
    for (float& x : held) x = static_cast<float>(rng.below(2001)) / 1000 - 1;
  }
  for (size_t i = 0; i < tensors.size(); ++i)
    tensors[i].read = [&from = values[i]](int64_t first, std::span<float> out) {
      std::ranges::copy_n(from.begin() + first, std::ssize(out), out.begin());
    };
  // Several shards, so that the index is written and read.
  ASSERT_TRUE(write_safetensors(folder.path(), tensors, 20'000, {}).ok());
  folder.write("config.json", config_text(more));
}

StoredVocabulary vocabulary() {
  StoredVocabulary out;
  out.model = "gpt2";
  out.pre_tokenizer = "gpt-2";
  for (int64_t i = 0; i < kVocab; ++i) out.tokens.push_back(fmt::format("t{}", i));
  out.types.assign(kVocab, 1);
  out.bos_id = 0;
  out.add_bos = true;
  out.chat_template = "{{ 1 }}";
  return out;
}

std::vector<float> values_of(const Checkpoint& checkpoint, std::string_view name) {
  const CheckpointTensor* tensor = checkpoint.find(name);
  if (tensor == nullptr) return {};
  std::vector<float> out(static_cast<size_t>(tensor->num_elements()));
  copy_as_float(*tensor, 0, out);
  return out;
}

Status to_gguf(const fs::path& folder, const fs::path& result, std::string_view type) {
  ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
  ESP_ASSIGN_OR_RETURN(const JsonObject config, read_model_config(folder));
  const GgufTypes types{find_block_encoder(type), find_block_encoder(type)};
  ESP_ASSIGN_OR_RETURN(const GgufPlan plan,
                       plan_gguf(checkpoint, config, {}, vocabulary(), "small", types));
  return write_gguf(result, plan.metadata, plan.tensors, {});
}

TEST(Transcode, AFolderIsTheSameModelAsAGguf) {
  TempFolder folder;
  write_model(folder);
  ASSERT_TRUE(fs::exists(folder.path() / "model.safetensors.index.json"));
  const fs::path result = folder.path() / "model.gguf";
  ASSERT_EQ(to_gguf(folder.path(), result, "F32").message(), "");
  const auto before = Checkpoint::open(folder.path()), after = Checkpoint::open(result);
  ASSERT_TRUE(after) << after.error().message();
  EXPECT_EQ(after->tensors().size(), tensor_names().size());
  for (const Named& each : tensor_names())  // rows of q and k were turned, and are turned back
    EXPECT_EQ(values_of(*after, each.name), values_of(*before, each.name)) << each.name;
  const auto config = read_model_config(result);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->integer("num_key_value_heads").value(), 2);
  EXPECT_EQ(config->integer("head_dim").value(), kHeadDim);
  EXPECT_EQ(config->number("rope_theta").value(), 5000);
  EXPECT_FALSE(config->boolean("tie_word_embeddings").value());
  const auto words = read_stored_vocabulary(result);
  ASSERT_TRUE(words && *words);
  EXPECT_EQ((*words)->tokens, vocabulary().tokens);
  EXPECT_EQ((*words)->add_bos, true);
  EXPECT_EQ((*words)->chat_template, "{{ 1 }}");
}

// Models of each family that is written, as transformers saved them.
TEST(Transcode, EachFamilyComesBack) {
  for (const char* name :
       {"llama_tied_llama3", "llama_untied_bias", "qwen2_sharded", "qwen3_head_dim"}) {
    const fs::path source = fs::path("tests/golden/models") / name;
    TempFolder folder;
    const fs::path result = folder.path() / "model.gguf";
    ASSERT_EQ(to_gguf(source, result, "F32").message(), "") << name;
    const auto before = Checkpoint::open(source), after = Checkpoint::open(result);
    ASSERT_TRUE(before && after) << name;
    const auto config = read_model_config(source), found = read_model_config(result);
    ASSERT_TRUE(config && found) << name;
    for (const char* field : {"hidden_size", "intermediate_size", "num_hidden_layers",
                              "num_attention_heads", "num_key_value_heads", "vocab_size"})
      EXPECT_EQ(found->integer(field).value(), config->integer(field).value()) << name << field;
    const bool tied = config->boolean_or("tie_word_embeddings", false).value();
    EXPECT_EQ(found->boolean("tie_word_embeddings").value(), tied) << name;
    for (const CheckpointTensor& tensor : before->tensors()) {
      if (tied && tensor.name == "lm_head.weight") continue;
      EXPECT_EQ(values_of(*after, tensor.name), values_of(*before, tensor.name))
          << name << " " << tensor.name;
    }
  }
}

TEST(Transcode, MatricesAreQuantisedAndVectorsAreNot) {
  TempFolder folder;
  write_model(folder);
  const fs::path result = folder.path() / "model.gguf", again = folder.path() / "again.gguf";
  ASSERT_EQ(to_gguf(folder.path(), result, "F32").message(), "");
  std::vector<GgufFile> files;
  files.push_back(GgufFile::open(result).value());
  const GgufTypes types{find_block_encoder("Q4_1"), find_block_encoder("Q8_0")};
  const auto plan = plan_gguf(files, types);
  ASSERT_TRUE(plan);
  int64_t reported = 0;
  ASSERT_TRUE(write_gguf(again, plan->metadata, plan->tensors, [&](int64_t done) {
                reported = done;
              }).ok());
  EXPECT_EQ(reported, total_bytes(plan->tensors));
  const auto file = GgufFile::open(again);
  ASSERT_TRUE(file) << file.error().message();
  for (const GgufTensor& tensor : file->tensors()) {
    const bool is_vocabulary = tensor.name == "token_embd.weight" || tensor.name == "output.weight";
    const std::string_view expected = tensor.shape.size() < 2 ? "F32"
                                      : is_vocabulary         ? "Q8_0"
                                                              : "Q4_1";
    EXPECT_EQ(tensor.type->name, expected) << tensor.name;
  }
  EXPECT_EQ(file->integer("general.file_type"), 3);
  EXPECT_EQ(file->integer("general.quantization_version"), 2);
  EXPECT_EQ(file->entries().size(), files[0].entries().size() + 1);
  // The elements are those of the blocks of the source's.
  const auto before = Checkpoint::open(folder.path()), after = Checkpoint::open(again);
  const std::string name = "model.layers.0.mlp.up_proj.weight";
  EXPECT_EQ(values_of(*after, name),
            decoded(*find_block_encoder("Q4_1"), values_of(*before, name)));
  // What has its type already is copied as it is.
  files[0] = GgufFile::open(again).value();
  const auto same = plan_gguf(files, types);
  ASSERT_TRUE(write_gguf(result, same->metadata, same->tensors, {}).ok());
  const auto read = [](const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(read(result), read(again));
}

TEST(Transcode, AGgufBecomesAFolder) {
  TempFolder folder, target;
  write_model(folder, R"(,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,)"
                      R"("high_freq_factor":4.0,"original_max_position_embeddings":64})");
  const fs::path result = folder.path() / "model.gguf";
  ASSERT_EQ(to_gguf(folder.path(), result, "F32").message(), "");
  const auto checkpoint = Checkpoint::open(result);
  const auto tensors = plan_safetensors(*checkpoint, *find_block_encoder("BF16"));
  ASSERT_TRUE(tensors);
  ASSERT_TRUE(write_safetensors(target.path(), *tensors, 1 << 30, {}).ok());
  const auto file = GgufFile::open(result);
  target.write("config.json", gguf_config_text(*file, "bfloat16").value());
  const auto config = read_model_config(target.path());
  EXPECT_EQ(config->string("torch_dtype").value(), "bfloat16");
  EXPECT_EQ(config->object("rope_scaling")->integer("original_max_position_embeddings").value(),
            64);
  const auto before = Checkpoint::open(folder.path()), after = Checkpoint::open(target.path());
  ASSERT_TRUE(after) << after.error().message();
  for (const Named& each : tensor_names()) {
    std::vector<float> expected = values_of(*before, each.name);
    for (float& x : expected) x = to_float(to_bfloat16(x));
    EXPECT_EQ(values_of(*after, each.name), expected) << each.name;
  }
}

TEST(Transcode, WhatAGgufCannotSayIsRefused) {
  const auto refusal = [](std::string_view more, std::string_view extra = "") {
    TempFolder folder;
    write_model(folder, more, extra);
    return to_gguf(folder.path(), folder.path() / "model.gguf", "F16").message();
  };
  EXPECT_EQ(refusal(""), "");
  EXPECT_THAT(refusal(R"(,"hidden_act":"gelu")"), HasSubstr("'hidden_act': gelu"));
  EXPECT_THAT(refusal(R"(,"sliding_window":64)"), HasSubstr("'sliding_window'"));
  EXPECT_THAT(refusal(R"(,"rope_scaling":{"rope_type":"longrope","factor":2})"),
              HasSubstr("longrope"));
  EXPECT_THAT(refusal(R"(,"rope_scaling":{"rope_type":"yarn","factor":2,"beta_fast":9})"),
              HasSubstr("'beta_fast'"));
  EXPECT_THAT(refusal(R"(,"architectures":["GPT2LMHeadModel"])"),
              HasSubstr("GPT2LMHeadModel is not written"));
  EXPECT_THAT(refusal("", "model.layers.0.strange.weight"),
              HasSubstr("no place for the tensor 'model.layers.0.strange.weight'"));
}

// ---- results that are there whole or not at all ----

TEST(StagedOutput, NothingIsThereUntilItIsCommitted) {
  TempFolder folder;
  const fs::path place = folder.path() / "model.gguf";
  {
    auto output = StagedOutput::create(place, false);
    ASSERT_TRUE(output);
    EXPECT_EQ(output->path().extension(), ".gguf");
    std::ofstream(output->path()) << "half";
    EXPECT_FALSE(fs::exists(place));
  }
  EXPECT_TRUE(fs::is_empty(folder.path())) << "what was not committed is gone";
  auto output = StagedOutput::create(place, false);
  std::ofstream(output->path()) << "whole";
  ASSERT_TRUE(output->commit().ok());
  EXPECT_TRUE(fs::exists(place));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(StagedOutput, WhatIsThereIsReplacedOnlyWhenAsked) {
  TempFolder folder;
  const fs::path place = folder.path() / "model";
  fs::create_directory(place);
  folder.write("model/old", "1");
  const auto refused = StagedOutput::create(place, false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kAlreadyExists);
  EXPECT_THAT(refused.error().message(), HasSubstr("--force"));
  auto output = StagedOutput::create(place, true);
  fs::create_directory(output->path());
  std::ofstream(output->path() / "new") << "2";
  ASSERT_TRUE(output->commit().ok());
  EXPECT_TRUE(fs::exists(place / "new"));
  EXPECT_FALSE(fs::exists(place / "old"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
  EXPECT_EQ(StagedOutput::create(folder.path() / "none" / "x", false).error().code(),
            StatusCode::kNotFound);
}

TEST(StagedOutput, AFullDiskIsReportedWithItsReason) {
  TempFolder folder;
  const auto output = StagedOutput::create(folder.path() / "m", false);
  EXPECT_TRUE(output->require_space(1).ok());
  EXPECT_THAT(output->require_space(int64_t{1} << 60).message(), HasSubstr("free there"));
  auto full = OutputFile::create("/dev/full");
  ASSERT_TRUE(full);
  const Status status = full->write("x");
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("No space left"));
  EXPECT_THAT(OutputFile::create("/nowhere/x").error().message(), HasSubstr("cannot be made"));
}

}  // namespace
}  // namespace espalier
