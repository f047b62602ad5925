// For tests of faults, on any device: a model whose weights are damaged.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "engine/testing/test_requests.h"

namespace espalier {

// A copy of a golden model in which element `at` of a tensor in float32 is not a number. Deleted
// with it.
class DamagedModel {
 public:
  DamagedModel(const std::string& model, const std::string& tensor, size_t at) {
    namespace fs = std::filesystem;
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) /
              (std::string(test->test_suite_name()) + "_" + test->name() + "_damaged");
    fs::remove_all(folder_);
    fs::copy(kModels / model, folder_);
    std::ifstream in(folder_ / "model.safetensors", std::ios::binary);
    std::string file((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    const float not_a_number = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(file.data() + offset_of(file, tensor) + 4 * at, &not_a_number, 4);
    std::ofstream(folder_ / "model.safetensors", std::ios::binary) << file;
  }
  DamagedModel(const DamagedModel&) = delete;
  DamagedModel& operator=(const DamagedModel&) = delete;
  ~DamagedModel() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  const std::filesystem::path& folder() const { return folder_; }

 private:
  // Where a tensor's first element lies in a safetensors file.
  static size_t offset_of(const std::string& file, const std::string& tensor) {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
    const std::string key = "\"data_offsets\":[";
    const size_t entry = file.find('"' + tensor + '"');
    EXPECT_NE(entry, std::string::npos) << tensor;
    return 8 + header_bytes + std::stoul(file.substr(file.find(key, entry) + key.size()));
  }

  std::filesystem::path folder_;
};

// One token's embedding is damaged: requests that say it end with an error and are counted; those
// beside them, and those that get their pages afterwards, have the answers of the sound model.
inline void expect_not_finite_ends_one_request(const std::string& device, int32_t page_size) {
  constexpr TokenId kBad = 9;
  const EngineConfig config{.model = {.dtype = "float32"},
                            .compute = {.device = device},
                            .cache = {.max_total_tokens = 960, .page_size = page_size}};
  const std::string model = "llama_untied_bias";
  const DamagedModel damaged(model, "model.embed_tokens.weight", size_t{kBad} * 32);
  std::vector<GenerateRequest> requests;
  Rng rng(3);
  for (int i = 0; i < 24; ++i) {
    GenerateRequest r;
    for (auto length = 1 + rng.below(50); length > 0; --length)
      r.input_ids.push_back(static_cast<TokenId>(10 + rng.below(100)));
    r.sampling = {.max_new_tokens = 20, .temperature = 0.0f, .ignore_eos = true};
    r.sampling.logit_bias = {{kBad, -1e6f}};  // nobody else comes to say it
    requests.push_back(std::move(r));
  }
  std::vector<std::vector<TokenId>> want;
  {
    const auto sound = load_golden(model, config);
    ASSERT_NE(sound, nullptr);
    for (const GenerateRequest& request : requests) {
      const auto r = sound->generate(request);
      ASSERT_TRUE(r) << r.error().to_string();
      want.push_back(r->output_ids);
    }
  }
  EngineConfig of_damaged = config;
  of_damaged.model.model_path = damaged.folder();
  of_damaged.model.skip_tokenizer_init = of_damaged.check_invariants = true;
  of_damaged.compute.num_threads = 2;
  const auto engine = Engine::create(of_damaged);
  ASSERT_TRUE(engine) << engine.error().to_string();
  constexpr int kRounds = 3;
  int32_t num_bad = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::list<Collector> sound, bad;
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE((*engine)->submit(requests[i], sound.emplace_back().sink()));
      if (i % 2 == 0) continue;
      GenerateRequest r = requests[i];
      r.input_ids[r.input_ids.size() / 2] = kBad;
      r.return_logprob = i % 4 == 1;
      ASSERT_TRUE((*engine)->submit(std::move(r), bad.emplace_back().sink()));
      ++num_bad;
    }
    size_t i = 0;
    for (Collector& c : sound) {
      ASSERT_TRUE(c.wait_end());
      EXPECT_EQ(c.finish_type(), FinishReason::Type::kLength)
          << c.result().finish.status.to_string();
      EXPECT_EQ(c.result().output_ids, want[i]) << "round " << round << ", request " << i;
      ++i;
    }
    for (Collector& c : bad) {
      ASSERT_TRUE(c.wait_end());
      EXPECT_EQ(c.finish_type(), FinishReason::Type::kError);
      EXPECT_EQ(c.result().finish.status.code(), StatusCode::kInternal);
      EXPECT_THAT(c.result().finish.status.message(), ::testing::HasSubstr("not finite"));
      EXPECT_TRUE(c.result().output_ids.empty());
    }
  }
  const EngineStats stats = (*engine)->stats();
  EXPECT_EQ(stats.requests.num_not_finite, num_bad);
  EXPECT_EQ(stats.requests.num_failed, num_bad);
  EXPECT_EQ(stats.requests.num_finished, kRounds * std::ssize(requests) + num_bad);
}

}  // namespace espalier
