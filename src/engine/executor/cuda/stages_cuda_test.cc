// The golden models in stages on GPUs: the greedy tokens of transformers, two steps in flight, with
// prompts cut into micro-batches of a few tokens. Stages share a device where there is one.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/executor/cuda/cuda_stages.h"
#include "models/golden.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

using Devices = std::vector<std::vector<int32_t>>;

constexpr int32_t kPageSize = 4, kPages = 64, kOutputs = 24;
constexpr float kSureMargin = 1e-3f;  // of the best logit to the second, in parts of the spread

class StagesCuda : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    sampling_ = std::make_shared<SamplingSpec>();
    sampling_->temperature = 0;
  }

  std::unique_ptr<CudaStages> load(const Devices& devices, bool graphs) {
    for (const std::vector<int32_t>& ranks : devices)
      for (const int32_t device : ranks) EXPECT_TRUE(cuda::open_device(device));
    auto stages = CudaStages::begin_load({golden_.spec, DType::kFloat32}, {.path = golden_.folder},
                                         {.devices = devices, .micro_batch_tokens = 3});
    EXPECT_TRUE(stages) << stages.error().to_string();
    if (!stages) return nullptr;
    const Status reserved = (*stages)->reserve({.max_slots = 4,
                                                .max_tokens = 256,
                                                .context_length = kPages * kPageSize / 4,
                                                .page_size = kPageSize,
                                                .graphs = graphs});
    EXPECT_TRUE(reserved.ok()) << reserved.to_string();
    std::vector<KvPoolConfig> pools;
    for (int32_t i = 0; i < (*stages)->num_stages(); ++i) {
      const ModelInfo& info = (*stages)->stage_info(i);
      pools.push_back({.num_layers = info.num_layers,
                       .num_kv_heads = info.num_kv_heads,
                       .head_dim = info.head_dim,
                       .type = KvType::kFloat32,
                       .num_pages = kPages,
                       .page_size = kPageSize,
                       .num_planes = info.kv_planes});
    }
    const Status allocated = (*stages)->allocate_kv(pools);
    EXPECT_TRUE(allocated.ok()) << allocated.to_string();
    const Status warm = (*stages)->warm_up();
    EXPECT_TRUE(warm.ok()) << warm.to_string();
    EXPECT_TRUE((*stages)->finish_loading().ok());
    return *std::move(stages);
  }

  // All prompts in one step, then a token of each a step.
  ForwardBatch batch_of(int32_t index) const {
    ForwardBatch batch;
    batch.step = static_cast<uint64_t>(index + 1);
    for (size_t i = 0; i < golden_.greedy.size() && i < 4; ++i) {
      const auto slot = static_cast<SlotId>(i);
      const std::vector<TokenId>& prompt = golden_.greedy[i].prompt;
      const auto length = static_cast<int32_t>(prompt.size());
      const int32_t prefix = index == 0 ? 0 : length + index - 1;
      const int32_t count = index == 0 ? length : 1;
      if (index == 0) batch.slot_inits.push_back({.slot = slot, .sampling = sampling_});
      batch.entries.push_back({.slot = slot,
                               .num_query_tokens = count,
                               .prefix_len = prefix,
                               .query_begin = batch.num_tokens(),
                               .page_begin = static_cast<int32_t>(batch.page_tables.size()),
                               .num_pages = (prefix + count + kPageSize - 1) / kPageSize,
                               .table_version = i + 1,
                               .sample = true,
                               .output_index = index});
      for (int32_t page = 0; page < batch.entries.back().num_pages; ++page)
        batch.page_tables.push_back(slot + 4 * page);
      for (int32_t k = 0; k < count; ++k) {
        batch.token_ids.push_back(index == 0 ? prompt[static_cast<size_t>(k)] : kTokenFromSlot);
        batch.positions.push_back(prefix + k);
      }
    }
    return batch;
  }

  void expect_tokens(const StepResult& result, int32_t index) const {
    for (size_t i = 0; i < result.entries.size(); ++i) {
      const golden::Greedy& want = golden_.greedy[i];
      ASSERT_TRUE(result.entries[i].status.ok()) << result.entries[i].status.to_string();
      const auto at = static_cast<size_t>(index);
      const auto sure = [&](float margin) { return margin > kSureMargin * golden_.spread; };
      if (!std::ranges::all_of(want.margins.begin(), want.margins.begin() + index + 1, sure))
        continue;
      ASSERT_EQ(result.entries[i].token, want.tokens[at]) << "sequence " << i << ", token " << at;
    }
  }

  void expect_greedy_tokens(const Devices& devices, bool graphs) {
    SCOPED_TRACE(fmt::format("{} stages of {} ranks{}", devices.size(), devices[0].size(),
                             graphs ? ", graphs" : ""));
    const auto stages = load(devices, graphs);
    ASSERT_NE(stages, nullptr);
    int32_t outputs = kOutputs;
    for (const golden::Greedy& greedy : golden_.greedy)
      outputs =
          std::min(outputs, kPages * kPageSize / 4 - static_cast<int32_t>(greedy.prompt.size()));
    std::vector<ForwardBatch> batches;
    for (int32_t i = 0; i < outputs; ++i) batches.push_back(batch_of(i));
    for (int32_t i = 0; i < outputs; ++i) {
      stages->launch(batches[static_cast<size_t>(i)]);
      if (i > 0) expect_tokens(stages->wait(batches[static_cast<size_t>(i - 1)].step), i - 1);
      if (HasFatalFailure()) return;
    }
    expect_tokens(stages->wait(batches.back().step), outputs - 1);
  }

  const golden::Golden golden_ = golden::read(GetParam());
  std::shared_ptr<SamplingSpec> sampling_;
};

TEST_P(StagesCuda, HaveTheGreedyTokensOfTransformers) {
  const bool two = cuda::count_devices() > 1;
  expect_greedy_tokens(two ? Devices{{0}, {1}} : Devices{{0}, {0}}, true);
  expect_greedy_tokens({{0}, {0}}, false);
  if (golden_.spec.layers.size() > 2) expect_greedy_tokens({{0}, {0}, {0}}, true);
}

// Each GPU is a rank of both stages.
TEST_P(StagesCuda, OfTwoRanksHaveThemToo) {
  if (cuda::count_devices() < 2) GTEST_SKIP() << "needs two GPUs that reach each other's memory";
  expect_greedy_tokens({{0, 1}, {0, 1}}, true);
}

INSTANTIATE_TEST_SUITE_P(Models, StagesCuda,
                         testing::Values("llama_untied_bias", "qwen2_f32", "gemma2", "mixtral",
                                         "deepseek_v2", "gpt2"),
                         [](const auto& model) { return model.param; });

TEST(StagesCudaStart, TooManyStagesAreRefused) {
  ESPALIER_REQUIRE_DEVICE();
  const golden::Golden golden = golden::read("llama_untied_bias");
  const ModelPlan plan{golden.spec, DType::kFloat32};
  const auto refusal = [&](size_t stages, int32_t device) {
    const auto loaded = CudaStages::begin_load(
        plan, {.path = golden.folder}, {.devices = Devices(stages, std::vector<int32_t>{device})});
    return loaded ? std::string() : loaded.error().message();
  };
  EXPECT_NE(refusal(9, 0).find("choose at most one stage a layer"), std::string::npos);
  EXPECT_NE(refusal(2, 1000).find("choose a smaller --pp-size"), std::string::npos);
}

}  // namespace
}  // namespace espalier
