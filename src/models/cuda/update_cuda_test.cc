// Weights that are replaced in a GPU's memory are, byte for byte, those of a fresh load; what is
// refused writes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/convert.h"
#include "checkpoint/int4_checkpoint.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/temp_folder.h"
#include "kernels/linear/cuda.h"
#include "models/cuda/weights.h"
#include "models/golden.h"
#include "models/model_plan.h"
#include "models/weight_layout.h"
#include "tensor/cuda/stream.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

struct Case {
  const char* model;
  const char* dtype;
  bool hopper = false;
};

// Elements, rounded codes, experts of all kinds, what the GPU converts.
constexpr Case kCases[] = {{"llama_tied_llama3", "auto"},
                           {"llama_untied_bias", "float32"},
                           {"phi3_longrope", "auto"},
                           {"gpt2", "auto"},
                           {"mixtral", "auto"},
                           {"deepseek_v2", "auto"},
                           {"gpt_oss", "auto"},
                           {"llama_tied_llama3", "fp8", true},
                           {"llama_tied_llama3", "int4", true},
                           {"llama_tied_llama3", "nvfp4", true},
                           {"gpt_oss_mxfp4", "auto", true}};

class UpdateCuda : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    const auto hopper = kernels::cuda::Linear::multiplies_e4m3();
    ASSERT_TRUE(hopper);
    if (GetParam().hopper && !*hopper) GTEST_SKIP() << "SKIPPED: not a Hopper GPU";
    golden_ = golden::read(GetParam().model);
    options_ = {.path = golden_.folder, .dtype = GetParam().dtype};
    auto plan = plan_model(options_);
    ASSERT_TRUE(plan) << plan.error().to_string();
    spec_ = plan->spec;
    types_ = plan->type;
    types_.e4m3 = plan->weights.e4m3, types_.int4 = plan->weights.int4;
    types_.nvfp4 = plan->weights.nvfp4;
    types_.keep_blocks = plan->weights.keep_blocks;
  }

  CudaWeights load(const ModelLoadOptions& options) const {
    auto pending = load_cuda_weights(spec_, weight_layout(spec_), types_, options);
    EXPECT_TRUE(pending) << pending.error().to_string();
    if (!pending) return {};
    EXPECT_TRUE(pending->loader->finish().ok());
    return std::move(pending->weights);
  }
  ModelLoadOptions drawn() const {
    ModelLoadOptions options = options_;
    options.format = LoadFormat::kDummy;
    options.seed = 11;
    return options;
  }
  PlacedWeights placed(const CudaWeights& weights) const {
    return {.spec = spec_, .layout = weight_layout(spec_), .types = types_, .weights = weights};
  }
  static std::vector<std::byte> bytes_of(const CudaWeights& weights) {
    std::vector<std::byte> out(static_cast<size_t>(weights.size_bytes()));
    const auto stream = cuda::Stream::create();
    EXPECT_TRUE(
        cuda::copy_to_host(out.data(), weights.block(), weights.size_bytes(), *stream).ok());
    EXPECT_TRUE(stream->synchronize().ok());
    return out;
  }

  golden::Golden golden_;
  ModelLoadOptions options_;
  DecoderSpec spec_;
  WeightTypes types_;
};

TEST_P(UpdateCuda, GivesTheBytesOfAFreshLoad) {
  const std::vector<std::byte> want = bytes_of(load(options_));
  const CudaWeights weights = load(drawn());
  EXPECT_NE(bytes_of(weights), want);
  for (int round = 0; round < 2; ++round) {
    auto update = CudaWeightUpdate::prepare(placed(weights), options_, nullptr);
    ASSERT_TRUE(update) << update.error().to_string();
    ASSERT_TRUE(update->start().ok());
    ASSERT_TRUE(update->finish().ok());
    EXPECT_EQ(bytes_of(weights), want) << "round " << round;
  }
}

TEST_P(UpdateCuda, ReadsATensorBack) {
  if (GetParam().hopper) GTEST_SKIP() << "SKIPPED: codes";
  const CudaWeights weights = load(options_);
  const auto checkpoint = Checkpoint::open(golden_.folder);
  ASSERT_TRUE(checkpoint);
  int num_read = 0;
  for (const CheckpointTensor& tensor : checkpoint->tensors()) {
    const auto values = read_cuda_weight(placed(weights), tensor.name, 7);
    if (!values) continue;
    std::vector<float> want(values->size());
    copy_as_float(tensor, 0, want);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR((*values)[i], want[i], 0.005 * std::abs(want[i])) << tensor.name;
    ++num_read;
  }
  EXPECT_GT(num_read, 4);
  EXPECT_EQ(read_cuda_weight(placed(weights), "nothing", 7).error().code(), StatusCode::kNotFound);
}

INSTANTIATE_TEST_SUITE_P(All, UpdateCuda, testing::ValuesIn(kCases), [](const auto& one) {
  return std::string(one.param.model) + "_" + one.param.dtype;
});

using SomeCuda = UpdateCuda;

// Of one file with some tensors; the others keep their bytes.
TEST_P(SomeCuda, ReplacesThemAndNoOther) {
  const auto checkpoint = Checkpoint::open(golden_.folder);
  ASSERT_TRUE(checkpoint);
  test::SafetensorsBuilder first, rest, unknown;
  size_t count = 0;
  for (const CheckpointTensor& tensor : checkpoint->tensors())
    (count++ % 2 == 0 ? first : rest)
        .add(tensor.name, tensor.dtype_name, tensor.shape, tensor.bytes);
  const CheckpointTensor& any = checkpoint->tensors().front();
  unknown.add("nobody.weight", any.dtype_name, any.shape, any.bytes);
  TempFolder folder;
  const std::vector<std::byte> want = bytes_of(load(options_));
  const CudaWeights weights = load(drawn());
  const std::vector<std::byte> before = bytes_of(weights);
  const auto prepare = [&](const char* name, const test::SafetensorsBuilder& file) {
    const auto path = folder.write(name, file.bytes());
    return CudaWeightUpdate::prepare(placed(weights), options_, [path](const DecoderSpec& spec) {
      return make_partial_loader(path, spec);
    });
  };
  const auto refused = prepare("unknown", unknown);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), testing::HasSubstr("nobody.weight"));
  EXPECT_EQ(bytes_of(weights), before);
  auto update = prepare("first", first);
  ASSERT_TRUE(update) << update.error().to_string();
  EXPECT_EQ(bytes_of(weights), before) << "prepare() writes nothing";
  ASSERT_TRUE(update->start().ok() && update->finish().ok());
  const std::vector<std::byte> half = bytes_of(weights);
  EXPECT_NE(half, before);
  EXPECT_NE(half, want);
  update = prepare("rest", rest);
  ASSERT_TRUE(update) << update.error().to_string();
  ASSERT_TRUE(update->start().ok() && update->finish().ok());
  EXPECT_EQ(bytes_of(weights), want);
}

INSTANTIATE_TEST_SUITE_P(All, SomeCuda,
                         testing::Values(Case{"llama_tied_llama3", "auto"},
                                         Case{"phi3_longrope", "auto"}, Case{"gpt2", "auto"},
                                         Case{"deepseek_v2", "auto"}, Case{"mixtral", "auto"},
                                         Case{"llama_tied_llama3", "fp8", true}),
                         [](const auto& one) {
                           return std::string(one.param.model) + "_" + one.param.dtype;
                         });

}  // namespace
}  // namespace espalier
