// Models whose matrices stay quantised, beside the same models with their weights as numbers.
#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/temp_folder.h"
#include "models/golden.h"
#include "models/model_plan.h"
#include "models/quantized_file.h"
#include "models/weight_reader.h"

namespace espalier {
namespace {

using quantized::difference;
using quantized::Formats;
using quantized::gguf_of;
using quantized::id_of;
using quantized::Logits;
using quantized::random_blocks;

Logits run(Model& model, int32_t chunk) { return quantized::run(model, KvType::kFloat32, chunk); }

class QuantizedFile : public testing::TestWithParam<Formats> {};

TEST_P(QuantizedFile, GivesTheLogitsOfItsNumbers) {
  TempFolder folder;
  const auto path = folder.write("model.gguf", gguf_of(GetParam(), 1));
  const auto other_path = folder.write("other.gguf", gguf_of(GetParam(), 2));
  WorkPool pool(2);
  auto kept = load_model({.path = path, .pool = &pool});
  ASSERT_TRUE(kept) << kept.error().to_string();
  auto numbers = load_model({.path = path, .dtype = "float32", .pool = &pool});
  ASSERT_TRUE(numbers) << numbers.error().to_string();
  auto other = load_model({.path = other_path, .pool = &pool});
  ASSERT_TRUE(other);
  const Logits logits = run(**kept, 32), expected = run(**numbers, 32);
  // An activation's step is a 127th of its block's largest: about 0.6 % of its deviation, each of
  // eight GEMMs in a row adds as much again.
  EXPECT_LT(difference(logits, expected), 0.03);
  EXPECT_GT(difference(logits, expected), 1e-4) << "they were not quantised at all";
  EXPECT_GT(difference(run(**other, 32), expected), 0.5);
  for (const int32_t chunk : {1, 5, 18}) EXPECT_EQ(run(**kept, chunk), logits) << chunk;

  const int64_t bytes = (*kept)->info().weight_bytes;
  EXPECT_LT(bytes, (*numbers)->info().weight_bytes / 3);
  auto memory = read_weight_memory({.path = path}, ProgramKind::kCpu);
  ASSERT_TRUE(memory);
  int64_t sum = 0;
  for (const auto& [type, part] : *memory) sum += part;
  EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(bytes), 0.02 * bytes);
  EXPECT_TRUE(memory->contains(std::string(block_format_info(GetParam().down).name)));
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedFile, testing::ValuesIn(quantized::files()),
                         [](const auto& one) { return one.param.name; });

// The packed blocks stand for the numbers that the checkpoint reads from them, to the bit.
TEST(QuantizedWeights, ArePackedWithoutLoss) {
  Rng rng(11);
  for (const BlockFormatInfo& info : kBlockFormats) {
    const int64_t rows = 50, in = 512;
    GgufWriter writer;
    writer.string("general.architecture", "qwen3");
    writer.tensor("x.weight", id_of(info.format), {rows, in},
                  random_blocks(rng, info.format, rows * in));
    TempFolder folder;
    const Checkpoint checkpoint = Checkpoint::open(folder.write("m.gguf", writer.bytes())).value();
    CheckpointSource source(checkpoint, DecoderSpec{});
    ASSERT_EQ(source.stored_format("x.weight"), info.format);
    WorkPool pool(2);
    auto backend = kernels::CpuBackend::create(pool);
    ASSERT_TRUE(backend);
    WeightTypes types;
    types.keep_blocks = true;
    WeightReader reader(**backend, source, types);
    kernels::PackedMatrix packed;
    const MatrixLayout layout{.blocks = {{"x.weight", rows}}, .in_features = in};
    const Status status = reader.matrix(layout, packed);
    ASSERT_TRUE(status.ok()) << status.to_string();
    ASSERT_TRUE(packed.quantized());
    std::vector<int32_t> ids(static_cast<size_t>(rows));
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<float> numbers(static_cast<size_t>(rows * in)), expected(numbers.size());
    kernels::gather_packed_rows(**backend, packed, ids, numbers.data(), in);
    copy_as_float(*checkpoint.find("x.weight"), 0, expected);
    ASSERT_EQ(numbers, expected) << info.name;
  }
}

// A rank's part of the rows keeps its blocks, in the order in which the file has them or another.
TEST(QuantizedWeights, ShardsOfRowsStayQuantised) {
  TempFolder folder;
  const Checkpoint checkpoint =
      Checkpoint::open(folder.write("m.gguf", gguf_of(quantized::files()[3], 13))).value();
  WorkPool pool(2);
  auto backend = kernels::CpuBackend::create(pool);
  ASSERT_TRUE(backend);
  CheckpointSource source(checkpoint, DecoderSpec{});
  WeightTypes types;
  types.keep_blocks = true;
  WeightReader reader(**backend, source, types);
  for (const char* part : {"self_attn.q_proj", "mlp.up_proj"}) {
    const std::string name = "model.layers.0." + std::string(part) + ".weight";
    const CheckpointTensor* tensor = checkpoint.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    const int64_t rows = tensor->shape[0] / 2, in = tensor->shape[1];
    for (const int32_t rank : {0, 1}) {
      const MatrixLayout layout{
          .blocks = {{name, 2 * rows}}, .in_features = in, .shard = {Shard::Axis::kRows, rank, 2}};
      kernels::PackedMatrix packed;
      const Status status = reader.matrix(layout, packed);
      ASSERT_TRUE(status.ok()) << status.to_string();
      ASSERT_TRUE(packed.quantized());
      std::vector<int32_t> ids(static_cast<size_t>(rows));
      std::iota(ids.begin(), ids.end(), 0);
      std::vector<float> numbers(static_cast<size_t>(rows * in)), expected(numbers.size());
      kernels::gather_packed_rows(**backend, packed, ids, numbers.data(), in);
      copy_as_float(*tensor, rank * rows * in, expected);
      EXPECT_EQ(numbers, expected) << name << " " << rank;
    }
  }
}

TEST(QuantizedWeights, AreMadeAtLoad) {
  struct Case {
    const char* quantization;
    float error;  // of the logits' spread
  };
  for (const char* name : {"llama_tied_llama3", "qwen3_head_dim"}) {
    const golden::Golden golden = golden::read(name);
    WorkPool pool(2);
    int64_t bytes_before = 0;
    for (const auto& [quantization, error] :
         {Case{"bfloat16", 0.02f}, Case{"q8_0", 0.05f}, Case{"q4_k", 0.5f}}) {
      auto model = load_model({.path = golden.folder, .dtype = quantization, .pool = &pool});
      ASSERT_TRUE(model) << model.error().to_string();
      EXPECT_LT(golden::max_error(**model, golden, KvType::kFloat32), error)
          << name << " " << quantization;
      if (bytes_before > 0 && std::string_view(quantization) == "q8_0") {
        EXPECT_LT((*model)->info().weight_bytes, bytes_before);
      }
      bytes_before = (*model)->info().weight_bytes;
    }
  }
  EXPECT_FALSE(load_model({.path = golden::read("llama_tied_llama3").folder, .dtype = "q3"}));
}

// The layers' matrices take a byte a weight and a scale a row; embedding and head stay as they are.
TEST(QuantizedWeights, OnAGpuFp8HalvesTheLayers) {
  const golden::Golden golden = golden::read("llama_tied_llama3");
  const ModelLoadOptions options{.path = golden.folder};
  const auto plain = read_weight_memory(options, ProgramKind::kGpu);
  ASSERT_TRUE(plain) << plain.error().to_string();
  ModelLoadOptions rounded = options;
  rounded.dtype = "fp8";
  const auto memory = read_weight_memory(rounded, ProgramKind::kGpu);
  ASSERT_TRUE(memory) << memory.error().to_string();
  int64_t weights = 0, rows = 0;
  for (const LayerLayout& layer : weight_layout(golden.spec).layers) {
    for (const MatrixLayout* matrix :
         {&layer.qkv, &layer.attention_output, &layer.mlp.gate_up, &layer.mlp.down}) {
      weights += matrix->out_features() * matrix->in_features;
      rows += matrix->out_features();
    }
  }
  EXPECT_EQ(memory->at("F8_E4M3"), weights + 4 * rows);
  EXPECT_EQ(memory->at("BF16"), plain->at("BF16") - 2 * weights);
  EXPECT_FALSE(read_weight_memory(rounded, ProgramKind::kCpu));
  const auto on_cpu = load_model(rounded);
  ASSERT_FALSE(on_cpu);
  EXPECT_THAT(on_cpu.error().message(), testing::HasSubstr("fp8 need a GPU; on the CPU take q8_0"));
}

// Of a layer of experts too, with its shared expert; the router stays as it is.
TEST(QuantizedWeights, OnAGpuFp8HalvesTheExperts) {
  const golden::Golden golden = golden::read("glm4_moe");
  ModelLoadOptions rounded{.path = golden.folder};
  rounded.dtype = "fp8";
  const auto memory = read_weight_memory(rounded, ProgramKind::kGpu);
  ASSERT_TRUE(memory) << memory.error().to_string();
  int64_t weights = 0, rows = 0;
  const auto add = [&](const MatrixLayout& matrix) {
    weights += matrix.out_features() * matrix.in_features;
    rows += matrix.out_features();
  };
  for (const LayerLayout& layer : weight_layout(golden.spec).layers) {
    for (const MatrixLayout* matrix :
         {&layer.qkv, &layer.attention_output, &layer.mlp.gate_up, &layer.mlp.down}) {
      add(*matrix);
    }
    for (const MlpLayout& expert : layer.experts.experts) add(expert.gate_up), add(expert.down);
  }
  EXPECT_EQ(memory->at("F8_E4M3"), weights + 4 * rows);
}

// Experts that are stored in MXFP4 stay so on a GPU too, and others are rounded to it: 17 bytes for
// 32 weights.
TEST(QuantizedWeights, OnAGpuExpertsAreInMxfp4) {
  const golden::Golden stored = golden::read("gpt_oss_mxfp4");
  const auto memory = read_weight_memory({.path = stored.folder}, ProgramKind::kGpu);
  ASSERT_TRUE(memory) << memory.error().to_string();
  const LayerSpec& layer = stored.spec.layers[0];
  const int64_t weights = std::ssize(stored.spec.layers) * 3 * layer.experts->router.num_experts *
                          layer.experts->expert.intermediate_size * stored.spec.hidden_size;
  EXPECT_EQ(memory->at("MXFP4"), weights / 32 * 17);
  const auto numbers =
      read_weight_memory({.path = stored.folder, .dtype = "bfloat16"}, ProgramKind::kGpu);
  ASSERT_TRUE(numbers) << numbers.error().to_string();
  EXPECT_FALSE(numbers->contains("MXFP4"));
  EXPECT_EQ(numbers->at("BF16"), memory->at("BF16") + 2 * weights);

  const golden::Golden golden = golden::read("qwen3_moe");
  const ModelLoadOptions rounded{.path = golden.folder, .dtype = "mxfp4"};
  const auto of_rounded = read_weight_memory(rounded, ProgramKind::kGpu);
  ASSERT_TRUE(of_rounded) << of_rounded.error().to_string();
  int64_t experts = 0;
  for (const LayerLayout& of : weight_layout(golden.spec).layers) {
    for (const MlpLayout& expert : of.experts.experts) {
      for (const MatrixLayout* matrix : {&expert.gate_up, &expert.down}) {
        experts += matrix->out_features() * ((matrix->in_features + 31) / 32) * 17;
      }
    }
  }
  EXPECT_GT(experts, 0);
  EXPECT_EQ(of_rounded->at("MXFP4"), experts);
  const auto on_cpu = load_model(rounded);
  ASSERT_FALSE(on_cpu);
  EXPECT_THAT(on_cpu.error().message(), testing::HasSubstr("on the CPU take q4_k"));
}

TEST(QuantizedWeights, ATypeThatIsNotReadIsRefusedByTheTensorsName) {
  std::string bytes = gguf_of(quantized::files()[0], 1);
  // The id of Q8_0 behind the shape of blk.1.ffn_down becomes IQ1_S's; its blocks are larger.
  const std::string shape = {2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0};
  const size_t name = bytes.find("blk.1.ffn_down.weight");
  const size_t at = bytes.find(shape, name);
  ASSERT_NE(at, std::string::npos);
  bytes[at + shape.size()] = 19;
  TempFolder folder;
  const auto model = load_model({.path = folder.write("m.gguf", bytes)});
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message().find("model.layers.1.mlp.down_proj.weight"), std::string::npos)
      << model.error().message();
  EXPECT_NE(model.error().message().find("IQ1_S"), std::string::npos) << model.error().message();
}

}  // namespace
}  // namespace espalier
