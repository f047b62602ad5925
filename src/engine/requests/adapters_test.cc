// Adapters through a whole engine: real models, several adapters at once, loading and unloading.
#include "engine/requests/adapters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "engine/testing/test_requests.h"
#include "models/test_adapter.h"

namespace espalier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Adapters : public testing::Test {
 protected:
  static constexpr char kModel[] = "llama_tied_llama3";

  Adapters() {
    std::string name = (std::filesystem::temp_directory_path() / "espalier_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    for (const uint64_t seed : {1, 2, 3})
      write_test_adapter(kModels / kModel, seed, path(static_cast<int>(seed)));
  }
  ~Adapters() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  std::filesystem::path path(int i) const { return folder_ / ("adapter" + std::to_string(i)); }
  std::string stated(const std::string& name, int i) const { return name + "=" + path(i).string(); }
  std::unique_ptr<Engine> start(EngineConfig config = {}) {
    if (config.lora.lora_paths.empty())
      config.lora.lora_paths = {stated("a", 1), stated("b", 2), stated("c", 3)};
    return load_golden(kModel, config);
  }
  static GenerateRequest request(const std::string& lora, int32_t max_new_tokens = 24) {
    return {.input_ids = {5, 6, 7, 8, 9, 10, 11, 12},
            .sampling = {.max_new_tokens = max_new_tokens, .temperature = 0.0f, .ignore_eos = true},
            .lora = lora};
  }
  static std::vector<TokenId> ids_of(Engine& engine, const std::string& lora) {
    const auto result = engine.generate(request(lora));
    EXPECT_TRUE(result) << result.error().to_string();
    return result ? result->output_ids : std::vector<TokenId>();
  }

  std::filesystem::path folder_;
};

TEST_F(Adapters, AnswersAreThoseOfEachAloneInAnyCompany) {
  const std::vector<std::string> names = {"", "a", "b", "c"};
  std::vector<std::vector<TokenId>> alone;
  for (const std::string& name : names) {
    auto engine = start();
    ASSERT_NE(engine, nullptr);
    alone.push_back(ids_of(*engine, name));
    for (size_t i = 0; i + 1 < alone.size(); ++i) EXPECT_NE(alone[i], alone.back()) << name;
  }
  for (const int32_t per_batch : {8, 2, 1}) {
    auto engine =
        start({.compute = {.num_threads = 2}, .lora = {.max_loras_per_batch = per_batch}});
    ASSERT_NE(engine, nullptr);
    for (int round = 0; round < 2; ++round) {  // the second one finds its prefixes cached
      std::vector<std::future<std::vector<TokenId>>> answers;
      for (int i = 0; i < 24; ++i)
        answers.push_back(std::async(std::launch::async, [&, i] {
          return ids_of(*engine, names[static_cast<size_t>(i) % names.size()]);
        }));
      for (size_t i = 0; i < answers.size(); ++i)
        EXPECT_EQ(answers[i].get(), alone[i % names.size()]) << per_batch << " " << i;
    }
  }
}

// A draft's rows are verified with the adapter of their request, and its answers give no draft to
// requests of another.
TEST_F(Adapters, AnswersWithDraftTokensAreThoseWithout) {
  const std::vector<std::string> names = {"", "a", "b", "c"};
  const auto answers = [&](Engine& engine) {
    std::vector<std::future<std::vector<TokenId>>> running;
    for (int i = 0; i < 24; ++i)
      running.push_back(std::async(std::launch::async, [&, i] {
        GenerateRequest repeating = request(names[static_cast<size_t>(i) % names.size()], 96);
        for (TokenId token = 0; token < 40; ++token)
          repeating.input_ids.push_back(20 + token % (4 + i / 4));
        return engine.generate(repeating)->output_ids;
      }));
    std::vector<std::vector<TokenId>> out;
    for (auto& one : running) out.push_back(one.get());
    return out;
  };
  auto plain =
      start({.compute = {.num_threads = 2}, .speculation = {.speculative_algorithm = "none"}});
  auto drafting =
      start({.compute = {.num_threads = 2}, .speculation = {.speculative_algorithm = "NGRAM"}});
  ASSERT_TRUE(plain && drafting);
  const auto want = answers(*plain);
  // How long a step takes decides whether draft tokens pay, so a round may have none.
  for (int round = 0; round < 100 && drafting->stats().speculation.drafted_tokens == 0; ++round)
    EXPECT_EQ(answers(*drafting), want) << round;
  EXPECT_GT(drafting->stats().speculation.drafted_tokens, 0);
  EXPECT_EQ(plain->stats().speculation.drafted_tokens, 0);
}

TEST_F(Adapters, PrefixesAreCachedForEachAdapterByItself) {
  auto engine = start();
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->generate(request("a"))->stats.cached_tokens, 0);
  EXPECT_EQ(engine->generate(request("b"))->stats.cached_tokens, 0);
  EXPECT_EQ(engine->generate(request(""))->stats.cached_tokens, 0);
  EXPECT_EQ(engine->generate(request("a"))->stats.cached_tokens, 7);
}

// A key that a request states cannot reach another adapter's prefixes.
TEST_F(Adapters, NamespacesOfAdaptersAreOutOfReach) {
  EXPECT_EQ(namespace_of_adapter(kNoAdapter, "key"), "key");
  const std::string of_one = namespace_of_adapter(1, "key");
  EXPECT_NE(of_one, namespace_of_adapter(kNoAdapter, of_one));
  EXPECT_NE(of_one, namespace_of_adapter(11, "key"));
  EXPECT_NE(namespace_of_adapter(1, std::string("\0002\0k", 4)), namespace_of_adapter(2, "k"));
}

TEST_F(Adapters, NamespacesAreReadAgain) {
  for (const std::string_view key : {std::string_view(), std::string_view("key", 3),
                                     std::string_view("\0", 1), std::string_view("\0001\0k", 4)})
    for (const AdapterId id : {kNoAdapter, AdapterId{1}, AdapterId{42}}) {
      const std::string marked = namespace_of_adapter(id, key);
      const AdapterNamespace read = adapter_of_namespace(marked);
      EXPECT_EQ(read.id, id);
      EXPECT_EQ(read.cache_namespace, id == kNoAdapter ? marked : key);
    }
}

// Events of the cache state an adapter as requests do, by its name.
TEST_F(Adapters, EventsNameTheAdapterOfAPrefix) {
  auto engine = start({.cache = {.num_cache_events = 100}});
  ASSERT_NE(engine, nullptr);
  for (const char* name : {"a", "", "b"}) {
    GenerateRequest asked = request(name);
    asked.extra_key = "key";
    ASSERT_TRUE(engine->generate(std::move(asked)));
  }
  std::vector<std::string> names;
  const Result<CacheEvents> read = engine->read_cache(0, 100);
  ASSERT_TRUE(read) << read.error().to_string();
  for (const CacheEvent& event : read->events) {
    if (!event.parent.empty()) continue;
    names.push_back(event.adapter);
    EXPECT_EQ(event.cache_namespace, "key");
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a", "", "b"}));
}

TEST_F(Adapters, AreLoadedAndUnloadedWhileItRuns) {
  auto engine = start({.lora = {.lora_paths = {path(1).string()}, .max_loaded_loras = 2}});
  ASSERT_NE(engine, nullptr);
  const auto first = ids_of(*engine, "adapter1");
  const auto info = engine->load_adapter("x", path(2));
  ASSERT_TRUE(info) << info.error().to_string();
  EXPECT_EQ(info->rank, 4);
  const auto of_two = ids_of(*engine, "x");
  EXPECT_EQ(engine->load_adapter("x", path(3)).error().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine->unload_adapter("adapter1").ok());
  EXPECT_EQ(engine->load_adapter("x", path(3)).error().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(engine->unload_adapter("adapter1").code(), StatusCode::kNotFound);
  EXPECT_THAT(
      engine->generate(request("adapter1")).error().to_string(),
      HasSubstr("lora_path or model: no adapter 'adapter1' is loaded: it has never been loaded, "
                "or was unloaded; there is x"));
  // The same name with other weights finds nothing of the former's keys and values.
  EXPECT_TRUE(engine->unload_adapter("x").ok());
  ASSERT_TRUE(engine->load_adapter("x", path(1)));
  EXPECT_EQ(ids_of(*engine, "x"), first);
  EXPECT_NE(first, of_two);
  ASSERT_EQ(engine->adapters().size(), 1u);
  EXPECT_EQ(engine->adapters()[0].name, "x");
  // A request lets go of its adapter after its last event.
  for (int i = 0; i < 2000 && engine->adapters()[0].num_requests != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(engine->adapters()[0].num_requests, 0);
}

TEST_F(Adapters, TheirBytesTogetherAreBounded) {
  auto engine = start({.lora = {.lora_paths = {stated("a", 1)}}});
  ASSERT_NE(engine, nullptr);
  EXPECT_GE(engine->config().lora.max_lora_bytes, int64_t{64} << 20);
  const int64_t used = engine->adapters()[0].info.size_bytes;
  const auto file =
      static_cast<int64_t>(std::filesystem::file_size(path(2) / "adapter_model.safetensors"));
  auto tight = start({.lora = {.lora_paths = {stated("a", 1)},
                               .max_lora_bytes = std::max(used, file) + std::min(used, file) / 2}});
  ASSERT_NE(tight, nullptr);
  const auto refused = tight->load_adapter("b", path(2));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("--max-lora-bytes"));
  EXPECT_EQ(tight->adapters().size(), 1u);
  EXPECT_TRUE(tight->unload_adapter("a").ok());
  EXPECT_TRUE(tight->load_adapter("b", path(2)));
}

TEST_F(Adapters, UnloadingWaitsForRequestsThatRun) {
  auto engine = start();
  ASSERT_NE(engine, nullptr);
  std::atomic<bool> ended{false};
  std::atomic<int> num_tokens{0};
  ASSERT_TRUE(engine->submit(request("a", 100), [&](TokenEvent&& event) {
    num_tokens += static_cast<int>(event.ids.size());
    if (event.finish) ended = true;
  }));
  EXPECT_TRUE(engine->unload_adapter("a").ok());
  EXPECT_TRUE(ended);
  EXPECT_EQ(num_tokens, 100);
}

TEST_F(Adapters, WhatDoesNotFitIsRefused) {
  auto plain = load_golden(kModel, {});
  ASSERT_NE(plain, nullptr);
  EXPECT_THAT(plain->generate(request("a")).error().to_string(), HasSubstr("set --enable-lora"));
  EXPECT_EQ(plain->load_adapter("a", path(1)).error().code(), StatusCode::kFailedPrecondition);
  auto engine = start({.lora = {.max_lora_rank = 8}});
  ASSERT_NE(engine, nullptr);
  EXPECT_THAT(engine->load_adapter("a:b", path(1)).error().to_string(), HasSubstr("no colon"));
  EXPECT_EQ(engine->load_adapter("d", folder_ / "none").error().code(), StatusCode::kNotFound);
  EXPECT_EQ(engine->adapters().size(), 3u);  // what failed has left no trace
  const EngineConfig bad{.model = {.model_path = kModels / kModel, .skip_tokenizer_init = true},
                         .compute = {.device = "cpu"},
                         .lora = {.lora_paths = {stated("a", 1)}, .max_lora_rank = 2}};
  const auto none = Engine::create(bad);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().to_string(), HasSubstr("the rank 4 is above the 2 of --max-lora-rank"));
}

}  // namespace
}  // namespace espalier
