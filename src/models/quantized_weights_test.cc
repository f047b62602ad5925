// Models whose matrices stay quantised, beside the same models with their weights as numbers.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/temp_folder.h"
#include "models/golden.h"
#include "models/model_plan.h"
#include "models/weight_reader.h"

namespace espalier {
namespace {

constexpr int64_t kHidden = 256, kFfn = 512, kVocab = 96, kHeads = 4, kKvHeads = 2;

using enum BlockFormat;

// The id that GGUF gives each format.
uint32_t id_of(BlockFormat format) {
  for (const BlockType& type : block_types()) {
    if (type.name == block_format_info(format).name) return type.id;
  }
  return ~0u;
}

// A float16 of a number between 2^-24 and 1, rounded down.
uint16_t half(float value) {
  const float size = std::abs(value);
  const uint16_t bits =
      size < 0x1p-14f ? static_cast<uint16_t>(size * 0x1p24f)
                      : static_cast<uint16_t>((std::bit_cast<uint32_t>(size) >> 13) - (112 << 10));
  return static_cast<uint16_t>(bits | (value < 0 ? 0x8000 : 0));
}

// Random blocks whose numbers have mean 0 and a deviation near 0.06: values are uniform, and so are
// the second level's scales.
std::string random_blocks(Rng& rng, BlockFormat format, int64_t count) {
  struct Scales {
    float d, minimum;
    size_t at;
  };
  constexpr Scales kScales[] = {{8e-4f, 0, 0},
                                {0.013f, 0, 0},
                                {0.014f, -7.5f * 0.014f, 0},
                                {0.0065f, 0, 0},
                                {0.0065f, -0.1f, 0},
                                {3e-4f, 7.5f * 3e-4f, 0},
                                {1.5e-4f, 15.5f * 1.5e-4f, 0},
                                {4.6e-5f, 0, 208},
                                {0.0043f, 0.0065f, 80},
                                {0.0014f, 0, 108},
                                {8.6e-4f, 0, 0},
                                {4.6e-5f, 0, 0},
                                {0, 0, 0}};
  const BlockFormatInfo& info = block_format_info(format);
  const Scales& scales = kScales[static_cast<size_t>(format)];
  std::string bytes(static_cast<size_t>(count / info.elements) * info.bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(rng.below(256));
  for (size_t at = 0; format == kMxfp4 && at < bytes.size(); at += info.bytes) {
    bytes[at] = 121;  // 2^-7, of values doubled
  }
  for (size_t at = scales.at; format != kMxfp4 && at < bytes.size(); at += info.bytes) {
    const uint16_t d = half(scales.d), minimum = half(scales.minimum);
    std::memcpy(bytes.data() + at, &d, 2);
    if (scales.minimum != 0) std::memcpy(bytes.data() + at + 2, &minimum, 2);
  }
  return bytes;
}

// What each matrix of a small Llama is stored in.
struct Formats {
  std::string name;
  BlockFormat embedding, q_k, v, output, gate_up, down;
};
const Formats kFiles[] = {{"Q8_0", kQ8_0, kQ8_0, kQ8_0, kQ8_0, kQ8_0, kQ8_0},
                          {"Q4_0", kQ6K, kQ4_0, kQ4_0, kQ4_0, kQ4_0, kQ4_1},
                          {"Q5", kQ6K, kQ5_0, kQ5_1, kQ5_0, kQ5_1, kQ5_0},
                          {"Q4_K_M", kQ6K, kQ4K, kQ6K, kQ4K, kQ4K, kQ6K},
                          {"Q5_K_M", kQ6K, kQ5K, kQ6K, kQ5K, kQ5K, kQ6K},
                          {"Q2_K", kQ6K, kQ2K, kQ3K, kQ3K, kQ2K, kQ3K},
                          {"IQ4", kQ6K, kIq4Xs, kIq4Nl, kIq4Xs, kIq4Nl, kIq4Xs},
                          {"MXFP4", kQ8_0, kMxfp4, kQ8_0, kMxfp4, kMxfp4, kMxfp4}};

std::string gguf_of(const Formats& formats, uint64_t seed) {
  Rng rng(seed);
  GgufWriter writer;
  writer.string("general.architecture", "llama")
      .integer("llama.embedding_length", kHidden)
      .integer("llama.feed_forward_length", kFfn)
      .integer("llama.block_count", 2)
      .integer("llama.attention.head_count", kHeads)
      .integer("llama.attention.head_count_kv", kKvHeads)
      .integer("llama.context_length", 128)
      .real("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .real("llama.rope.freq_base", 10000);
  const auto matrix = [&](const std::string& name, BlockFormat format, int64_t rows, int64_t in) {
    writer.tensor(name + ".weight", id_of(format), {rows, in},
                  random_blocks(rng, format, rows * in));
  };
  const auto norm = [&](const std::string& name) {
    std::vector<float> values(kHidden);
    for (float& value : values) value = static_cast<float>(1 + 0.1 * rng.normal());
    writer.tensor(name + ".weight", 0, {kHidden},
                  {reinterpret_cast<const char*>(values.data()), kHidden * sizeof(float)});
  };
  matrix("token_embd", formats.embedding, kVocab, kHidden);
  norm("output_norm");
  for (int layer = 0; layer < 2; ++layer) {
    const std::string at = "blk." + std::to_string(layer) + ".";
    norm(at + "attn_norm");
    norm(at + "ffn_norm");
    matrix(at + "attn_q", formats.q_k, kHidden, kHidden);
    matrix(at + "attn_k", formats.q_k, kHidden / kHeads * kKvHeads, kHidden);
    matrix(at + "attn_v", formats.v, kHidden / kHeads * kKvHeads, kHidden);
    matrix(at + "attn_output", formats.output, kHidden, kHidden);
    matrix(at + "ffn_gate", formats.gate_up, kFfn, kHidden);
    matrix(at + "ffn_up", formats.gate_up, kFfn, kHidden);
    matrix(at + "ffn_down", formats.down, kHidden, kFfn);
  }
  return writer.bytes();
}

std::vector<std::vector<TokenId>> prompts() {
  Rng rng(5);
  std::vector<std::vector<TokenId>> out;
  for (const int length : {21, 3}) {
    std::vector<TokenId>& tokens = out.emplace_back();
    for (int i = 0; i < length; ++i) tokens.push_back(static_cast<TokenId>(rng.below(kVocab)));
  }
  return out;
}

using Logits = std::vector<std::vector<float>>;

Logits run(Model& model, int32_t chunk) {
  return golden::run_all(model, prompts(), KvType::kFloat32, 16, chunk, true);
}

// The root mean square of the differences, in deviations of the expected logits.
double difference(const Logits& a, const Logits& expected) {
  double squares = 0, sum = 0, of_differences = 0, count = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(a[i].size(), expected[i].size());
    for (size_t j = 0; j < expected[i].size(); ++j) {
      of_differences += std::pow(a[i][j] - static_cast<double>(expected[i][j]), 2);
      squares += std::pow(expected[i][j], 2);
      sum += expected[i][j];
      ++count;
    }
  }
  return std::sqrt(of_differences / (squares - sum * sum / count));
}

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
  auto memory = read_weight_memory({.path = path});
  ASSERT_TRUE(memory);
  int64_t sum = 0;
  for (const auto& [type, part] : *memory) sum += part;
  EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(bytes), 0.02 * bytes);
  EXPECT_TRUE(memory->contains(std::string(block_format_info(GetParam().down).name)));
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedFile, testing::ValuesIn(kFiles),
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

TEST(QuantizedWeights, ATypeThatIsNotReadIsRefusedByTheTensorsName) {
  std::string bytes = gguf_of(kFiles[0], 1);
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
