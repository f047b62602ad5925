// A GPU's memory: what is planned at the start holds whatever comes, and what does not fit is
// refused with figures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <list>
#include <string>

#include "engine/testing/test_requests.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
constexpr int64_t kMiB = 1 << 20, kGiB = 1 << 30;

// 32 KiB of keys and values a token, so that full requests could use 17 GB.
class MemoryCuda : public testing::Test {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    folder_ = fs::path(testing::TempDir()) / "memory_model";
    fs::create_directories(folder_);
    std::ofstream(folder_ / "config.json") << R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
      "intermediate_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 8,
      "num_key_value_heads": 8, "vocab_size": 1000, "max_position_embeddings": 8192,
      "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
      "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";
  }

  Result<std::unique_ptr<Engine>> engine(EngineConfig config = {}) const {
    config.model.model_path = folder_;
    config.model.load_format = LoadFormat::kDummy;
    config.model.skip_tokenizer_init = true;
    config.sampling.random_seed = 5;
    config.compute.device = "cuda";
    config.schedule.max_running_requests = 64;
    return Engine::create(config);
  }

  static int64_t free_bytes() {
    const auto memory = cuda::read_device_memory();
    EXPECT_TRUE(memory);
    return memory ? memory->free_bytes : 0;
  }
  // Takes all of the device's memory but so much, as another process would.
  static cuda::DeviceBuffer take_all_but(int64_t bytes) {
    auto taken = cuda::DeviceBuffer::allocate(free_bytes() - bytes, "what another process has");
    EXPECT_TRUE(taken) << taken.error().to_string();
    return taken ? std::move(*taken) : cuda::DeviceBuffer();
  }

  // Requests of every kind, up to all slots at once, sharing prefixes or not.
  static void storm(Engine& engine) {
    Rng rng(29);
    for (const int at_once : {1, 2, 3, 7, 16, 33, 64, 200}) {
      std::vector<TokenId> shared;
      for (int i = 0; i < 700; ++i) shared.push_back(static_cast<TokenId>(rng.below(1000)));
      std::list<Collector> collectors;
      for (int i = 0; i < at_once; ++i) {
        GenerateRequest r{.input_ids = {shared.begin(), shared.begin() + rng.between(0, 700)}};
        for (auto own = 1 + rng.below(i % 7 == 0 ? 3000 : 60); own > 0; --own)
          r.input_ids.push_back(static_cast<TokenId>(rng.below(1000)));
        r.sampling = {.max_new_tokens = static_cast<int32_t>(1 + rng.below(60)),
                      .ignore_eos = true,
                      .sampling_seed = static_cast<uint64_t>(i)};
        if (i % 3 == 1) r.sampling.top_p = 0.9f, r.sampling.min_p = 0.01f;
        if (i % 5 == 2) r.sampling.repetition_penalty = 1.2f, r.sampling.logit_bias = {{7, 2.0f}};
        r.return_logprob = i % 4 == 0;
        if (r.return_logprob) r.logprob_start_len = 0, r.top_logprobs_num = 5;
        ASSERT_TRUE(engine.submit(std::move(r), collectors.emplace_back().sink()));
      }
      for (Collector& c : collectors) {
        ASSERT_TRUE(c.wait_end());
        EXPECT_EQ(c.finish_type(), FinishReason::Type::kLength)
            << c.result().finish.status.to_string();
      }
    }
  }

  fs::path folder_;
};

// Graphs and kernels that are loaded at their first use come out of what is reserved for them;
// nothing else comes, and from then on nothing at all.
TEST_F(MemoryCuda, AfterTheStartNothingIsAllocated) {
  const auto e = engine({.cache = {.max_total_tokens = 60000}});
  ASSERT_TRUE(e) << e.error().to_string();
  const int64_t at_start = free_bytes();
  storm(**e);
  const int64_t after_one = free_bytes();
  const int64_t graphs = (*e)->stats().memory.graph_bytes;
  EXPECT_LE(at_start - after_one, graphs + 512 * kMiB);
  storm(**e);
  storm(**e);
  // A graph of a size that came once is recorded when it comes again.
  EXPECT_LE(at_start - free_bytes(), graphs + 512 * kMiB);
  EXPECT_LE(after_one - free_bytes(), 64 * kMiB);
  RecordProperty("graphs_planned_mib", static_cast<int>(graphs / kMiB));
  RecordProperty("taken_mib", static_cast<int>((at_start - free_bytes()) / kMiB));
}

TEST_F(MemoryCuda, WithoutGraphsNotAByte) {
  const auto e =
      engine({.compute = {.disable_cuda_graph = true}, .cache = {.max_total_tokens = 60000}});
  ASSERT_TRUE(e) << e.error().to_string();
  EXPECT_EQ((*e)->stats().memory.graph_bytes, 0);
  storm(**e);  // loads what kernels are left
  const int64_t before = free_bytes();
  storm(**e);
  EXPECT_EQ(free_bytes(), before);
}

// Beside others the cache takes what they have left, to the end, and the engine lives in it.
TEST_F(MemoryCuda, BesideOthersItTakesWhatIsLeft) {
  const cuda::DeviceBuffer others = take_all_but(5 * kGiB);
  const auto e = engine();
  ASSERT_TRUE(e) << e.error().to_string();
  const EngineStats stats = (*e)->stats();
  EXPECT_GT(stats.memory.kv_bytes, 2 * kGiB);
  EXPECT_LT(stats.memory.kv_bytes, 5 * kGiB);
  // Nothing is left but what is reserved for graphs and libraries.
  EXPECT_LT(free_bytes(), stats.memory.graph_bytes + 600 * kMiB);
  storm(**e);
  EXPECT_GE(free_bytes(), 0);
}

TEST_F(MemoryCuda, WhatDoesNotFitIsRefusedWithFigures) {
  const cuda::DeviceBuffer others = take_all_but(5 * kGiB);
  const auto too_many = engine({.cache = {.max_total_tokens = 400000}});
  ASSERT_FALSE(too_many);
  EXPECT_EQ(too_many.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(too_many.error().message(), HasSubstr("max_total_tokens is 400000"));
  EXPECT_THAT(too_many.error().message(), HasSubstr("GiB"));
  // What failed has given its memory back.
  EXPECT_GT(free_bytes(), 5 * kGiB - 300 * kMiB);
}

TEST_F(MemoryCuda, WhereNothingIsLeftItSaysWhatIsMissing) {
  const cuda::DeviceBuffer others = take_all_but(300 * kMiB);
  const auto none = engine();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(none.error().message(), ::testing::ContainsRegex("[0-9.]+ GiB"));
}

}  // namespace
}  // namespace espalier
