// Small mixtures of experts as AWQ, GPTQ and compressed-tensors store them: on a Hopper GPU their
// experts stay in 4 bits, and logits are those of the CPU with the numbers that the codes stand
// for.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/rng.h"
#include "checkpoint/int4_checkpoint.h"
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

constexpr int64_t kHidden = 256, kExpertFfn = 128, kVocab = 128, kHeads = 4, kKvHeads = 2,
                  kHeadDim = 64, kSharedFfn = 384;
constexpr int kNumLayers = 2, kNumExperts = 8;

struct MixtureFile {
  test::Int4Method method;
  int top_k = 2;
  int group = 128;
  bool act_order = false;  // of one expert's matrix in layer 1
  bool shared = false;     // Qwen2: an expert that all tokens pass
  uint64_t seed = 7;
};

// Writes config.json and model.safetensors of a mixture of Qwen3, or of Qwen2 with a shared expert,
// with random weights.
class MixtureWriter {
 public:
  explicit MixtureWriter(const MixtureFile& file) : file_(file), rng_(file.seed) {
    const std::string config = fmt::format(
        R"({{"architectures": ["{}MoeForCausalLM"], "model_type": "{}",
             "attention_bias": false, "qkv_bias": false, "shared_expert_intermediate_size": {}, "decoder_sparse_step": 1, "head_dim": {}, "hidden_act": "silu",
             "hidden_size": {}, "intermediate_size": 512, "max_position_embeddings": 256,
             "mlp_only_layers": [], "moe_intermediate_size": {}, "norm_topk_prob": true,
             "num_attention_heads": {}, "num_experts": {}, "num_experts_per_tok": {},
             "num_hidden_layers": {}, "num_key_value_heads": {}, "rms_norm_eps": 1e-06,
             "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
             "vocab_size": {}, "quantization_config": {}}})",
        file.shared ? "Qwen2" : "Qwen3", file.shared ? "qwen2_moe" : "qwen3_moe", kSharedFfn,
        kHeadDim, kHidden, kExpertFfn, kHeads, kNumExperts, file.top_k, kNumLayers, kKvHeads,
        kVocab, file.method.config);
    folder_.write("config.json", config);
    numbers("model.embed_tokens.weight", {kVocab, kHidden}, 1);
    for (int i = 0; i < kNumLayers; ++i) layer(fmt::format("model.layers.{}.", i), i);
    numbers("model.norm.weight", {kHidden}, 0, 1);
    numbers("lm_head.weight", {kVocab, kHidden}, 0.1f);
    folder_.write("model.safetensors", written_.bytes());
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  // Numbers that bfloat16 has.
  void numbers(const std::string& name, std::vector<int64_t> shape, float deviation,
               float centre = 0) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) {
      const auto drawn = static_cast<float>(rng_.between(-1000, 1000)) * 0.00173f;
      values.push_back(to_float(to_bfloat16(centre + deviation * drawn)));
    }
    written_.add(name, "F32", shape, std::as_bytes(std::span(values)));
  }
  void coded(const std::string& stem, int64_t out, int64_t in) {
    test::add_int4(file_.method, stem, out, in, file_.group, rng_, written_);
  }
  void layer(const std::string& name, int index) {
    numbers(name + "input_layernorm.weight", {kHidden}, 0, 1);
    coded(name + "self_attn.q_proj", kHeads * kHeadDim, kHidden);
    coded(name + "self_attn.k_proj", kKvHeads * kHeadDim, kHidden);
    coded(name + "self_attn.v_proj", kKvHeads * kHeadDim, kHidden);
    coded(name + "self_attn.o_proj", kHidden, kHeads * kHeadDim);
    if (file_.shared) {
      shared_expert(name + "mlp.");
    } else {
      numbers(name + "self_attn.q_norm.weight", {kHeadDim}, 0, 1);
      numbers(name + "self_attn.k_norm.weight", {kHeadDim}, 0, 1);
    }
    numbers(name + "post_attention_layernorm.weight", {kHidden}, 0, 1);
    numbers(name + "mlp.gate.weight", {kNumExperts, kHidden}, 0.1f);
    for (int i = 0; i < kNumExperts; ++i) {
      const std::string expert = fmt::format("{}mlp.experts.{}.", name, i);
      coded(expert + "gate_proj", kExpertFfn, kHidden);
      coded(expert + "up_proj", kExpertFfn, kHidden);
      coded(expert + "down_proj", kHidden, kExpertFfn);
      if (file_.act_order && index == 1 && i == 3) add_order(expert + "up_proj");
    }
  }
  void shared_expert(const std::string& name) {
    coded(name + "shared_expert.gate_proj", kSharedFfn, kHidden);
    coded(name + "shared_expert.up_proj", kSharedFfn, kHidden);
    coded(name + "shared_expert.down_proj", kHidden, kSharedFfn);
    numbers(name + "shared_expert_gate.weight", {1, kHidden}, 0.1f);
  }
  // Inputs of the two groups take turns.
  void add_order(const std::string& stem) {
    std::vector<int32_t> groups;
    for (int i = 0; i < kHidden; ++i) groups.push_back(i % 2);
    written_.add(stem + ".g_idx", "I32", {kHidden}, std::as_bytes(std::span(groups)));
  }

  const MixtureFile file_;
  TempFolder folder_;
  test::SafetensorsBuilder written_;
  Rng rng_;
};

// A checkpoint's weights on the device, with what is stored in codes.
struct LoadedMixture {
  ModelLoadOptions options;
  ModelPlan plan;
  WeightTypes types = DType::kBFloat16;
  CudaWeights weights;

  explicit LoadedMixture(const MixtureWriter& file)
      : options{.path = file.path()}, plan(plan_model(options).value()) {
    types.keep_blocks = true;
    auto pending = load_cuda_weights(plan.spec, weight_layout(plan.spec), types, options);
    EXPECT_TRUE(pending) << pending.error().to_string();
    EXPECT_TRUE(pending->loader->finish().ok());
    weights = std::move(pending->weights);
  }
  // Of the codes that the layer's experts have; 0: elements.
  int32_t group_of_experts(int32_t layer) const {
    const auto group = [&](WeightKind kind) {
      return weights.at({kind, layer}).format.codes.int4.group;
    };
    EXPECT_EQ(group(WeightKind::kExpertGateUp), group(WeightKind::kExpertDown));
    return group(WeightKind::kExpertDown);
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out(static_cast<size_t>(weights.size_bytes()));
    const auto stream = cuda::Stream::create();
    EXPECT_TRUE(
        cuda::copy_to_host(out.data(), weights.block(), weights.size_bytes(), *stream).ok());
    EXPECT_TRUE(stream->synchronize().ok());
    return out;
  }
};

quantized::Logits gpu_logits(const ModelLoadOptions& options, int32_t chunk,
                             int64_t* weight_bytes = nullptr) {
  auto decoder = CudaDecoder::load(options);
  EXPECT_TRUE(decoder) << decoder.error().to_string();
  if (weight_bytes != nullptr) *weight_bytes = (*decoder)->info().weight_bytes;
  CudaTestModel model(std::move(*decoder));
  return quantized::run(model, KvType::kBFloat16, chunk);
}

quantized::Logits cpu_logits(const std::filesystem::path& path) {
  WorkPool pool(2);
  const auto numbers = load_model({.path = path, .dtype = "float32", .pool = &pool});
  EXPECT_TRUE(numbers) << numbers.error().to_string();
  return quantized::run(**numbers, KvType::kFloat32, 32);
}

// The largest error of each position in deviations of all logits, then of those that have to agree
// where other experts may be selected.
float error_of_most(const quantized::Logits& got, const quantized::Logits& want) {
  double squares = 0, count = 0;
  for (const auto& sequence : want) {
    for (const float value : sequence) squares += double{value} * value, ++count;
  }
  const auto spread = static_cast<float>(std::sqrt(squares / count));
  std::vector<float> errors;
  for (size_t i = 0; i < want.size(); ++i) {
    for (size_t j = 0; j < want[i].size(); ++j) {
      if (j % kVocab == 0) errors.push_back(0);
      errors.back() = std::max(errors.back(), std::abs(got[i][j] - want[i][j]) / spread);
    }
  }
  return golden::largest_error(errors, true);
}

bool keeps_int4() {
  const auto multiplies = kernels::cuda::Linear::multiplies_e4m3();
  return multiplies && *multiplies;
}

// All experts of a row are chosen, so none is by a jump: every logit counts. Weights are exact, so
// what differs is activations in bfloat16: as much as with weights in bfloat16.
TEST(Int4ExpertsModelCuda, HaveTheLogitsOfTheirNumbers) {
  ESPALIER_REQUIRE_DEVICE();
  for (const test::Int4Method& method : test::kInt4Methods) {
    SCOPED_TRACE(method.name);
    const MixtureWriter file({.method = method, .top_k = kNumExperts});
    const quantized::Logits want = cpu_logits(file.path());
    int64_t bytes = 0, wide_bytes = 0;
    const double error = quantized::difference(gpu_logits({.path = file.path()}, 32, &bytes), want);
    const double wide = quantized::difference(
        gpu_logits({.path = file.path(), .dtype = "bfloat16"}, 32, &wide_bytes), want);
    fmt::print("{}: difference {:.4f}, widened {:.4f}\n", method.name, error, wide);
    EXPECT_LT(error, 0.05);
    EXPECT_LT(error, 1.5 * wide);
    for (const int32_t chunk : {1, 5}) {
      EXPECT_LT(quantized::difference(gpu_logits({.path = file.path()}, chunk), want), 0.05)
          << "chunks of " << chunk;
    }
    if (!keeps_int4()) continue;
    EXPECT_EQ(LoadedMixture(file).group_of_experts(1), 128);
    constexpr int64_t kCoded = kNumLayers * (kNumExperts * 3 * kHidden * kExpertFfn +
                                             2 * kHidden * (kHeads + kKvHeads) * kHeadDim);
    EXPECT_LT(bytes, wide_bytes - kCoded * 4 / 3) << "4.2 to 4.4 bits instead of 16";
  }
}

// The expert that all tokens pass is in codes too, whose sum is weighted by a gate: all tokens at
// once, several and one at a time.
TEST(Int4ExpertsModelCuda, ShareAnExpertInCodes) {
  ESPALIER_REQUIRE_DEVICE();
  for (const test::Int4Method& method : test::kInt4Methods) {
    SCOPED_TRACE(method.name);
    const MixtureWriter file({.method = method, .top_k = kNumExperts, .shared = true});
    const quantized::Logits want = cpu_logits(file.path());
    for (const int32_t chunk : {1, 5, 32}) {
      const double error = quantized::difference(gpu_logits({.path = file.path()}, chunk), want);
      fmt::print("{}, chunks of {}: difference {:.4f}\n", method.name, chunk, error);
      EXPECT_LT(error, 0.05) << "chunks of " << chunk;
    }
    if (!keeps_int4()) continue;
    const LoadedMixture loaded(file);
    EXPECT_EQ(loaded.group_of_experts(1), 128);
    for (const WeightKind kind : {WeightKind::kGateUp, WeightKind::kDown})
      EXPECT_EQ(loaded.weights.at({kind, 1}).format.codes.int4.group, 128);
  }
}

TEST(Int4ExpertsModelCuda, AgreeWhereFewAreChosen) {
  ESPALIER_REQUIRE_DEVICE();
  for (const test::Int4Method& method : test::kInt4Methods) {
    SCOPED_TRACE(method.name);
    const MixtureWriter file({.method = method, .top_k = 2});
    const quantized::Logits want = cpu_logits(file.path());
    for (const int32_t chunk : {1, 7, 32}) {
      const float error = error_of_most(gpu_logits({.path = file.path()}, chunk), want);
      fmt::print("{}, chunks of {}: {:.4f}\n", method.name, chunk, error);
      EXPECT_LE(error, 0.1f) << chunk;
    }
  }
}

// Groups of 64 are two of 32, whose weights are rounded to bfloat16.
TEST(Int4ExpertsModelCuda, OfSmallGroupsHaveTheLogitsOfTheirNumbers) {
  ESPALIER_REQUIRE_DEVICE();
  for (const int group : {32, 64}) {
    const MixtureWriter file(
        {.method = test::kInt4Methods[0], .top_k = kNumExperts, .group = group});
    const quantized::Logits want = cpu_logits(file.path());
    for (const int32_t chunk : {1, 5, 32}) {
      const double error = quantized::difference(gpu_logits({.path = file.path()}, chunk), want);
      fmt::print("groups of {}, chunks of {}: difference {:.4f}\n", group, chunk, error);
      EXPECT_LT(error, 0.05);
    }
    EXPECT_EQ(LoadedMixture(file).group_of_experts(0), keeps_int4() ? 32 : 0);
  }
}

// What the records do not hold becomes bfloat16: a layer of which one matrix has its inputs in
// another order.
TEST(Int4ExpertsModelCuda, OthersBecomeNumbers) {
  ESPALIER_REQUIRE_DEVICE();
  const MixtureWriter ordered(
      {.method = test::kInt4Methods[0], .top_k = kNumExperts, .act_order = true});
  EXPECT_EQ(LoadedMixture(ordered).group_of_experts(0), keeps_int4() ? 128 : 0);
  EXPECT_EQ(LoadedMixture(ordered).group_of_experts(1), 0);
  EXPECT_LT(
      quantized::difference(gpu_logits({.path = ordered.path()}, 32), cpu_logits(ordered.path())),
      0.05);
}

// Records are written over those of another checkpoint, twice.
TEST(Int4ExpertsModelCuda, AnUpdateGivesTheBytesOfAFreshLoad) {
  ESPALIER_REQUIRE_DEVICE();
  const MixtureWriter first({.method = test::kInt4Methods[1]});
  const MixtureWriter second({.method = test::kInt4Methods[1], .seed = 8});
  const LoadedMixture running(first);
  const std::vector<std::byte> want = LoadedMixture(second).bytes();
  EXPECT_NE(running.bytes(), want);
  for (int round = 0; round < 2; ++round) {
    auto update = CudaWeightUpdate::prepare({.spec = running.plan.spec,
                                             .layout = weight_layout(running.plan.spec),
                                             .types = running.types,
                                             .weights = running.weights},
                                            {.path = second.path()}, nullptr);
    ASSERT_TRUE(update) << update.error().to_string();
    ASSERT_TRUE(update->start().ok());
    ASSERT_TRUE(update->finish().ok());
    EXPECT_EQ(running.bytes(), want) << "round " << round;
  }
}

// Memory is planned for experts' records, filled up to whole ones; no device is needed.
TEST(Int4ExpertsModelCuda, MemoryIsPlannedInRecords) {
  const MixtureWriter file({.method = test::kInt4Methods[0]});
  const auto planned = read_weight_memory({.path = file.path()}, ProgramKind::kGpu);
  ASSERT_TRUE(planned) << planned.error().to_string();
  const kernels::cuda::Int4ExpertShape up{2 * kExpertFfn, kHidden, true};
  const kernels::cuda::Int4ExpertShape down{kHidden, kExpertFfn, false};
  const kernels::cuda::Int4Format dense{.group = 128, .zeros = true};
  const int64_t attention =
      kernels::cuda::int4_bytes(dense, (kHeads + 2 * kKvHeads) * kHeadDim, kHidden) +
      kernels::cuda::int4_bytes(dense, kHidden, kHeads * kHeadDim);
  EXPECT_EQ(planned->at("INT4"),
            kNumLayers * (kNumExperts * (up.size_bytes() + down.size_bytes()) + attention));
}

}  // namespace
}  // namespace espalier
