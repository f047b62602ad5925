// Checkpoints of FP8 in blocks of 128 x 128 on the GPU: codes and scales as they are stored, and
// the logits of the numbers that they stand for.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "checkpoint/int4_checkpoint.h"
#include "checkpoint/temp_folder.h"
#include "kernels/linear/cuda.h"
#include "kernels/linear/quantize_rows.h"
#include "models/cuda/test_model.h"
#include "models/cuda/weights.h"
#include "models/golden.h"
#include "models/model_plan.h"
#include "models/program/partition.h"
#include "models/quantized_file.h"
#include "tensor/cuda/testing.h"
#include "tensor/float16.h"
#include "tensor/work_pool.h"

namespace espalier {
namespace {

using kernels::cuda::block_scale_stride;
using kernels::cuda::kScaleBlock;
using kernels::cuda::scale_blocks;

// A family's golden with larger matrices, random, those of layers in codes.
class BlockCheckpoint {
 public:
  using Sizes = std::map<std::string, int>;

  BlockCheckpoint(const std::string& golden, const Sizes& sizes) {
    std::ifstream file(golden::read(golden).folder / "config.json");
    std::string config(std::istreambuf_iterator<char>(file), {});
    for (const auto& [field, size] : sizes) {
      const size_t at = config.find("\"" + field + "\": ");
      EXPECT_NE(at, std::string::npos) << field;
      const size_t begin = at + field.size() + 4, end = config.find_first_of(",\n", begin);
      config.replace(begin, end - begin, std::to_string(size));
    }
    config.insert(config.find('{') + 1,
                  R"("quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
                     "weight_block_size": [128, 128]}, )");
    folder_.write("config.json", config);
    const auto plan = plan_model({.path = folder_.path()});
    EXPECT_TRUE(plan) << plan.error().to_string();
    if (plan) write(weight_layout(plan->spec));
  }

  ModelLoadOptions options() const { return {.path = folder_.path()}; }
  const std::vector<uint8_t>& codes(const std::string& name) const { return codes_.at(name); }
  const std::vector<float>& scales(const std::string& name) const { return scales_.at(name); }

 private:
  void write(const WeightLayout& layout) {
    matrix(layout.embedding, false), matrix(layout.head, false), vector(layout.final_norm);
    for (const LayerLayout& layer : layout.layers) {
      for (const VectorLayout* norm :
           {&layer.input_norm, &layer.q_norm, &layer.k_norm, &layer.latent.q_a_norm,
            &layer.latent.kv_a_norm, &layer.post_attention_norm, &layer.experts.router_correction})
        vector(*norm);
      for (const MatrixLayout* coded :
           {&layer.qkv, &layer.latent.q_a, &layer.latent.q, &layer.latent.kv_a, &layer.latent.kv_b,
            &layer.attention_output, &layer.mlp.gate_up, &layer.mlp.down})
        matrix(*coded, true);
      matrix(layer.experts.router, false);
      for (const MlpLayout& expert : layer.experts.experts)
        matrix(expert.gate_up, true), matrix(expert.down, true);
    }
    folder_.write("model.safetensors", written_.bytes());
  }
  void vector(const VectorLayout& layout) {
    for (const WeightBlock& block : layout.blocks) numbers(block.name, {block.rows}, 1, 0.2);
  }
  void matrix(const MatrixLayout& layout, bool coded) {
    for (const WeightBlock& block : layout.blocks) {
      if (coded)
        code(block.name, block.rows, layout.in_features);
      else
        numbers(block.name, {block.rows, layout.in_features}, 0, 0.1);
    }
  }
  void numbers(const std::string& name, std::vector<int64_t> shape, float centre, double spread) {
    int64_t count = 1;
    for (const int64_t size : shape) count *= size;
    std::vector<BFloat16> values;
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(to_bfloat16(centre + static_cast<float>(spread * (rng_.uniform() * 2 - 1))));
    }
    written_.add(name, "BF16", shape, std::as_bytes(std::span(values)));
  }
  // Scales of neighbours differ by factors of up to 16.
  void code(const std::string& name, int64_t rows, int64_t columns) {
    std::vector<uint8_t>& codes = codes_[name];
    for (int64_t i = 0; i < rows * columns; ++i) {
      codes.push_back(static_cast<uint8_t>(rng_.below(0x60) | (rng_.below(2) << 7)));
    }
    std::vector<float>& scales = scales_[name];
    for (int64_t i = 0; i < scale_blocks(rows) * scale_blocks(columns); ++i) {
      scales.push_back(3e-4f * static_cast<float>(1 << rng_.below(5)));
    }
    written_.add(name, "F8_E4M3", {rows, columns}, std::as_bytes(std::span(codes)));
    written_.add(name + "_scale_inv", "F32", {scale_blocks(rows), scale_blocks(columns)},
                 std::as_bytes(std::span(scales)));
  }

  TempFolder folder_;
  Rng rng_{7};
  test::SafetensorsBuilder written_;
  std::map<std::string, std::vector<uint8_t>> codes_;
  std::map<std::string, std::vector<float>> scales_;
};

struct Family {
  const char* golden;
  BlockCheckpoint::Sizes sizes;
};
const Family kFamilies[] = {
    {"llama_tied_llama3",
     {{"hidden_size", 256}, {"head_dim", 64}, {"intermediate_size", 384}, {"vocab_size", 512}}},
    {"qwen3_moe",
     {{"hidden_size", 384}, {"head_dim", 64}, {"moe_intermediate_size", 256}, {"vocab_size", 512}}},
};

template <typename T>
std::vector<T> read_device(const void* data, size_t count) {
  std::vector<T> out(count);
  const auto stream = cuda::Stream::create();
  EXPECT_TRUE(cuda::copy_to_host(out.data(), data, std::ssize(out) * sizeof(T), *stream).ok());
  EXPECT_TRUE(stream->synchronize().ok());
  return out;
}

class BlockE4m3Cuda : public testing::Test {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    const auto multiplies = kernels::cuda::Linear::multiplies_e4m3();
    ASSERT_TRUE(multiplies);
    if (!*multiplies) GTEST_SKIP() << "SKIPPED: GEMMs of e4m3 need Hopper";
  }

  // What the device has of one matrix of the layout, or of its shard, is what the file has.
  static void expect_stored(const BlockCheckpoint& stored, const MatrixLayout& layout,
                            const std::byte* codes, const float* scales) {
    for (const WeightBlock& block : layout.blocks) {
      const TensorSlice slice = layout.slice_of(block);
      const auto got = read_device<uint8_t>(codes, static_cast<size_t>(slice.num_elements()));
      for (int64_t row = 0; row < slice.rows; ++row)
        for (int64_t i = 0; i < slice.columns; ++i) {
          const int64_t at = (slice.first_row + row) * layout.in_features + slice.first_column + i;
          ASSERT_EQ(got[static_cast<size_t>(row * slice.columns + i)],
                    stored.codes(block.name)[static_cast<size_t>(at)])
              << block.name << " " << row << " " << i;
        }
      const int64_t stride = block_scale_stride(slice.columns), rows = scale_blocks(slice.rows);
      const auto of = read_device<float>(scales, static_cast<size_t>(rows * stride));
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < scale_blocks(slice.columns); ++i) {
          const int64_t at =
              (slice.first_row / kScaleBlock + row) * scale_blocks(layout.in_features) +
              slice.first_column / kScaleBlock + i;
          ASSERT_EQ(of[static_cast<size_t>(row * stride + i)],
                    stored.scales(block.name)[static_cast<size_t>(at)])
              << block.name << " " << row << " " << i;
        }
      codes += slice.num_elements();
      scales += rows * stride;
    }
  }
};

TEST_F(BlockE4m3Cuda, CodesAndScalesStayAsTheyAreOnEveryRank) {
  for (const Family& family : kFamilies) {
    SCOPED_TRACE(family.golden);
    const BlockCheckpoint stored(family.golden, family.sizes);
    const auto plan = plan_model(stored.options());
    ASSERT_TRUE(plan) << plan.error().to_string();
    WeightTypes types = DType::kBFloat16;
    types.keep_blocks = true;
    for (const int32_t ranks : {1, 2}) {
      const Ranks last{.rank = ranks - 1, .num_ranks = ranks};
      const WeightLayout layout =
          ranks == 1 ? weight_layout(plan->spec) : program::partition_weights(plan->spec, last);
      auto pending =
          load_cuda_weights(program::local_spec(plan->spec, last), layout, types, stored.options());
      ASSERT_TRUE(pending) << pending.error().to_string();
      ASSERT_TRUE(pending->loader->finish().ok());
      const LayerLayout& layer = layout.layers[1];
      int coded = 0;
      for (const auto& [kind, matrix] : {std::pair(WeightKind::kQkv, &layer.qkv),
                                         {WeightKind::kAttentionOutput, &layer.attention_output},
                                         {WeightKind::kGateUp, &layer.mlp.gate_up},
                                         {WeightKind::kDown, &layer.mlp.down}}) {
        const CudaWeight& weight = pending->weights.at({kind, 1});
        if (matrix->empty() || !weight.format.codes.block_scales) continue;
        ++coded;
        expect_stored(stored, *matrix, static_cast<const std::byte*>(weight.data), weight.scales);
      }
      EXPECT_GE(coded, 1) << ranks;
      if (layer.experts.experts.empty()) continue;
      const CudaWeight& experts = pending->weights.at({WeightKind::kExpertGateUp, 1});
      ASSERT_TRUE(experts.format.codes.block_scales);
      const int64_t scales =
          scale_blocks(experts.out_features) * block_scale_stride(experts.in_features);
      for (size_t i = 0; i < layer.experts.experts.size(); ++i) {
        const auto expert = static_cast<int64_t>(i);
        expect_stored(stored, layer.experts.experts[i].gate_up,
                      static_cast<const std::byte*>(experts.data) + expert * experts.group_stride,
                      experts.scales + expert * scales);
      }
    }
  }
}

TEST_F(BlockE4m3Cuda, LogitsAreThoseOfTheNumbers) {
  for (const Family& family : kFamilies) {
    SCOPED_TRACE(family.golden);
    const BlockCheckpoint stored(family.golden, family.sizes);
    WorkPool pool(2);
    const auto numbers =
        load_model({.path = stored.options().path, .dtype = "float32", .pool = &pool});
    ASSERT_TRUE(numbers) << numbers.error().to_string();
    auto decoder = CudaDecoder::load(stored.options());
    ASSERT_TRUE(decoder) << decoder.error().to_string();
    CudaTestModel model(std::move(*decoder));
    const auto expected = quantized::run(**numbers, KvType::kFloat32, 32);
    for (const int32_t chunk : {32, 1}) {
      const double difference =
          quantized::difference(quantized::run(model, KvType::kBFloat16, chunk), expected);
      fmt::print("{}, chunks of {}: {:.4f} of the logits' deviation\n", family.golden, chunk,
                 difference);
      EXPECT_LT(difference, 0.15) << chunk;
    }
  }
}

}  // namespace
}  // namespace espalier
