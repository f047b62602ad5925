// A step of one token through the kernel that holds all layers, beside the same step kernel by
// kernel: the shapes of real models with few layers, short and long contexts, what a layer can
// have.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "models/cuda/test_model.h"
#include "models/golden.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

struct Shape {
  std::string name;
  int32_t layers, hidden, ffn, heads, kv_heads, head_dim;
  std::function<void(DecoderSpec&)> change = [](DecoderSpec&) {};
  bool windows_own_pages = false;
};

DecoderSpec spec_of(const Shape& shape) {
  DecoderSpec spec = golden::read("qwen3_head_dim").spec;
  const LayerSpec layer = spec.layers.front();
  spec.hidden_size = shape.hidden;
  spec.context_length = 8192;
  for (RopeSpec& rope : spec.ropes) rope.rotary_dim = shape.head_dim;
  spec.layers.assign(static_cast<size_t>(shape.layers), layer);
  for (LayerSpec& l : spec.layers) {
    l.attention.num_heads = shape.heads;
    l.attention.num_kv_heads = shape.kv_heads;
    l.attention.head_dim = shape.head_dim;
    l.attention.scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
    l.attention.qk_norm.reset();
    l.mlp.intermediate_size = shape.ffn;
  }
  shape.change(spec);
  return spec;
}

class MegakernelCuda : public testing::TestWithParam<Shape> {};

TEST_P(MegakernelCuda, AgreesWithKernelByKernel) {
  ESPALIER_REQUIRE_DEVICE();
  const DecoderSpec spec = spec_of(GetParam());
  const ModelLoadOptions options{.path = golden::read("qwen3_head_dim").folder,
                                 .format = LoadFormat::kDummy,
                                 .seed = 5,
                                 .dtype = "bfloat16"};
  auto decoder = CudaDecoder::load({spec, DType::kBFloat16}, options);
  ASSERT_TRUE(decoder) << decoder.error().to_string();
  CudaDecoder& gpu = **decoder;
  CudaTestModel model(std::move(*decoder));
  model.set_windows_own_pages(GetParam().windows_own_pages);
  ASSERT_TRUE(model.reserve(3200, 4).ok());
  for (const int32_t page_size : {1, 16}) {
    Rng rng(7);
    golden::KvMemory kv(model.info(), KvType::kBFloat16, page_size, 16384, rng);
    for (const int32_t context : {0, 1, 31, 100, 777, 3100}) {
      std::vector<TokenId> tokens;
      for (int32_t i = 0; i < context + 4; ++i)
        tokens.push_back(static_cast<TokenId>(rng.below(static_cast<uint64_t>(spec.vocab_size))));
      std::vector<golden::Track> tracks(2);
      for (const bool stack : {false, true}) {
        golden::Track& track = tracks[stack ? 1 : 0];
        track.tokens = tokens;
        gpu.set_megakernel(stack);
        const int64_t steps_before = gpu.num_megakernel_steps();
        if (context > 0)
          golden::run_step(model, kv, {{&track, context, golden::Piece::Want::kLast}});
        for (int i = 0; i < 4; ++i)
          golden::run_step(model, kv, {{&track, 1, golden::Piece::Want::kLast}});
        const int64_t steps = gpu.num_megakernel_steps() - steps_before;
        if (context >= gpu.megakernel_context_max()) {  // too long for the one kernel
          EXPECT_EQ(steps, 0) << context;
        } else {
          EXPECT_GE(steps, stack ? 4 : 0) << context;
        }
      }
      ASSERT_TRUE(gpu.has_megakernel());
      for (int32_t at = context; at < context + 4; ++at) {
        const auto &want = tracks[0].logits.at(at), &got = tracks[1].logits.at(at);
        const auto [low, high] = std::ranges::minmax(want);
        double difference = 0, size = 0;
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_TRUE(std::isfinite(got[i])) << context << " " << at << " " << i;
          difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
          size += double{want[i]} * want[i];
        }
        EXPECT_LT(std::sqrt(difference / size), 0.03)
            << "context " << context << ", token " << at << ", pages of " << page_size;
        EXPECT_GT(high - low, 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, MegakernelCuda,
                         testing::Values(Shape{"llama_8b", 3, 4096, 14336, 32, 8, 128},
                                         Shape{"small", 2, 256, 520, 4, 4, 32},
                                         Shape{"qwen_half_b", 3, 896, 4864, 14, 2, 64,
                                               [](DecoderSpec& s) {
                                                 for (LayerSpec& l : s.layers)
                                                   l.attention.qkv_bias = true;
                                               }},
                                         Shape{"norms_of_heads", 3, 1024, 3072, 16, 8, 128,
                                               [](DecoderSpec& s) {
                                                 for (LayerSpec& l : s.layers)
                                                   l.attention.qk_norm = NormSpec{};
                                               }},
                                         Shape{"one_head_for_eight", 2, 2048, 5504, 8, 1, 256},
                                         // 3,100 tokens are more than the one kernel takes.
                                         Shape{"heads_of_their_own", 2, 1024, 2048, 32, 32, 128},
                                         // As Mistral 7B, whose windows have pages of their own.
                                         Shape{"all_windows", 3, 1024, 3584, 8, 2, 128,
                                               [](DecoderSpec& s) {
                                                 for (LayerSpec& l : s.layers)
                                                   l.attention.sliding_window = 512;
                                               },
                                               true},
                                         // So little shared memory is left that most keys' places
                                         // are looked up layer by layer.
                                         Shape{"wide_mlp_many_heads", 2, 256, 49000, 128, 128, 16},
                                         Shape{"windows_and_caps", 4, 1024, 2048, 8, 2, 128,
                                               [](DecoderSpec& s) {
                                                 s.layers[1].attention.sliding_window = 64;
                                                 s.layers[2].attention.softcap = 20;
                                                 s.layers[3].attention.rope.reset();
                                               }}),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace espalier
