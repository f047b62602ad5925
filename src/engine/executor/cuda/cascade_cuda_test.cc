// Steps that read shared prefixes once give what steps give in which each entry reads its own.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "engine/executor/cuda/cuda_executor.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kEntries = 16, kShared = 3000, kSteps = 9, kPagesOfEntry = 16;

// Wide enough that attention decides what comes out; heads of 64, so that the tensor cores' kernels
// run.
constexpr const char* kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512,
  "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
  "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 8192,
  "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
  "tie_word_embeddings": false, "torch_dtype": "bfloat16"})";

struct Outcome {
  std::vector<float> logprobs;  // of all entries of all decode steps
  int64_t num_cascades = 0, num_replays = 0;
};

class CudaCascade : public testing::Test {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    folder_ = fs::path(testing::TempDir()) / "cascade_model";
    fs::create_directories(folder_);
    std::ofstream(folder_ / "config.json") << kConfig;
  }

  static void share(ForwardBatch& batch, int32_t parent, int32_t begin, int32_t end,
                    int32_t first_entry, int32_t last_entry) {
    batch.shared_prefixes.push_back(
        {.begin = begin,
         .end = end,
         .parent = parent,
         .first_entry = static_cast<int32_t>(batch.shared_entries.size()),
         .num_entries = last_entry - first_entry});
    for (int32_t entry = first_entry; entry < last_entry; ++entry)
      batch.shared_entries.push_back(entry);
  }

  // All entries have the pages of one prompt, then their own. What they are said to share differs
  // from step to step: everything, two levels, other entries, nothing.
  static ForwardBatch decode_batch(int32_t step) {
    ForwardBatch batch;
    batch.step = static_cast<uint64_t>(step + 2);
    const auto sampling = std::make_shared<SamplingSpec>();
    sampling->temperature = 0.0f;
    sampling->return_logprob = true;
    for (int32_t i = 0; i < kEntries; ++i) {
      if (step == 0) batch.slot_inits.push_back({.slot = i, .sampling = sampling});
      batch.entries.push_back({.slot = i,
                               .num_query_tokens = 1,
                               .prefix_len = kShared + step,
                               .query_begin = i,
                               .page_begin = static_cast<int32_t>(batch.page_tables.size()),
                               .num_pages = kShared + step + 1,
                               .table_version = static_cast<uint64_t>(i + 2),
                               .sample = true,
                               .output_index = step});
      batch.page_tables.resize(batch.page_tables.size() + kShared);
      std::iota(batch.page_tables.end() - kShared, batch.page_tables.end(), 0);
      for (int32_t own = 0; own <= step; ++own)
        batch.page_tables.push_back(kShared + i * kPagesOfEntry + own);
      batch.token_ids.push_back((37 * i + 11 * step + 5) % 1000);
      batch.positions.push_back(kShared + step);
    }
    if (step % 4 != 3) share(batch, -1, 0, step % 2 == 0 ? kShared : 2500, 0, kEntries);
    if (step % 4 == 1) {
      share(batch, 0, 2500, kShared, 0, 7);
      share(batch, 0, 2500, 2900, 9, kEntries);
    }
    return batch;
  }

  Outcome run(bool cascade, bool graphs) {
    Outcome out;
    auto model = CudaDecoder::load({.path = folder_, .format = LoadFormat::kDummy, .seed = 3});
    EXPECT_TRUE(model) << model.error().message();
    auto executor = CudaExecutor::create(std::move(*model), {.max_slots = kEntries,
                                                             .max_tokens = kShared + kEntries,
                                                             .context_length = 8192,
                                                             .graphs = graphs,
                                                             .cascade = cascade});
    EXPECT_TRUE(executor) << executor.error().message();
    EXPECT_TRUE((*executor)
                    ->allocate_kv({.num_layers = 3,
                                   .num_kv_heads = 2,
                                   .head_dim = 64,
                                   .type = KvType::kBFloat16,
                                   .num_pages = kShared + kEntries * kPagesOfEntry,
                                   .page_size = 1})
                    .ok());
    ForwardBatch prompt;
    prompt.step = 1;
    prompt.slot_inits.push_back({.slot = 0, .sampling = std::make_shared<SamplingSpec>()});
    prompt.entries.push_back(
        {.slot = 0, .num_query_tokens = kShared, .num_pages = kShared, .table_version = 1});
    for (int32_t i = 0; i < kShared; ++i) {
      prompt.token_ids.push_back(i * 7919 % 1000);
      prompt.positions.push_back(i);
      prompt.page_tables.push_back(i);
    }
    (*executor)->launch(prompt);
    (*executor)->wait(1);
    for (int32_t step = 0; step < kSteps; ++step) {
      const ForwardBatch batch = decode_batch(step);
      (*executor)->launch(batch);
      for (const EntryResult& entry : (*executor)->wait(batch.step).entries) {
        EXPECT_TRUE(entry.status.ok()) << entry.status.message();
        out.logprobs.push_back(entry.logprobs.logprob);
      }
    }
    out.num_cascades = (*executor)->counts().cascades;
    out.num_replays = (*executor)->counts().replays;
    return out;
  }

  fs::path folder_;
};

TEST_F(CudaCascade, ChangesNothingButTheOrderOfSums) {
  const Outcome alone = run(false, true);
  EXPECT_EQ(alone.num_cascades, 0);
  ASSERT_EQ(alone.logprobs.size(), static_cast<size_t>(kEntries * kSteps));
  double mean = 0, spread = 0;
  for (const float logprob : alone.logprobs) mean += logprob / std::ssize(alone.logprobs);
  for (const float logprob : alone.logprobs) spread = std::max(spread, std::abs(logprob - mean));
  EXPECT_GT(spread, 0.05);  // entries differ, so a result in the wrong entry would show
  for (const bool graphs : {false, true}) {
    const Outcome together = run(true, graphs);
    EXPECT_EQ(together.num_cascades, 7);
    if (graphs) {
      EXPECT_GT(together.num_replays, 4);
    }
    ASSERT_EQ(together.logprobs.size(), alone.logprobs.size());
    for (size_t i = 0; i < alone.logprobs.size(); ++i)
      EXPECT_NEAR(together.logprobs[i], alone.logprobs[i], 0.03)
          << "graphs " << graphs << ", step " << i / kEntries << ", entry " << i % kEntries;
  }
}

}  // namespace
}  // namespace espalier
