// LoRA adapters through a whole engine on a GPU: the tokens of the CPU's engine in any company,
// graphs and overlap included, while adapters are loaded and unloaded.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "engine/startup/start_cuda.h"
#include "engine/testing/test_requests.h"
#include "models/test_adapter.h"
#include "tensor/cuda/testing.h"
#include "tiers/test_pages.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kRanks[] = {4, 16, 72};

class AdaptersCuda : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ESPALIER_REQUIRE_DEVICE();
    for (size_t i = 0; i < std::size(kRanks); ++i)
      write_test_adapter(kModels / GetParam(), 1 + i, path(i), kRanks[i]);
    EngineConfig on_cpu = with_adapters({.model = {.dtype = "float32"}});
    on_cpu.compute.device = "cpu";
    auto engine = load_golden(GetParam(), on_cpu);
    ASSERT_NE(engine, nullptr);
    for (const std::string& name : kNames) cpu_.push_back(ids_of(*engine, name));
    for (size_t i = 1; i < cpu_.size(); ++i) ASSERT_NE(cpu_[i], cpu_[0]) << kNames[i];
  }

  std::filesystem::path path(size_t i) const {
    return temp_.path() / ("adapter" + std::to_string(i));
  }
  EngineConfig with_adapters(EngineConfig config) const {
    for (size_t i = 0; i < std::size(kRanks); ++i)
      config.lora.lora_paths.push_back(kNames[i + 1] + "=" + path(i).string());
    config.lora.max_lora_bytes = 16 << 20;
    return config;
  }
  std::unique_ptr<Engine> start(EngineConfig config) const {
    config.model.dtype = "float32";
    config.compute.device = "cuda";
    return load_golden(GetParam(), with_adapters(std::move(config)));
  }
  static GenerateRequest request(const std::string& lora, int32_t first = 5) {
    GenerateRequest r{.sampling = {.max_new_tokens = 24, .temperature = 0.0f, .ignore_eos = true},
                      .lora = lora};
    for (TokenId token = first; token < first + 8; ++token) r.input_ids.push_back(token);
    return r;
  }
  static std::vector<TokenId> ids_of(Engine& engine, const std::string& lora) {
    const auto result = engine.generate(request(lora));
    EXPECT_TRUE(result) << result.error().to_string();
    return result ? result->output_ids : std::vector<TokenId>();
  }
  void expect_the_cpus(Engine& engine, int count) const {
    std::vector<std::future<std::vector<TokenId>>> answers;
    for (int i = 0; i < count; ++i)
      answers.push_back(std::async(std::launch::async, [&, i] {
        return ids_of(engine, kNames[static_cast<size_t>(i) % kNames.size()]);
      }));
    for (size_t i = 0; i < answers.size(); ++i)
      EXPECT_EQ(answers[i].get(), cpu_[i % kNames.size()]) << "request " << i;
  }

  const std::vector<std::string> kNames = {"", "a", "b", "c"};
  TestFolder temp_;
  std::vector<std::vector<TokenId>> cpu_;  // of each name
};

TEST_P(AdaptersCuda, AnswersAreThoseOfTheCpuInAnyCompany) {
  const EngineConfig configs[] = {
      {},
      {.compute = {.disable_cuda_graph = true}},
      {.compute = {.disable_overlap_schedule = true}},
      {.schedule = {.chunked_prefill_size = 3}},
      {.compute = {.enable_deterministic_inference = true}},
      {.lora = {.max_loras_per_batch = 2}},
  };
  for (size_t i = 0; i < std::size(configs); ++i) {
    SCOPED_TRACE("config " + std::to_string(i));
    auto engine = start(configs[i]);
    ASSERT_NE(engine, nullptr);
    for (size_t name = 0; name < kNames.size(); ++name)
      EXPECT_EQ(ids_of(*engine, kNames[name]), cpu_[name]) << "alone, " << kNames[name];
    // The second time its prefixes are cached, and the sizes of its steps have graphs.
    for (int round = 0; round < 3; ++round) expect_the_cpus(*engine, 23);
  }
}

TEST_P(AdaptersCuda, AnswersAreThoseOfTheCpuWithDraftTokens) {
  for (const char* drafter : {"NGRAM", "COMBINED"})
    for (const bool deterministic : {false, true}) {
      SCOPED_TRACE(std::string(drafter) + (deterministic ? ", deterministic" : ""));
      auto engine =
          start({.compute = {.enable_deterministic_inference = deterministic},
                 .speculation = {.speculative_algorithm = drafter, .measures_cost = false}});
      ASSERT_NE(engine, nullptr);
      for (int round = 0; round < 4; ++round) expect_the_cpus(*engine, 23);
      EXPECT_GT(engine->stats().speculation.accepted_tokens, 100);
    }
}

TEST_P(AdaptersCuda, AreLoadedAndUnloadedUnderLoad) {
  auto engine = start({});
  ASSERT_NE(engine, nullptr);
  std::atomic<bool> stop{false};
  std::vector<std::future<int>> clients;
  for (size_t i = 0; i < 8; ++i)
    clients.push_back(std::async(std::launch::async, [&, i] {
      int answered = 0;
      for (; !stop; ++answered) {
        const size_t name = (i + static_cast<size_t>(answered)) % kNames.size();
        EXPECT_EQ(ids_of(*engine, kNames[name]), cpu_[name]) << "under load, " << kNames[name];
      }
      return answered;
    }));
  // Of each adapter a copy under another name: it comes, answers and goes.
  for (int round = 0; round < 24; ++round) {
    const size_t which = static_cast<size_t>(round) % std::size(kRanks);
    const std::string name = "copy" + std::to_string(round);
    const auto info = engine->load_adapter(name, path(which));
    ASSERT_TRUE(info) << info.error().to_string();
    EXPECT_EQ(info->rank, kRanks[which]);
    EXPECT_EQ(ids_of(*engine, name), cpu_[which + 1]) << name;
    const Status unloaded = engine->unload_adapter(name);
    EXPECT_TRUE(unloaded.ok()) << unloaded.to_string();
  }
  stop = true;
  for (auto& client : clients) EXPECT_GT(client.get(), 0);
}

// Memory that unloaded adapters had is used again, also when it is just enough for one.
TEST_P(AdaptersCuda, TheirMemoryIsUsedAgain) {
  auto engine = start({});
  ASSERT_NE(engine, nullptr);
  const int64_t bytes = engine->adapters().back().info.size_bytes;
  EXPECT_GT(engine->stats().memory.weight_bytes, 0);
  engine.reset();
  EngineConfig tight{.model = {.dtype = "float32"}, .compute = {.device = "cuda"}};
  tight.lora.enable_lora = true;
  tight.lora.max_lora_bytes = bytes + bytes / 4;
  engine = load_golden(GetParam(), tight);
  ASSERT_NE(engine, nullptr);
  for (int round = 0; round < 10; ++round) {
    const auto info = engine->load_adapter("x", path(2));
    ASSERT_TRUE(info) << info.error().to_string();
    EXPECT_EQ(ids_of(*engine, "x"), cpu_[3]);
    EXPECT_FALSE(engine->load_adapter("y", path(2)));
    EXPECT_TRUE(engine->unload_adapter("x").ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, AdaptersCuda,
                         testing::Values("llama_tied_llama3", "qwen2_sharded", "gemma2"),
                         [](const auto& model) { return model.param; });

// Rows without an adapter have the same bits beside rows with one and without.
TEST(AdaptersCudaDeterministic, ABaseRequestsBitsIgnoreTheAdaptersBesideIt) {
  ESPALIER_REQUIRE_DEVICE();
  const TestFolder temp;
  write_test_adapter(kModels / "llama_tied_llama3", 1, temp.path() / "a", 16);
  auto engine = load_golden(
      "llama_tied_llama3",
      {.compute = {.device = "cuda", .enable_deterministic_inference = true},
       .lora = {.lora_paths = {"a=" + (temp.path() / "a").string()}, .max_lora_bytes = 4 << 20}});
  ASSERT_NE(engine, nullptr);
  const auto alone = answers_alone(*engine);
  std::list<Collector> beside;
  for (GenerateRequest& request : make_requests()) {
    request.lora = "a";
    request.sampling.max_new_tokens = 60;
    EXPECT_TRUE(engine->submit(request, beside.emplace_back().sink()));
  }
  EXPECT_EQ(answers_in_a_crowd(*engine), alone);
  for (Collector& collector : beside) EXPECT_TRUE(collector.wait_end());
}

TEST(AdaptersCudaStart, RanksRefuseThemByName) {
  const auto refused =
      start_cuda_executor({.compute = {.tp_size = 2}, .lora = {.enable_lora = true}}, SystemInfo());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("--tp-size is 2, and adapters"));
}

}  // namespace
}  // namespace espalier
