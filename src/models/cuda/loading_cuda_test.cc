// Quantised checkpoints and shards on the GPU.
#include <gtest/gtest.h>

#include <fmt/ranges.h>

#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/int4_checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/temp_folder.h"
#include "kernels/linear/cuda.h"
#include "models/cuda/test_model.h"
#include "models/cuda/weights.h"
#include "models/golden.h"
#include "models/model_plan.h"
#include "models/quantized_file.h"
#include "models/weight_layout.h"
#include "tensor/cuda/testing.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using quantized::Formats;

class QuantizedFileCuda : public testing::TestWithParam<Formats> {
 protected:
  void SetUp() override { ESPALIER_REQUIRE_DEVICE(); }
};

// Blocks become numbers while they are loaded: the logits are those of the CPU with such numbers.
TEST_P(QuantizedFileCuda, HasTheLogitsOfItsNumbers) {
  TempFolder folder;
  const auto path = folder.write("model.gguf", quantized::gguf_of(GetParam(), 1));
  WorkPool pool(2);
  const auto numbers = load_model({.path = path, .dtype = "float32", .pool = &pool});
  ASSERT_TRUE(numbers) << numbers.error().to_string();
  const auto expected = quantized::run(**numbers, KvType::kFloat32, 32);
  for (const auto& [dtype, tolerance] : {std::pair{"float32", 1e-3}, {"bfloat16", 0.05}}) {
    auto decoder = CudaDecoder::load({.path = path, .dtype = dtype});
    ASSERT_TRUE(decoder) << decoder.error().to_string();
    const KvType type = (*decoder)->kv_type();
    CudaTestModel model(std::move(*decoder));
    EXPECT_LT(quantized::difference(quantized::run(model, type, 32), expected), tolerance) << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedFileCuda, testing::ValuesIn(quantized::files()),
                         [](const auto& one) { return one.param.name; });

std::vector<float> read_device(const CudaWeight& weight, int64_t count,
                               const cuda::Stream& stream) {
  std::vector<float> out(static_cast<size_t>(count));
  EXPECT_TRUE(cuda::copy_to_host(out.data(), weight.data, 4 * count, stream).ok());
  EXPECT_TRUE(stream.synchronize().ok());
  return out;
}

// Both ranks' parts of qkv (by rows) and of the output (by columns), in float32.
void expect_shards(const ModelLoadOptions& options, const std::vector<float>& qkv,
                   const std::vector<float>& output) {
  const auto plan = plan_model(options);
  ASSERT_TRUE(plan) << plan.error().to_string();
  const auto stream = cuda::Stream::create();
  ASSERT_TRUE(stream);
  for (const int32_t rank : {0, 1}) {
    WeightLayout layout = weight_layout(plan->spec);
    MatrixLayout &rows = layout.layers[0].qkv, &columns = layout.layers[0].attention_output;
    rows.shard = {Shard::Axis::kRows, rank, 2};
    columns.shard = {Shard::Axis::kColumns, rank, 2};
    auto pending = load_cuda_weights(plan->spec, layout, DType::kFloat32, options);
    ASSERT_TRUE(pending) << pending.error().to_string();
    ASSERT_TRUE(pending->loader->finish().ok());
    const CudaWeight& of_rows = pending->weights.at({WeightKind::kQkv, 0});
    const CudaWeight& of_columns = pending->weights.at({WeightKind::kAttentionOutput, 0});
    EXPECT_EQ(of_rows.in_features, rows.in_features);
    EXPECT_EQ(of_columns.in_features, columns.in_features / 2);
    std::vector<float> expected;
    int64_t before = 0;
    for (const WeightBlock& block : rows.blocks) {
      const auto first = qkv.begin() + (before + rank * block.rows / 2) * rows.in_features;
      expected.insert(expected.end(), first, first + block.rows / 2 * rows.in_features);
      before += block.rows;
    }
    EXPECT_EQ(read_device(of_rows, std::ssize(expected), *stream), expected) << rank;
    expected.clear();
    for (int64_t row = 0; row < columns.out_features(); ++row) {
      const auto first =
          output.begin() + row * columns.in_features + rank * columns.in_features / 2;
      expected.insert(expected.end(), first, first + columns.in_features / 2);
    }
    EXPECT_EQ(read_device(of_columns, std::ssize(expected), *stream), expected) << rank;
  }
}

// The whole matrices, as one device has them.
void expect_shards_of_whole(const ModelLoadOptions& options) {
  const auto plan = plan_model(options);
  ASSERT_TRUE(plan) << plan.error().to_string();
  const WeightLayout layout = weight_layout(plan->spec);
  auto whole = load_cuda_weights(plan->spec, layout, DType::kFloat32, options);
  ASSERT_TRUE(whole) << whole.error().to_string();
  ASSERT_TRUE(whole->loader->finish().ok());
  const auto stream = cuda::Stream::create();
  const auto elements = [](const MatrixLayout& m) { return m.out_features() * m.in_features; };
  const LayerLayout& layer = layout.layers[0];
  expect_shards(options,
                read_device(whole->weights.at({WeightKind::kQkv, 0}), elements(layer.qkv), *stream),
                read_device(whole->weights.at({WeightKind::kAttentionOutput, 0}),
                            elements(layer.attention_output), *stream));
}

TEST(ShardCuda, OfASafetensorsModel) {
  ESPALIER_REQUIRE_DEVICE();
  expect_shards_of_whole({.path = golden::read("qwen3_head_dim").folder, .dtype = "float32"});
}

// One tensor of q, k and v.
TEST(ShardCuda, OfAFusedTensor) {
  ESPALIER_REQUIRE_DEVICE();
  for (const std::string& name : golden::names()) {
    const golden::Golden golden = golden::read(name);
    if (!weight_layout(golden.spec).layers[0].qkv.fused) continue;
    SCOPED_TRACE(name);
    expect_shards_of_whole({.path = golden.folder, .dtype = "float32"});
  }
}

TEST(ShardCuda, OfDrawnWeights) {
  ESPALIER_REQUIRE_DEVICE();
  expect_shards_of_whole({.path = golden::read("qwen3_head_dim").folder,
                          .format = LoadFormat::kDummy,
                          .seed = 7,
                          .dtype = "float32"});
}

TEST(ShardCuda, OfQuantisedBlocks) {
  ESPALIER_REQUIRE_DEVICE();
  for (const Formats& formats : quantized::files()) {
    SCOPED_TRACE(formats.name);
    TempFolder folder;
    expect_shards_of_whole(
        {.path = folder.write("model.gguf", quantized::gguf_of(formats, 3)), .dtype = "float32"});
  }
}

// A model's checkpoint with the matrices of its layers as codes and scales, which are no multiples
// of the largest magnitude: rounding anew would change them.
struct E4m3Checkpoint {
  TempFolder folder;
  std::map<std::string, std::vector<uint8_t>> codes;
  std::map<std::string, std::vector<float>> scales;  // of rows, or one
};

void write_e4m3(const golden::Golden& golden, bool of_rows, E4m3Checkpoint& out) {
  std::ifstream file(golden.folder / "config.json");
  std::string config(std::istreambuf_iterator<char>(file), {});
  config.insert(config.find('{') + 1,
                R"("quantization_config": {"quant_method": "compressed-tensors",
                   "format": "float-quantized",
                   "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}, )");
  out.folder.write("config.json", config);
  const auto checkpoint = Checkpoint::open(golden.folder);
  ASSERT_TRUE(checkpoint) << checkpoint.error().to_string();
  test::SafetensorsBuilder written;
  Rng rng(5);
  for (const CheckpointTensor& tensor : checkpoint->tensors()) {
    const bool of_layer =
        tensor.name.find("layers.") != std::string::npos && tensor.shape.size() == 2;
    if (!of_layer) {
      written.add(tensor.name, tensor.dtype_name, tensor.shape, tensor.bytes);
      continue;
    }
    std::vector<uint8_t>& codes = out.codes[tensor.name];
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      const uint64_t drawn = rng.below(0x60);  // up to 120, so no row reaches 448
      codes.push_back(static_cast<uint8_t>(drawn | (rng.below(2) << 7)));
    }
    std::vector<float>& scales = out.scales[tensor.name];
    for (int64_t row = 0; row < (of_rows ? tensor.shape[0] : 1); ++row) {
      scales.push_back(1e-3f * (1 + static_cast<float>(rng.below(1000)) / 777));
    }
    written.add(tensor.name, "F8_E4M3", tensor.shape, std::as_bytes(std::span(codes)));
    const std::string stem = tensor.name.substr(0, tensor.name.size() - std::strlen("weight"));
    written.add(stem + "weight_scale", "F32", {std::ssize(scales), 1},
                std::as_bytes(std::span(scales)));
  }
  out.folder.write("model.safetensors", written.bytes());
}

// Codes and scales reach the device as they are stored, and so does what they are multiplied to.
TEST(E4m3Cuda, ACheckpointsCodesStayAsTheyAre) {
  ESPALIER_REQUIRE_DEVICE();
  const golden::Golden golden = golden::read("llama_tied_llama3");
  for (const bool of_rows : {true, false}) {
    SCOPED_TRACE(of_rows);
    E4m3Checkpoint stored;
    ASSERT_NO_FATAL_FAILURE(write_e4m3(golden, of_rows, stored));
    const ModelLoadOptions options{.path = stored.folder.path()};
    auto plan = plan_model(options);
    ASSERT_TRUE(plan) << plan.error().to_string();
    const WeightLayout layout = weight_layout(plan->spec);
    const auto stream = cuda::Stream::create();
    WeightTypes types = DType::kBFloat16;
    types.keep_blocks = true;
    auto pending = load_cuda_weights(plan->spec, layout, types, options);
    ASSERT_TRUE(pending) << pending.error().to_string();
    ASSERT_TRUE(pending->loader->finish().ok());
    const CudaWeight& qkv = pending->weights.at({WeightKind::kQkv, 0});
    ASSERT_NE(qkv.scales, nullptr);
    std::vector<uint8_t> codes;
    std::vector<float> scales;
    for (const WeightBlock& block : layout.layers[0].qkv.blocks) {
      const auto& own = stored.codes.at(block.name);
      codes.insert(codes.end(), own.begin(), own.end());
      for (int64_t row = 0; row < block.rows; ++row) {
        scales.push_back(stored.scales.at(block.name)[of_rows ? static_cast<size_t>(row) : 0]);
      }
    }
    std::vector<uint8_t> got(codes.size());
    EXPECT_TRUE(cuda::copy_to_host(got.data(), qkv.data, std::ssize(got), *stream).ok());
    EXPECT_TRUE(stream->synchronize().ok());
    EXPECT_EQ(got, codes);
    const CudaWeight of_scales{.data = qkv.scales};
    EXPECT_EQ(read_device(of_scales, std::ssize(scales), *stream), scales);

    WorkPool pool(2);
    const auto numbers = load_model({.path = options.path, .dtype = "float32", .pool = &pool});
    ASSERT_TRUE(numbers) << numbers.error().to_string();
    auto decoder = CudaDecoder::load(options);
    ASSERT_TRUE(decoder) << decoder.error().to_string();
    CudaTestModel model(std::move(*decoder));
    const auto expected = quantized::run(**numbers, KvType::kFloat32, 32);
    EXPECT_LT(quantized::difference(quantized::run(model, KvType::kBFloat16, 32), expected), 0.15);
  }
}

// Experts of gpt-oss: records of the file's codes on Hopper, numbers where the type is stated.
TEST(Mxfp4Cuda, ACheckpointsExpertsStayAsTheyAre) {
  ESPALIER_REQUIRE_DEVICE();
  const golden::Golden golden = golden::read("gpt_oss_mxfp4");
  const auto multiplies = kernels::cuda::Linear::multiplies_e4m3();
  ASSERT_TRUE(multiplies);
  const auto hopper = *multiplies;
  const ModelLoadOptions options{.path = golden.folder};
  const auto plan = plan_model(options);
  ASSERT_TRUE(plan) << plan.error().to_string();
  const WeightLayout layout = weight_layout(plan->spec);
  int64_t sizes[2] = {};
  for (const bool keep : {false, true}) {
    WeightTypes types = DType::kBFloat16;
    types.keep_blocks = keep;
    auto pending = load_cuda_weights(plan->spec, layout, types, options);
    ASSERT_TRUE(pending) << pending.error().to_string();
    ASSERT_TRUE(pending->loader->finish().ok());
    for (const WeightKind kind : {WeightKind::kExpertGateUp, WeightKind::kExpertDown})
      EXPECT_EQ(pending->weights.at({kind, 1}).format.codes.mxfp4, keep && hopper);
    sizes[keep ? 1 : 0] = pending->weights.size_bytes();
  }
  if (!hopper) {
    EXPECT_EQ(sizes[0], sizes[1]);
  }
}

// A checkpoint whose scales do not fit to its blocks is refused by the tensor's name.
TEST(Mxfp4Cuda, ATensorOfAnotherShapeIsRefusedByName) {
  ESPALIER_REQUIRE_DEVICE();
  const golden::Golden golden = golden::read("gpt_oss_mxfp4");
  const auto whole = Checkpoint::open(golden.folder);
  ASSERT_TRUE(whole) << whole.error().to_string();
  TempFolder folder;
  std::ifstream config(golden.folder / "config.json");
  folder.write("config.json", std::string(std::istreambuf_iterator<char>(config), {}));
  test::SafetensorsBuilder written;
  const std::string broken = "model.layers.1.mlp.experts.down_proj_scales";
  bool found = false;
  for (const CheckpointTensor& tensor : whole->tensors()) {
    std::vector<int64_t> shape = tensor.shape;
    std::span<const std::byte> bytes = tensor.bytes;
    if (tensor.name == broken) {
      found = true;
      bytes = bytes.first(bytes.size() / 2), shape[1] /= 2;
    }
    written.add(tensor.name, tensor.dtype_name, shape, bytes);
  }
  ASSERT_TRUE(found);
  folder.write("model.safetensors", written.bytes());
  const auto decoder = CudaDecoder::load({.path = folder.path()});
  ASSERT_FALSE(decoder);
  EXPECT_NE(decoder.error().to_string().find(broken), std::string::npos)
      << decoder.error().to_string();
}

// The column that each input of a matrix is; nothing where they are in their own order.
std::vector<int32_t> columns_of(const CudaWeight& weight, const cuda::Stream& stream) {
  if (weight.columns == nullptr) return {};
  std::vector<int32_t> out(static_cast<size_t>(weight.in_features));
  EXPECT_TRUE(cuda::copy_to_host(out.data(), weight.columns, std::ssize(out) * 4, stream).ok());
  EXPECT_TRUE(stream.synchronize().ok());
  return out;
}

// The layers' matrices in codes of 4 bits, those of whose sizes records take: the numbers that they
// stand for, rounded to bfloat16, come back from the device.
void check_codes(const test::Int4Method& method, bool nvfp4 = false) {
  const golden::Golden golden = golden::read("llama_tied_llama3");
  TempFolder folder;
  std::ifstream file(golden.folder / "config.json");
  std::string config(std::istreambuf_iterator<char>(file), {});
  config.insert(config.find('{') + 1, fmt::format(R"("quantization_config": {}, )", method.config));
  folder.write("config.json", config);
  const auto plain = Checkpoint::open(golden.folder);
  ASSERT_TRUE(plain) << plain.error().to_string();
  test::SafetensorsBuilder written;
  Rng rng(5);
  for (const CheckpointTensor& tensor : plain->tensors()) {
    const bool of_layer =
        tensor.name.find("layers.") != std::string::npos && tensor.shape.size() == 2;
    const std::string stem = tensor.name.substr(0, tensor.name.size() - 7);
    if (of_layer && nvfp4) {
      test::add_nvfp4(method, stem, tensor.shape[0], tensor.shape[1], rng, written);
    } else if (of_layer) {
      test::add_int4(method, stem, tensor.shape[0], tensor.shape[1], 32, rng, written);
    } else {
      written.add(tensor.name, tensor.dtype_name, tensor.shape, tensor.bytes);
    }
  }
  folder.write("model.safetensors", written.bytes());
  const ModelLoadOptions options{.path = folder.path()};
  auto plan = plan_model(options);
  ASSERT_TRUE(plan) << plan.error().to_string();
  const WeightLayout layout = weight_layout(plan->spec);
  WeightTypes types = DType::kBFloat16;
  types.keep_blocks = true;
  auto pending = load_cuda_weights(plan->spec, layout, types, options);
  ASSERT_TRUE(pending) << pending.error().to_string();
  ASSERT_TRUE(pending->loader->finish().ok());
  const auto checkpoint = Checkpoint::open(folder.path());
  const auto stream = cuda::Stream::create();
  int coded = 0;
  for (const WeightKind kind :
       {WeightKind::kQkv, WeightKind::kAttentionOutput, WeightKind::kGateUp, WeightKind::kDown}) {
    const CudaWeight& weight = pending->weights.at({kind, 1});
    if (weight.format.codes.int4.group == 0) continue;
    ++coded;
    EXPECT_EQ(weight.format.codes.int4.nvfp4(), nvfp4);
    const std::vector<int32_t> columns = columns_of(weight, *stream);
    EXPECT_EQ(!columns.empty(), method.act_order);
    std::vector<float> expected;
    for (const WeightBlock& block : find_matrix(layout, {kind, 1})->blocks) {
      const CheckpointTensor* tensor = checkpoint->find(block.name);
      std::vector<float> values(static_cast<size_t>(tensor->num_elements()));
      copy_as_float(*tensor, 0, values);
      for (int64_t i = 0; i < tensor->num_elements(); ++i) {
        const int64_t input = i % weight.in_features;
        const int64_t column = columns.empty() ? input : columns[static_cast<size_t>(input)];
        const float value = values[static_cast<size_t>(i - input + column)];
        expected.push_back(to_float(to_bfloat16(value)));
      }
    }
    auto numbers = cuda::DeviceBuffer::allocate(2 * std::ssize(expected), "numbers");
    ASSERT_TRUE(numbers);
    ASSERT_TRUE(kernels::cuda::widen_int4({.format = weight.format.codes.int4,
                                           .records = weight.data,
                                           .out_features = weight.out_features,
                                           .in_features = weight.in_features,
                                           .y = numbers->data()},
                                          {.stream = stream->get()})
                    .ok());
    std::vector<uint16_t> bits(expected.size());
    ASSERT_TRUE(
        cuda::copy_to_host(bits.data(), numbers->data(), 2 * std::ssize(bits), *stream).ok());
    ASSERT_TRUE(stream->synchronize().ok());
    for (size_t i = 0; i < bits.size(); ++i)
      ASSERT_EQ(to_float(BFloat16{bits[i]}), expected[i]) << static_cast<int>(kind) << " " << i;
  }
  EXPECT_GE(coded, 2);
  WorkPool pool(2);
  const auto numbers = load_model({.path = options.path, .dtype = "float32", .pool = &pool});
  ASSERT_TRUE(numbers) << numbers.error().to_string();
  auto decoder = CudaDecoder::load(options);
  ASSERT_TRUE(decoder) << decoder.error().to_string();
  CudaTestModel model(std::move(*decoder));
  const auto want = quantized::run(**numbers, KvType::kFloat32, 32);
  EXPECT_LT(quantized::difference(quantized::run(model, KvType::kBFloat16, 32), want), 0.15);
}

TEST(Int4Cuda, ACheckpointsCodesStayAsTheyAre) {
  ESPALIER_REQUIRE_DEVICE();
  for (const test::Int4Method& method : test::kInt4Methods) {
    SCOPED_TRACE(method.name);
    check_codes(method);
  }
}

TEST(Int4Cuda, ACheckpointsNvfp4StaysAsItIs) {
  ESPALIER_REQUIRE_DEVICE();
  for (const test::Int4Method& method : test::kNvfp4Methods) {
    SCOPED_TRACE(method.name);
    check_codes(method, true);
  }
}

// Inputs lie by groups, and activations follow them.
TEST(Int4Cuda, InputsInAnotherOrderAreReordered) {
  ESPALIER_REQUIRE_DEVICE();
  for (const test::Int4Method& method : test::kActOrderMethods) {
    SCOPED_TRACE(method.name);
    check_codes(method);
  }
}

}  // namespace
}  // namespace espalier
