// Memory that a GPU gives back and takes again, and weights that are compared there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "engine/testing/near_answers.h"
#include "engine/testing/test_requests.h"
#include "engine/weights/weight_control.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr MemoryPart kBoth[] = {MemoryPart::kKvCache, MemoryPart::kWeights};

int64_t free_bytes() { return cuda::read_device_memory()->free_bytes; }

std::unique_ptr<Engine> make_engine(const fs::path& model, EngineConfig config = {}) {
  config.compute.device = "cuda";
  config.model.dtype = "float32";
  return load_golden(fs::relative(fs::absolute(model), fs::absolute(kModels)).string(), config);
}

class ReleasedCuda : public testing::Test {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    folder_ = fs::path(testing::TempDir()) / ("released_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    fs::copy(kModels / "llama_tied_llama3", model(), fs::copy_options::recursive);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path model() const { return folder_ / "model"; }

  fs::path folder_;
};

// Graphs were captured before; they are replayed behind it.
TEST_F(ReleasedCuda, MemoryComesBackAndAnswersAreTheSame) {
  EngineConfig config;
  config.cache.max_total_tokens = 1 << 20;  // 768 MiB
  const auto engine = make_engine(model(), config);
  ASSERT_TRUE(engine);
  const auto before = answers_in_a_crowd(*engine);
  for (int round = 0; round < 3; ++round) {
    const int64_t free_before = free_bytes();
    const auto released = engine->weights()->release_memory(kBoth);
    ASSERT_TRUE(released) << released.error().to_string();
    EXPECT_EQ(released->released.size(), 2u);
    EXPECT_GE(free_bytes() - free_before, released->released_bytes);
    EXPECT_GT(released->released_bytes, int64_t{700} << 20);
    const auto refused = engine->generate(make_requests()[0]);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message(), HasSubstr("/resume_memory_occupation"));
    const auto resumed = engine->weights()->resume_memory(kBoth);
    ASSERT_TRUE(resumed) << resumed.error().to_string();
    EXPECT_THAT(resumed->released, IsEmpty());
    expect_near_answers(answers_in_a_crowd(*engine), before, fmt::format("round {}", round));
  }
}

TEST_F(ReleasedCuda, WeightsThatFilesDoNotHaveAreKept) {
  const auto engine = make_engine(model());
  ASSERT_TRUE(engine);
  ASSERT_TRUE(engine->weights()->update({.random = true}));
  const auto before = answers_in_a_crowd(*engine);
  const auto digests = engine->weights()->digests();
  ASSERT_TRUE(digests) << digests.error().to_string();
  const MemoryPart weights[] = {MemoryPart::kWeights};
  ASSERT_TRUE(engine->weights()->release_memory(weights));
  ASSERT_TRUE(engine->weights()->resume_memory(weights));
  EXPECT_EQ(*engine->weights()->digests(), *digests);
  expect_near_answers(answers_in_a_crowd(*engine), before, "as before");
  // A whole checkpoint has all of them again.
  ASSERT_TRUE(engine->weights()->update({.path = model()}));
  ASSERT_TRUE(engine->weights()->release_memory(weights));
  ASSERT_TRUE(engine->weights()->resume_memory(weights));
  const auto fresh = make_engine(model());
  EXPECT_EQ(*engine->weights()->digests(), *fresh->weights()->digests());
}

TEST_F(ReleasedCuda, IsRefusedOrRepeatedWhereFilesAreMissing) {
  const auto engine = make_engine(model());
  ASSERT_TRUE(engine);
  const auto before = answers_in_a_crowd(*engine);
  const fs::path file = model() / "model.safetensors", away = folder_ / "away";
  fs::rename(file, away);
  EXPECT_FALSE(engine->weights()->release_memory(kBoth));
  expect_near_answers(answers_in_a_crowd(*engine), before, "as before");
  fs::rename(away, file);
  ASSERT_TRUE(engine->weights()->release_memory(kBoth));
  fs::rename(file, away);
  const auto failed = engine->weights()->resume_memory(kBoth);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message(), HasSubstr("can be resumed again"));
  fs::rename(away, file);
  const auto resumed = engine->weights()->resume_memory(kBoth);
  ASSERT_TRUE(resumed) << resumed.error().to_string();
  expect_near_answers(answers_in_a_crowd(*engine), before, "as before");
}

// Files are not read, so they may be away; an update makes the copies those of the new weights.
TEST_F(ReleasedCuda, CopiesThatTheHostKeepsNeedNoFiles) {
  EngineConfig config;
  config.compute.enable_weights_cpu_backup = true;
  const auto engine = make_engine(model(), config);
  ASSERT_TRUE(engine);
  EXPECT_EQ(engine->weights()->backup_bytes(), engine->model_info().weight_bytes);
  const MemoryPart weights[] = {MemoryPart::kWeights};
  const auto before = answers_in_a_crowd(*engine);
  fs::rename(model() / "model.safetensors", folder_ / "away");
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(engine->weights()->release_memory(weights));
    const auto resumed = engine->weights()->resume_memory(weights);
    ASSERT_TRUE(resumed) << resumed.error().to_string();
    expect_near_answers(answers_in_a_crowd(*engine), before, fmt::format("round {}", round));
  }
  fs::rename(folder_ / "away", model() / "model.safetensors");
  ASSERT_TRUE(engine->weights()->update({.random = true}));
  const auto digests = engine->weights()->digests();
  const auto random = answers_in_a_crowd(*engine);
  ASSERT_TRUE(engine->weights()->release_memory(weights));
  ASSERT_TRUE(engine->weights()->resume_memory(weights));
  EXPECT_EQ(*engine->weights()->digests(), *digests);
  expect_near_answers(answers_in_a_crowd(*engine), random, "random weights");
}

// Prints how long it takes for the model that ESPALIER_LARGE_MODEL names; of a folder with a
// config.json alone the weights are drawn (ESPALIER_LARGE_MODEL_FORMAT=dummy).
void time_large_memory(bool backup) {
  const char* const path = std::getenv("ESPALIER_LARGE_MODEL");
  if (path == nullptr) GTEST_SKIP() << "SKIPPED: ESPALIER_LARGE_MODEL names no model";
  const char* const format = std::getenv("ESPALIER_LARGE_MODEL_FORMAT");
  EngineConfig config;
  config.model.model_path = path;
  if (format != nullptr) config.model.load_format = LoadFormat::kDummy;
  config.model.skip_tokenizer_init = true;
  config.compute.device = "cuda";
  config.compute.enable_weights_cpu_backup = backup;
  config.sampling.random_seed = 5;
  const auto engine = Engine::create(config);
  ASSERT_TRUE(engine) << engine.error().to_string();
  for (int round = 0; round < 3; ++round)
    for (const MemoryPart part : {MemoryPart::kWeights, MemoryPart::kKvCache}) {
      const MemoryPart parts[] = {part};
      const auto released = (*engine)->weights()->release_memory(parts);
      ASSERT_TRUE(released) << released.error().to_string();
      const auto resumed = (*engine)->weights()->resume_memory(parts);
      ASSERT_TRUE(resumed) << resumed.error().to_string();
      std::printf("%s%s: %.2f GB released in %.3f s, resumed in %.3f s\n",
                  std::string(name_of(part)).c_str(), backup ? " with a copy on the host" : "",
                  static_cast<double>(released->released_bytes) * 1e-9, released->seconds,
                  resumed->seconds);
    }
}

TEST_F(ReleasedCuda, LargeMemoryIsReleasedAndResumed) { time_large_memory(false); }
TEST_F(ReleasedCuda, LargeMemoryIsReleasedAndResumedFromTheHost) { time_large_memory(true); }

TEST_F(ReleasedCuda, TensorsAreComparedWithASnapshot) {
  const auto engine = make_engine(model());
  ASSERT_TRUE(engine);
  WeightControl& weights = *engine->weights();
  ASSERT_TRUE(weights.take_snapshot().ok());
  EXPECT_THAT(*weights.compare(), IsEmpty());
  ASSERT_TRUE(weights.update({.random = true}));
  EXPECT_EQ(weights.compare()->size(), weights.digests()->size());
  ASSERT_TRUE(weights.update({.path = model()}));
  EXPECT_THAT(*weights.compare(), IsEmpty());
}

}  // namespace
}  // namespace espalier
