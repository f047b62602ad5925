// Weights are replaced while no step runs, a request runs with one version, and a failure leaves
// the old weights or, where it cannot, refuses requests until the next update.
#include "engine/weights/weight_control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/executor/null_executor.h"
#include "engine/testing/test_engine.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// Fails to come back while `fails` is set.
struct FakeMemory final : ReleasableMemory {
  Result<int64_t> release_memory() override {
    EXPECT_FALSE(released.exchange(true)) << "twice";
    return 1000;
  }
  Status restore_memory() override {
    EXPECT_TRUE(released);
    if (fails) return error(StatusCode::kDataLoss, "the disk is gone");
    released = false;
    return Status();
  }
  std::atomic<bool> released{false}, fails{false};
};

// Weights of a null device: tokens of version v are v plus a hash. Paths say what goes wrong.
class FakeWeights final : public ModelWeights, public ReleasableMemory {
 public:
  FakeWeights(std::atomic<int>& version, NullExecutor& device,
              const std::function<void()>& during_commit, FakeMemory& memory)
      : version_(version), device_(device), during_commit_(during_commit), memory_(memory) {}

  Result<int64_t> release_memory() override { return memory_.release_memory(); }
  Status restore_memory() override { return memory_.restore_memory(); }

  Status prepare(const std::filesystem::path& path) override {
    path_ = path.filename().string();
    if (path_ == "missing") return error(StatusCode::kNotFound, "there is no {}", path_);
    return Status();
  }
  Status prepare_some(const std::filesystem::path& file) override { return prepare(file); }

  Status commit() override {
    const int64_t steps = device_.num_steps();
    std::this_thread::yield();
    if (during_commit_) during_commit_();
    EXPECT_EQ(device_.num_steps(), device_.num_waits()) << "a step runs";
    EXPECT_EQ(device_.num_steps(), steps) << "a step began";
    if (path_ == "unreadable") return error(StatusCode::kDataLoss, "the disk is gone");
    whole_ = path_ != "half";
    if (!whole_) return error(StatusCode::kDataLoss, "the disk is gone half way");
    version_ = std::atoi(path_.c_str());
    return Status();
  }
  Result<std::vector<float>> read(const std::string&, int64_t) override {
    return std::vector<float>{static_cast<float>(version_)};
  }
  bool is_whole() const override { return whole_; }
  void drop() override { path_.clear(); }

 private:
  std::atomic<int>& version_;
  NullExecutor& device_;
  const std::function<void()>& during_commit_;
  FakeMemory& memory_;
  std::string path_;
  bool whole_ = true;
};

class WeightControlTest : public testing::Test {
 protected:
  WeightControlTest() {
    std::string text = std::filesystem::temp_directory_path() / "espalier-weights-XXXXXX";
    folder_ = mkdtemp(text.data());
  }
  ~WeightControlTest() override {
    engine_.reset();
    std::filesystem::remove_all(folder_);
  }

  void start(EngineConfig config = {}) {
    auto device = std::make_unique<NullExecutor>(NullExecutorConfig{
        .vocab_size = kByteVocabSize,
        .page_size = 1,
        .next_token = [this](uint64_t) -> Result<TokenId> { return version_.load(); }});
    auto weights = std::make_unique<FakeWeights>(version_, *device, during_commit_, memory_);
    config.model.skip_tokenizer_init = config.check_invariants = true;
    config.cache.max_total_tokens = 2000;
    config.sampling.random_seed = 1;
    auto engine =
        Engine::create(config, {.executor = std::move(device),
                                .info = {.vocab_size = kByteVocabSize, .context_length = 1000},
                                .weights = std::move(weights)});
    ASSERT_TRUE(engine) << engine.error().to_string();
    engine_ = std::move(*engine);
  }
  // A folder of this name, whose contents give it a fingerprint of its own.
  std::filesystem::path checkpoint(const std::string& name) const {
    const std::filesystem::path path = folder_ / "checkpoints" / name;
    std::filesystem::create_directories(path);
    std::ofstream(path / "config.json") << name;
    return path;
  }
  Result<WeightUpdateReport> update(const std::string& name, bool abort = false) {
    return engine_->weights()->update(
        {.path = checkpoint(name), .abort_requests = abort, .version = "v" + name});
  }
  static GenerateRequest request(int tokens, TokenId first = 7) {
    GenerateRequest out{.input_ids = {first, 8, 9, 10, 11}};
    out.sampling = {.max_new_tokens = tokens, .temperature = 0.0f, .ignore_eos = true};
    return out;
  }

  std::atomic<int> version_{1};
  std::function<void()> during_commit_;
  FakeMemory memory_;
  std::filesystem::path folder_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(WeightControlTest, AnswersAreOfTheWeightsThatTheySay) {
  start();
  engine_->weights()->name_first("v1");
  const auto before = engine_->generate(request(4));
  ASSERT_TRUE(before);
  EXPECT_EQ(before->output_ids, std::vector<TokenId>(4, 1));
  EXPECT_EQ(engine_->weights()->version_of(before->stats.weight_epoch), "v1");
  EXPECT_EQ(engine_->generate(request(4))->stats.cached_tokens, 4);
  const auto report = update("2");
  ASSERT_TRUE(report) << report.error().to_string();
  EXPECT_TRUE(report->cache_flushed);
  const auto after = engine_->generate(request(4));
  EXPECT_EQ(after->output_ids, std::vector<TokenId>(4, 2));
  EXPECT_EQ(after->stats.cached_tokens, 0) << "keys and values of other weights";
  EXPECT_EQ(engine_->weights()->version_of(after->stats.weight_epoch), "v2");
  EXPECT_EQ(engine_->weights()->version_of(before->stats.weight_epoch), "v1");
}

TEST_F(WeightControlTest, WithoutAFlushTheCacheServesTheNewWeights) {
  start();
  ASSERT_TRUE(engine_->generate(request(4)));
  ASSERT_TRUE(engine_->weights()->update({.path = checkpoint("2"), .flush_cache = false}));
  EXPECT_EQ(engine_->generate(request(4))->stats.cached_tokens, 4);
  EXPECT_EQ(engine_->weights()->version(), "default") << "no name was given";
}

TEST_F(WeightControlTest, AFailureThatLeavesTheWeightsWholeChangesNothing) {
  start();
  for (const char* path : {"missing", "unreadable"}) {
    EXPECT_FALSE(update(path)) << path;
    const auto answer = engine_->generate(request(3));
    ASSERT_TRUE(answer) << path;
    EXPECT_EQ(answer->output_ids, std::vector<TokenId>(3, 1));
    EXPECT_EQ(engine_->weights()->version(), "default");
  }
}

TEST_F(WeightControlTest, AMixtureServesNobodyUntilItIsReplaced) {
  start();
  const auto failed = update("half");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), StatusCode::kInternal);
  for (int i = 0; i < 2; ++i) {
    const auto answer = engine_->generate(request(3));
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code(), StatusCode::kUnavailable);
    EXPECT_THAT(answer.error().message(), HasSubstr("/update_weights_from_disk"));
    EXPECT_FALSE(update("missing"));
    EXPECT_FALSE(engine_->weights()->update({.path = checkpoint("2"), .some = true}))
        << "some tensors make no mixture whole";
  }
  ASSERT_TRUE(update("3"));
  EXPECT_EQ(engine_->generate(request(3))->output_ids, std::vector<TokenId>(3, 3));
}

constexpr MemoryPart kWeightsOnly[] = {MemoryPart::kWeights};
constexpr MemoryPart kBoth[] = {MemoryPart::kKvCache, MemoryPart::kWeights};

TEST_F(WeightControlTest, ReleasedWeightsServeNobodyUntilTheyAreBack) {
  start();
  WeightControl& control = *engine_->weights();
  for (int i = 0; i < 2; ++i) {  // again changes nothing
    const auto report = control.release_memory(kWeightsOnly);
    ASSERT_TRUE(report) << report.error().to_string();
    EXPECT_EQ(report->released_bytes, 1000);
    EXPECT_TRUE(memory_.released);
    const auto refused = engine_->generate(request(3));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), StatusCode::kUnavailable);
    EXPECT_THAT(refused.error().message(), HasSubstr("(weights)"));
    EXPECT_THAT(refused.error().message(), HasSubstr("/resume_memory_occupation"));
  }
  const auto updated = update("2");
  ASSERT_FALSE(updated);
  EXPECT_EQ(updated.error().code(), StatusCode::kFailedPrecondition);
  for (const StatusCode code :
       {control.read("a", 1).error().code(), control.digests().error().code(),
        control.take_snapshot().code(), control.compare().error().code()})
    EXPECT_EQ(code, StatusCode::kFailedPrecondition);
  EXPECT_TRUE(control.set_version("named").ok());
  EXPECT_FALSE(engine_->generate(request(3))) << "a name brings no weights back";
  memory_.fails = true;
  const auto failed = control.resume_memory(kBoth);
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message(), HasSubstr("the disk is gone"));
  EXPECT_FALSE(engine_->generate(request(3)));
  memory_.fails = false;
  const auto resumed = control.resume_memory(kWeightsOnly);
  ASSERT_TRUE(resumed) << resumed.error().to_string();
  EXPECT_TRUE(resumed->released.empty());
  EXPECT_TRUE(control.read("a", 1));
  EXPECT_EQ(engine_->generate(request(3))->output_ids, std::vector<TokenId>(3, 1));
  ASSERT_TRUE(update("2"));
  EXPECT_EQ(engine_->generate(request(3))->output_ids, std::vector<TokenId>(3, 2));
}

TEST_F(WeightControlTest, MemoryIsReleasedWhenNoRequestIsThere) {
  start();
  ASSERT_TRUE(engine_->pause_generation(Engine::PauseMode::kInPlace).ok());
  Collector waiting;
  ASSERT_TRUE(engine_->submit(request(3), waiting.sink()));
  while (engine_->stats().requests.num_waiting == 0) std::this_thread::yield();
  const auto refused = engine_->weights()->release_memory(kWeightsOnly);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.error().message(), HasSubstr("1 requests"));
  EXPECT_FALSE(memory_.released);
  ASSERT_TRUE(engine_->continue_generation().ok());
  ASSERT_TRUE(waiting.wait_end());
  EXPECT_EQ(waiting.result().output_ids, std::vector<TokenId>(3, 1));
}

TEST_F(WeightControlTest, MemoryThatStaysIsRefused) {
  start();  // a null device has no memory of keys and values
  const auto refused = engine_->weights()->release_memory(kBoth);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kUnimplemented);
  EXPECT_FALSE(memory_.released) << "all or none";
  EXPECT_TRUE(engine_->generate(request(3)));
}

TEST(ReleasedMemory, KnowsItsParts) {
  FakeMemory kv, weights;
  ReleasedMemory memory(&kv, &weights, Status());
  EXPECT_TRUE(memory.check(kBoth).ok());
  EXPECT_TRUE(memory.refusal().ok());
  ASSERT_TRUE(memory.release(kBoth).ok());
  EXPECT_TRUE(kv.released && weights.released);
  EXPECT_EQ(memory.report().released_bytes, 2000);
  EXPECT_THAT(memory.refusal().message(), HasSubstr("(kv_cache, weights)"));
  weights.fails = true;
  EXPECT_FALSE(memory.restore(kBoth).ok());
  EXPECT_TRUE(kv.released) << "weights come first";
  weights.fails = false;
  ASSERT_TRUE(memory.restore(kWeightsOnly).ok());
  EXPECT_TRUE(memory.any());
  EXPECT_THAT(memory.refusal().message(), HasSubstr("(kv_cache)"));
  ASSERT_TRUE(memory.restore(kBoth).ok());
  EXPECT_FALSE(memory.any() || kv.released);
  for (const MemoryPart part : kBoth) EXPECT_EQ(parse_memory_part(name_of(part)), part);
  EXPECT_FALSE(parse_memory_part("weight"));
}

TEST_F(WeightControlTest, RequestsThatWaitForWeightsCanBeAborted) {
  start();
  ASSERT_TRUE(engine_->pause_generation(Engine::PauseMode::kInPlace).ok());
  Collector running;
  ASSERT_TRUE(engine_->submit(request(3), running.sink()));
  ASSERT_TRUE(update("2")) << "a paused engine is updated as it is";
  Collector waiting;
  GenerateRequest second = request(3);
  second.rid = "waiting";
  ASSERT_TRUE(engine_->submit(std::move(second), waiting.sink()));
  engine_->abort("waiting", Engine::AbortScope::kExact);
  ASSERT_TRUE(waiting.wait_end());
  ASSERT_TRUE(engine_->continue_generation().ok());
  ASSERT_TRUE(running.wait_end());
  EXPECT_EQ(running.result().output_ids, std::vector<TokenId>(3, 2));
}

// The abort of a request that waits for weights, and their release, come to the loop at once.
TEST_F(WeightControlTest, ARequestThatIsAbortedAtTheReleaseEndsOnce) {
  start();
  Collector aborted, blocking;
  std::promise<void> blocked, go;
  during_commit_ = [&] {
    GenerateRequest first = request(3), second = request(3);
    first.rid = "aborted";
    second.rid = "blocking";
    ASSERT_TRUE(engine_->submit(std::move(first), aborted.sink()));
    ASSERT_TRUE(engine_->submit(std::move(second), [&](TokenEvent&& event) {
      blocked.set_value();  // its only event: the loop waits here
      go.get_future().wait();
      blocking.add(std::move(event));
    }));
    engine_->abort("blocking", Engine::AbortScope::kExact);
    blocked.get_future().wait();
    engine_->abort("aborted", Engine::AbortScope::kExact);
  };
  ASSERT_TRUE(engine_->weights()->update({.path = checkpoint("2"), .flush_cache = false}));
  during_commit_ = nullptr;
  go.set_value();
  ASSERT_TRUE(aborted.wait_end());
  ASSERT_TRUE(blocking.wait_end());
  EXPECT_EQ(aborted.result().finish.type, FinishReason::Type::kAbort);
  EXPECT_TRUE(aborted.result().output_ids.empty());
  EXPECT_EQ(engine_->generate(request(3))->output_ids, std::vector<TokenId>(3, 2));
}

TEST_F(WeightControlTest, AMixtureEndsTheRequestsOfAPausedEngine) {
  start();
  ASSERT_TRUE(engine_->pause_generation(Engine::PauseMode::kInPlace).ok());
  Collector paused;
  ASSERT_TRUE(engine_->submit(request(3), paused.sink()));
  EXPECT_FALSE(update("half"));
  ASSERT_TRUE(paused.wait_end());
  EXPECT_EQ(paused.result().finish.type, FinishReason::Type::kError);
  EXPECT_EQ(paused.result().finish.status.code(), StatusCode::kUnavailable);
  ASSERT_TRUE(engine_->continue_generation().ok());
}

TEST_F(WeightControlTest, EventsOfTheCacheNameTheKeysOfRequests) {
  EngineConfig config;
  config.cache.num_cache_events = 100;
  start(config);
  ASSERT_TRUE(update("2"));
  const std::vector<std::string> keys = {"", "key", "\1key", "\1wkey\1"};
  for (size_t i = 0; i < keys.size(); ++i) {
    GenerateRequest of_key = request(2);
    of_key.extra_key = keys[i];
    ASSERT_TRUE(engine_->generate(std::move(of_key)));
  }
  const auto read = engine_->read_cache(1, 100);
  ASSERT_TRUE(read);
  std::set<std::string> named;
  for (const CacheEvent& event : read->events)
    if (event.type == CacheEvent::Type::kStored) named.insert(event.cache_namespace);
  EXPECT_EQ(named, std::set<std::string>(keys.begin(), keys.end()));
}

TEST(WeightEpoch, NamespacesAreReadBack) {
  const WeightEpoch first, second{.epoch = 1, .cache_prefix = cache_prefix_of_weights("2")};
  for (const std::string_view key : {"", "k", "\1", "\1\1w", "\1w2\1k"})
    for (const std::string& mark : {std::string(), std::string("\0"
                                                               "7\0",
                                                               3)}) {
      const std::string of_key = mark + std::string(key);
      EXPECT_NE(namespace_of_weights(first, of_key), namespace_of_weights(second, of_key));
      EXPECT_EQ(namespace_without_weights(namespace_of_weights(first, of_key)), of_key);
      EXPECT_EQ(namespace_without_weights(namespace_of_weights(second, of_key)), of_key);
    }
}

// What old weights have stored is not found, and what is stored beyond the engine is not mixed.
TEST_F(WeightControlTest, TiersKeepVersionsApart) {
  EngineConfig config;
  config.tiers.enable_hierarchical_cache = true;
  config.tiers.hicache_storage_backend = "file";
  config.tiers.hicache_storage_path = folder_;
  config.tiers.hicache_disk_size_gb = 0.02;
  start(config);
  ASSERT_TRUE(engine_->generate(request(40)));
  ASSERT_TRUE(update("2"));
  EXPECT_EQ(engine_->generate(request(4))->stats.cached_tokens, 0);
  const auto kept = engine_->weights()->update({.path = checkpoint("3"), .flush_cache = false});
  ASSERT_FALSE(kept);
  EXPECT_THAT(kept.error().message(), HasSubstr("flush_cache"));
  ASSERT_TRUE(engine_->pause_generation(Engine::PauseMode::kInPlace).ok());
  Collector waiting;
  ASSERT_TRUE(engine_->submit(request(400), waiting.sink()));
  while (engine_->stats().requests.num_waiting == 0) std::this_thread::yield();
  const auto paused = update("4");
  ASSERT_FALSE(paused);
  EXPECT_THAT(paused.error().message(), HasSubstr("paused"));
  ASSERT_TRUE(engine_->continue_generation().ok());
  ASSERT_TRUE(waiting.wait_end());
  EXPECT_EQ(waiting.result().output_ids, std::vector<TokenId>(400, 2));
}

// What new weights compute is stored as what the first ones did, and found again.
TEST_F(WeightControlTest, TiersServeNewWeightsToo) {
  EngineConfig config;
  config.tiers.enable_hierarchical_cache = true;
  config.tiers.hicache_storage_backend = "file";
  config.tiers.hicache_storage_path = folder_;
  config.tiers.hicache_disk_size_gb = 0.02;
  start(config);
  ASSERT_TRUE(update("2"));
  GenerateRequest longer = request(2);
  for (TokenId i = 0; i < 200; ++i) longer.input_ids.push_back(i);
  int32_t from_storage = 0;
  const SteadyClock clock;
  const TimePoint deadline = clock.now() + std::chrono::seconds(60);
  while (from_storage == 0 && clock.now() < deadline) {  // a page is written behind its request
    ASSERT_TRUE(engine_->flush_cache().ok());
    const auto answer = engine_->generate(longer);
    ASSERT_TRUE(answer);
    from_storage = answer->stats.cached_tokens_storage;
  }
  EXPECT_GT(from_storage, 0);
}

// Random updates, good and bad, beside threads that ask: each answer is whole of one version, the
// one that its epoch names.
TEST_F(WeightControlTest, UnderLoadNoAnswerIsMixed) {
  const char* const stated = std::getenv("ESPALIER_SIMULATION_SEEDS");
  const uint64_t seed =
      stated != nullptr ? std::strtoull(stated, nullptr, 10) : std::random_device()();
  SCOPED_TRACE("ESPALIER_SIMULATION_SEEDS=" + std::to_string(seed));
  start();
  engine_->weights()->name_first("v1");
  std::atomic<bool> stopped{false};
  std::atomic<int> num_answers{0};
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      Rng rng(seed + i);
      while (!stopped) {
        const auto answer = engine_->generate(
            request(static_cast<int>(rng.between(1, 30)), static_cast<TokenId>(rng.below(5))));
        ++num_answers;
        if (!answer) {
          const StatusCode code = answer.error().code();
          EXPECT_TRUE(code == StatusCode::kUnavailable || code == StatusCode::kAborted)
              << answer.error().to_string();
          continue;
        }
        if (answer->finish.type == FinishReason::Type::kAbort) continue;
        const std::string name = engine_->weights()->version_of(answer->stats.weight_epoch);
        for (const TokenId id : answer->output_ids)
          ASSERT_EQ("v" + std::to_string(id), name) << "of " << answer->output_ids.size();
      }
    });
  Rng rng(seed);
  for (int i = 0; i < 200; ++i) {
    const int before = num_answers;
    const uint64_t kind = rng.below(10);
    const std::string path = kind == 0   ? "missing"
                             : kind == 1 ? "unreadable"
                             : kind == 2 ? "half"
                                         : std::to_string(rng.between(1, 200));
    EXPECT_EQ(update(path, rng.below(8) == 0).has_value(), kind > 2);
    while (num_answers == before) std::this_thread::yield();
  }
  stopped = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace espalier
