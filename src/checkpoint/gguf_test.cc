// GGUF files: what is read, what is refused and how, and block values to the bit
// (tests/compat/checkpoint/make_block_goldens.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/quantized_tensor.h"
#include "checkpoint/temp_folder.h"

namespace espalier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string floats(size_t count, float first = 0) {
  std::string bytes(count * sizeof(float), '\0');
  for (size_t i = 0; i < count; ++i) {
    const float value = first + static_cast<float>(i);
    std::memcpy(bytes.data() + i * sizeof(float), &value, sizeof(float));
  }
  return bytes;
}

GgufWriter small_llama() {
  GgufWriter writer;
  writer.string("general.architecture", "llama")
      .integer("llama.embedding_length", 8)
      .integer("llama.feed_forward_length", 16)
      .integer("llama.block_count", 1)
      .integer("llama.attention.head_count", 2)
      .integer("llama.attention.head_count_kv", 1)
      .integer("llama.context_length", 64)
      .real("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .real("llama.rope.freq_base", 5000.0f)
      .integer("tokenizer.ggml.eos_token_id", 2)
      .strings("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "a"})
      .string("tokenizer.ggml.model", "llama")
      .array<float>("tokenizer.ggml.scores", 6, {0, 0, 0, -1})
      .array<int32_t>("tokenizer.ggml.token_type", 5, {2, 3, 3, 1})
      .boolean("tokenizer.ggml.add_bos_token", true)
      .tensor("token_embd.weight", 0, {4, 8}, floats(32))
      .tensor("output_norm.weight", 0, {8}, floats(8))
      .tensor("blk.0.attn_q.weight", 0, {8, 8}, floats(64));
  return writer;
}

std::string message_of(const TempFolder& folder, const std::string& bytes) {
  const auto file = GgufFile::open(folder.write("x.gguf", bytes));
  return file ? std::string("accepted") : file.error().message();
}

TEST(Gguf, MetadataAndTensorsInOurTerms) {
  TempFolder folder;
  const auto path = folder.write("m.gguf", small_llama().bytes());
  const JsonObject config = read_model_config(path).value();
  EXPECT_EQ(config.strings("architectures").value(), std::vector<std::string>{"LlamaForCausalLM"});
  EXPECT_EQ(config.integer("hidden_size").value(), 8);
  EXPECT_EQ(config.integer("num_key_value_heads").value(), 1);
  EXPECT_EQ(config.integer("vocab_size").value(), 4);
  EXPECT_EQ(config.number("rope_theta").value(), 5000.0);
  EXPECT_TRUE(config.boolean("tie_word_embeddings").value());
  EXPECT_EQ(config.integers("eos_token_id").value(), std::vector<int64_t>{2});
  const Checkpoint checkpoint = Checkpoint::open(path).value();
  const int64_t shape[] = {4, 8};
  const CheckpointTensor* embedding =
      checkpoint.require("model.embed_tokens.weight", shape).value();
  std::vector<float> row(8);
  copy_as_float(*embedding, 8, row);
  EXPECT_THAT(row, ElementsAre(8, 9, 10, 11, 12, 13, 14, 15));
  // Heads of 4: conversion put rows 0 1 2 3 as 0 2 1 3.
  const CheckpointTensor* q = checkpoint.find("model.layers.0.self_attn.q_proj.weight");
  std::vector<float> first(64);
  copy_as_float(*q, 0, first);
  EXPECT_EQ(first[8 * 1], 8 * 2);
  EXPECT_EQ(first[8 * 2], 8 * 1);
  EXPECT_EQ(first[8 * 5], 8 * 6);
  const auto vocabulary = read_stored_vocabulary(path).value();
  ASSERT_TRUE(vocabulary.has_value());
  EXPECT_EQ(vocabulary->tokens[3], "a");
  EXPECT_EQ(vocabulary->types, (std::vector<int32_t>{2, 3, 3, 1}));
  EXPECT_EQ(vocabulary->eos_id, 2);
  EXPECT_EQ(vocabulary->add_bos, true);
  EXPECT_FALSE(read_stored_vocabulary(folder.path() / "none").value().has_value());
}

TEST(Gguf, AFolderWithAGgufAndASplitModel) {
  TempFolder folder;
  GgufWriter first = small_llama();
  folder.write("m-00001-of-00002.gguf", first.bytes());
  EXPECT_THAT(Checkpoint::open(folder.path()).error().message(), HasSubstr("m-00002-of-00002"));
  GgufWriter second;
  second.tensor("blk.0.ffn_up.weight", 0, {16, 8}, floats(128));
  folder.write("m-00002-of-00002.gguf", second.bytes());
  const Checkpoint checkpoint = Checkpoint::open(folder.path()).value();
  EXPECT_EQ(checkpoint.tensors().size(), 4u);
  EXPECT_NE(checkpoint.find("model.layers.0.mlp.up_proj.weight"), nullptr);
}

// Names that mean something in one architecture alone, as DeepSeek's latents, are names elsewhere.
TEST(Gguf, AFileOfNoKnownArchitectureKeepsItsNames) {
  TempFolder folder;
  GgufWriter writer;
  writer.string("general.architecture", "unheard-of")
      .tensor("blk.0.attn_k_b.weight", 0, {2, 2, 2}, floats(8))
      .tensor("blk.0.attn_v_b.weight", 0, {2, 2, 2}, floats(8));
  std::vector<GgufFile> files;
  files.push_back(GgufFile::open(folder.write("x.gguf", writer.bytes())).value());
  const auto tensors = gguf_tensors(files);
  ASSERT_TRUE(tensors) << tensors.error().to_string();
  ASSERT_EQ(tensors->size(), 2u);
  EXPECT_EQ((*tensors)[0].name, "blk.0.attn_k_b.weight");
  EXPECT_EQ((*tensors)[1].name, "blk.0.attn_v_b.weight");
}

TEST(Gguf, RotationFactorsBecomeTheScalingThatMakesThem) {
  TempFolder folder;
  // Pairs of wavelength 6.3 (below 32 / 4), above 32 / 1, and of theta 5000, two pairs a head.
  std::string factors = floats(1, 1) + floats(1, 8);
  GgufWriter writer = small_llama();
  writer.tensor("rope_freqs.weight", 0, {2}, factors);
  const auto path = folder.write("m.gguf", writer.bytes());
  const JsonObject config = read_model_config(path).value();
  const JsonObject scaling = config.object("rope_scaling").value();
  EXPECT_EQ(scaling.string("rope_type").value(), "llama3");
  EXPECT_EQ(scaling.number("factor").value(), 8.0);
  GgufWriter odd = small_llama();
  odd.tensor("rope_freqs.weight", 0, {2}, floats(1, 3) + floats(1, 8));
  EXPECT_THAT(read_model_config(folder.write("o.gguf", odd.bytes())).error().message(),
              HasSubstr("rope_freqs.weight"));
}

TEST(Gguf, ErrorsNameWhatIsWrong) {
  TempFolder folder;
  const auto with = [](auto&& change) {
    GgufWriter writer = small_llama();
    change(writer);
    return writer.bytes();
  };
  EXPECT_EQ(message_of(folder, small_llama().bytes()), "accepted");
  EXPECT_THAT(message_of(folder, "nothing of the kind"), HasSubstr("no GGUF"));
  EXPECT_THAT(message_of(folder, ""), HasSubstr("no GGUF"));
  EXPECT_THAT(message_of(folder, GgufWriter(1).bytes()), HasSubstr("version 1"));
  EXPECT_THAT(message_of(folder, with([](GgufWriter& w) { w.integer("llama.block_count", 2); })),
              HasSubstr("'llama.block_count' stands twice"));
  EXPECT_THAT(message_of(folder, with([](GgufWriter& w) { w.raw("k", 99, ""); })),
              HasSubstr("'k' is of the unknown type 99"));
  EXPECT_THAT(message_of(folder, with([](GgufWriter& w) { w.integer("general.alignment", 7); })),
              HasSubstr("alignment"));
  EXPECT_THAT(message_of(folder, with([](GgufWriter& w) { w.tensor("t", 5, {4}, floats(4)); })),
              HasSubstr("tensor 't': its type 5"));
  EXPECT_THAT(message_of(folder, with([](GgufWriter& w) { w.tensor("t", 2, {33}, "x"); })),
              HasSubstr("tensor 't': its rows of 33 are no whole blocks"));
  EXPECT_THAT(message_of(folder, with([](GgufWriter& w) {
                           w.tensor("t", 0, {int64_t{1} << 40, int64_t{1} << 40}, "");
                         })),
              HasSubstr("tensor 't': its shape"));
  EXPECT_THAT(message_of(folder, with([](GgufWriter& w) { w.tensor("t", 0, {1000}, "x"); })),
              HasSubstr("tensor 't' (4000 bytes"));
  EXPECT_THAT(message_of(folder, with([](GgufWriter& w) { w.tensor_at("t", 0, {4}, 0, ""); })),
              HasSubstr("'t' at byte 0 of the data overlaps"));
  EXPECT_THAT(message_of(folder, with([](GgufWriter& w) { w.tensor_at("t", 0, {4}, 4, ""); })),
              HasSubstr("not aligned"));
  EXPECT_THAT(message_of(folder, with([](GgufWriter& w) {
                           w.tensor("output_norm.weight", 0, {1}, floats(1));
                         })),
              HasSubstr("stands twice"));
  const std::string good = small_llama().bytes();
  EXPECT_THAT(message_of(folder, good.substr(0, good.size() - 8)), HasSubstr("truncated"));
}

// A file that is cut or changed anywhere opens and can be read whole, or fails with a message.
TEST(Gguf, BrokenFilesAreRefusedOrHarmless) {
  constexpr uint64_t kSeed = 21;
  Rng rng(kSeed);
  TempFolder folder;
  const std::string good = small_llama().bytes();
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = good;
    for (uint64_t n = rng.below(3) + 1; n > 0; --n) {
      bytes[rng.below(900)] = static_cast<char>(rng.below(4) == 0 ? 255 : rng.below(256));
    }
    if (rng.below(4) == 0) bytes.resize(rng.below(bytes.size()));
    const auto path = folder.write("m.gguf", bytes);
    (void)read_model_config(path);
    (void)read_stored_vocabulary(path);
    const auto checkpoint = Checkpoint::open(path);
    if (!checkpoint) {
      ++refused;
      EXPECT_FALSE(checkpoint.error().message().empty());
      continue;
    }
    for (const CheckpointTensor& tensor : checkpoint->tensors()) {
      if (!tensor.readable()) continue;
      std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
      copy_as_float(tensor, 0, values);
    }
  }
  EXPECT_GT(refused, 1000) << "seed " << kSeed;
}

TEST(BlockTypes, ValuesAreTheReferencesToTheBit) {
  const SafetensorsFile goldens =
      SafetensorsFile::open("tests/golden/checkpoint/blocks.safetensors").value();
  const auto find = [&](const std::string& name) -> const CheckpointTensor* {
    for (const CheckpointTensor& tensor : goldens.tensors()) {
      if (tensor.name == name) return &tensor;
    }
    return nullptr;
  };
  int compared = 0;
  for (const BlockType& type : block_types()) {
    const CheckpointTensor* blocks = find(std::string(type.name) + ".blocks");
    const CheckpointTensor* values = find(std::string(type.name) + ".values");
    if (blocks == nullptr) continue;
    ASSERT_NE(type.dequantize, nullptr) << type.name;
    GgufTensor tensor{
        .name = type.name, .type = &type, .shape = values->shape, .bytes = blocks->bytes};
    const auto reader = make_block_reader(tensor, {});
    std::vector<float> expected(static_cast<size_t>(values->num_elements())), ours(expected.size());
    copy_as_float(*values, 0, expected);
    reader->read(0, ours);
    EXPECT_EQ(std::memcmp(ours.data(), expected.data(), ours.size() * sizeof(float)), 0)
        << type.name;
    // Any part of it is the same.
    std::vector<float> part(ours.size() / 2);
    reader->read(7, part);
    EXPECT_EQ(std::memcmp(part.data(), expected.data() + 7, part.size() * sizeof(float)), 0)
        << type.name;
    ++compared;
  }
  EXPECT_EQ(compared, 15);
}

}  // namespace
}  // namespace espalier
