// Whole engines with tiers: answers are those without, whatever the tiers have; a new engine finds
// what an earlier one left on disk.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <thread>

#include "base/rng.h"
#include "engine/testing/flaky_store.h"
#include "engine/testing/test_engine.h"
#include "engine/testing/test_tiers.h"
#include "engine/tiers/cached_prefixes.h"
#include "seams/forward_batch.h"
#include "tiers/test_redis.h"
#include "tiers/test_s3.h"

namespace espalier {
namespace {

class TiersEngineTest : public testing::Test {
 protected:
  TiersEngineTest() {
    std::string text = std::filesystem::temp_directory_path() / "espalier-tiers-XXXXXX";
    folder_ = mkdtemp(text.data());
  }
  ~TiersEngineTest() override {
    engine_.reset();
    std::filesystem::remove_all(folder_);
  }

  EngineConfig config() const {
    EngineConfig c;
    c.cache.max_total_tokens = 400;
    c.cache.page_size = 4;
    c.tiers.enable_hierarchical_cache = true;
    c.tiers.hicache_storage_backend = "file";
    c.tiers.hicache_storage_path = folder_;
    c.tiers.hicache_disk_size_gb = 0.02;
    return c;
  }
  void start(const EngineConfig& config, MakeTiers make_tiers = nullptr) {
    engine_.reset();
    auto executor = std::make_unique<NullExecutor>(
        NullExecutorConfig{.vocab_size = kByteVocabSize, .page_size = config.cache.page_size});
    device_ = executor.get();
    EngineConfig c = config;
    c.model.skip_tokenizer_init = c.check_invariants = true;
    c.sampling.random_seed = 1;
    Engine::Parts parts{.executor = std::move(executor),
                        .info = {.vocab_size = kByteVocabSize, .context_length = 380},
                        .make_tiers = std::move(make_tiers)};
    auto engine = Engine::create(c, std::move(parts));
    ASSERT_TRUE(engine) << engine.error().to_string();
    engine_ = std::move(*engine);
  }

  static std::vector<TokenId> prompt(TokenId first, int count) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < count; ++i) tokens.push_back((first + i * 7) % 250);
    return tokens;
  }
  // The answer must be the one that the definition gives; returns what was cached.
  RequestStats ask(const std::vector<TokenId>& tokens, std::string key = "") {
    GenerateRequest request{.input_ids = tokens, .extra_key = std::move(key)};
    request.sampling.max_new_tokens = 6;
    request.sampling.ignore_eos = true;
    const auto answer = engine_->generate(std::move(request));
    EXPECT_TRUE(answer) << answer.error().to_string();
    if (!answer) return {};
    std::vector<TokenId> history = tokens;
    for (const TokenId id : answer->output_ids) {
      EXPECT_EQ(id,
                NullExecutor::uniform_token(NullExecutor::hash_history(history), kByteVocabSize));
      history.push_back(id);
    }
    EXPECT_EQ(answer->output_ids.size(), 6u);
    return answer->stats;
  }
  // An engine that ends stores what it has put.
  void restart(const EngineConfig& c) { start(c); }

  std::filesystem::path folder_;
  NullExecutor* device_ = nullptr;
  std::unique_ptr<Engine> engine_;
};

TEST_F(TiersEngineTest, ARestartedEngineFindsWhatItHadOnDisk) {
  start(config());
  const std::vector<TokenId> tokens = prompt(1, 203);
  EXPECT_EQ(ask(tokens).cached_tokens, 0);
  restart(config());
  const RequestStats stats = ask(tokens);
  EXPECT_EQ(stats.cached_tokens, 200);
  EXPECT_EQ(stats.cached_tokens_storage, 200);
  EXPECT_EQ(stats.cached_tokens_host, 0);
  EXPECT_EQ(ask(tokens).cached_tokens_storage, 0) << "it is on the device now";
  EXPECT_EQ(ask(tokens).cached_tokens, 200);
  // A store counts a page once its thread has handed it over, which may be after the answer.
  const auto found = [&] { return engine_->stats().tiers.stores.at(0).store.found; };
  for (int i = 0; i < 1000 && found() < 50; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const EngineStats all = engine_->stats();
  EXPECT_EQ(all.tokens.cached_storage, 200);
  EXPECT_EQ(all.tiers.loads, 1);
  ASSERT_EQ(all.tiers.stores.size(), 1u);
  EXPECT_EQ(all.tiers.stores[0].kind, "disk");
  EXPECT_EQ(all.tiers.stores[0].store.found, 50);
}

TEST_F(TiersEngineTest, TenantsAndModelsShareNothing) {
  start(config());
  const std::vector<TokenId> tokens = prompt(1, 101);
  ask(tokens, "tenant");
  restart(config());
  EXPECT_EQ(ask(tokens).cached_tokens, 0);
  EXPECT_EQ(ask(tokens, "tenant").cached_tokens, 100);
  EngineConfig other = config();
  other.model.json_model_override_args =
      R"({"rope_theta": 1})";  // another model, as fingerprints go
  restart(other);
  EXPECT_EQ(ask(tokens, "tenant").cached_tokens, 0);
  EngineConfig pages = config();
  pages.cache.page_size = 2;
  restart(pages);
  EXPECT_EQ(ask(tokens, "tenant").cached_tokens, 0);
}

TEST_F(TiersEngineTest, PrefixesThatTheDeviceEvictsComeBack) {
  for (const char* policy : {"write_through", "write_through_selective", "write_back"}) {
    SCOPED_TRACE(policy);
    EngineConfig c = config();
    c.tiers.hicache_write_policy = policy;
    c.tiers.hicache_size_gb = 0.001;
    start(c);
    for (int round = 0; round < 3; ++round)
      for (TokenId first = 0; first < 5; ++first) {  // twice as many tokens as the device has
        const RequestStats stats = ask(prompt(first, 160), policy);
        if (round < 2) {
          ask(prompt(first, 160), policy);  // what is used again is selected
          continue;
        }
        EXPECT_GE(stats.cached_tokens, 156);
      }
    const EngineStats stats = engine_->stats();
    EXPECT_GT(stats.tokens.cached_host, 0);
    EXPECT_EQ(stats.tiers.loads_late, 0);
    EXPECT_TRUE(engine_->flush_cache().ok());
    EXPECT_EQ(engine_->stats().tiers.stores.at(0).store.num_pages, 0);
  }
}

// While one request waits for its slow load, others run; aborted it frees everything, a beam search
// too.
TEST_F(TiersEngineTest, OthersRunWhileOneIsLoading) {
  FlakyStore* store = nullptr;
  const MakeTiers make_tiers = [&](const EngineConfig& c, const ModelInfo&,
                                   const PageNameScope& scope, Executor& executor,
                                   const Clock& clock) -> Result<std::unique_ptr<KvTiers>> {
    KvTiers::Parts parts{.copier = executor.page_copier(), .clock = &clock};
    auto slow = std::make_unique<FlakyStore>(FlakyStore::Options{
        .page_bytes = parts.copier->page_bytes(), .delay_max = std::chrono::milliseconds(400)});
    store = slow.get();
    parts.storage = std::move(slow);
    return std::make_unique<KvTiers>(
        KvTiersConfig{.page_size = c.cache.page_size,
                      .num_device_pages = c.cache.max_total_tokens / c.cache.page_size,
                      .name_scope = scope},
        std::move(parts));
  };
  start(config(), make_tiers);
  ask(prompt(1, 101));
  for (const TokenId fresh : {50, 150, 200}) {  // of prompts that no tier has
    const bool aborts = fresh > 50, searches = fresh == 200;
    for (TokenId i = 0; i < 6; ++i) ask(prompt(fresh + i, 100));  // evict the slow one's prefix
    const int64_t loads = engine_->stats().tiers.loads;
    Collector loading;
    GenerateRequest request{.rid = "slow", .input_ids = prompt(1, 101)};
    request.sampling.max_new_tokens = 6;
    request.sampling.use_beam_search = searches;
    if (searches) request.sampling.beam_width = 2;
    ASSERT_TRUE(engine_->submit(std::move(request), loading.sink()));
    for (TokenId i = 10; i < (aborts ? 11 : 30); ++i) ask(prompt(fresh + i, 30));
    if (aborts) engine_->abort("slow", Engine::AbortScope::kExact);
    ASSERT_TRUE(loading.wait_end());
    EXPECT_EQ(loading.finish_type() == FinishReason::Type::kAbort, aborts);
    EXPECT_EQ(engine_->stats().memory.kv_tokens_running, 0);
    EXPECT_EQ(engine_->stats().tiers.loads, loads + 1);
  }
  EXPECT_GT(store->stats().stored, 0);
}

// While the engine is paused a request waits, and its pages come to the host's memory.
TEST_F(TiersEngineTest, PagesAreFetchedWhileARequestWaits) {
  EngineConfig c = config();
  c.tiers.hicache_size_gb = 0.001;
  start(c);
  const std::vector<TokenId> tokens = prompt(1, 203);
  ask(tokens);
  restart(c);
  ASSERT_TRUE(engine_->pause_generation(Engine::PauseMode::kInPlace).ok());
  Collector waiting;
  GenerateRequest request{.input_ids = tokens};
  request.sampling.max_new_tokens = 6;
  request.sampling.ignore_eos = true;
  ASSERT_TRUE(engine_->submit(std::move(request), waiting.sink()));
  const auto stats = [&] { return engine_->stats().tiers; };
  while (stats().prefetch.pages_fetched < 50) std::this_thread::yield();
  EXPECT_EQ(stats().prefetch.pages_started, 50);
  EXPECT_EQ(stats().loads, 0) << "it was admitted before";
  ASSERT_TRUE(engine_->continue_generation().ok());
  ASSERT_TRUE(waiting.wait_end());
  EXPECT_EQ(engine_->stats().tokens.cached_host, 200);
  EXPECT_EQ(engine_->stats().tokens.cached_storage, 0);
}

class RedisEngineTest : public TiersEngineTest {
 protected:
  EngineConfig redis_config(const TestRedis& redis) const {
    EngineConfig c = config();
    c.tiers.hicache_storage_backend = "redis";
    c.tiers.redis = redis.server();
    c.tiers.redis.lookup_timeout = c.tiers.redis.transfer_timeout = std::chrono::seconds(30);
    return c;
  }
};

// Engines that share nothing but a Redis server; the second finds what the first has computed.
TEST_F(RedisEngineTest, EnginesShareAServer) {
  ESP_SKIP_WITHOUT_REDIS();
  const TestRedis redis;
  start(redis_config(redis));
  const std::vector<TokenId> tokens = prompt(1, 203);
  EXPECT_EQ(ask(tokens, "tenant").cached_tokens, 0);
  restart(redis_config(redis));
  EXPECT_EQ(ask(tokens).cached_tokens, 0) << "another tenant";
  EXPECT_EQ(ask(tokens, "tenant").cached_tokens_storage, 200);
  std::vector<TokenId> other = tokens;
  other[102] = 251;
  EXPECT_EQ(ask(other, "tenant").cached_tokens, 100);
  EngineConfig model = redis_config(redis);
  model.model.json_model_override_args = R"({"rope_theta": 1})";
  restart(model);
  EXPECT_EQ(ask(tokens, "tenant").cached_tokens, 0);
  EXPECT_EQ(engine_->stats().tiers.stores.at(0).kind, "redis");
  EXPECT_EQ(engine_->stats().tiers.stores.at(0).store.cut_offs, 0);
}

// Beside a folder, nearer pages go first; a server that dies changes no answer.
TEST_F(RedisEngineTest, AServerDiesBehindADisk) {
  ESP_SKIP_WITHOUT_REDIS();
  TestRedis redis;
  EngineConfig c = redis_config(redis);
  c.tiers.hicache_storage_backend = "file,redis";
  c.tiers.hicache_size_gb = 0.001;
  start(c);
  ask(prompt(1, 203));
  restart(c);
  EXPECT_EQ(ask(prompt(1, 203)).cached_tokens, 200);
  const auto stores = engine_->stats().tiers.stores;
  ASSERT_EQ(stores.size(), 3u);
  EXPECT_EQ(stores[1].kind, "disk");
  EXPECT_EQ(stores[2].kind, "redis");
  EXPECT_EQ(stores[2].store.found, 0);
  redis.stop();
  for (TokenId first = 20; first < 30; ++first) ask(prompt(first, 150));
  restart(c);  // without a server
  EXPECT_EQ(ask(prompt(1, 203)).cached_tokens, 200);
  EXPECT_TRUE(engine_->stats().tiers.stores[2].store.is_cut_off);
}

TEST_F(RedisEngineTest, StorageIsAttachedAndDetached) {
  ESP_SKIP_WITHOUT_REDIS();
  const TestRedis redis;
  EngineConfig c = redis_config(redis);
  start(c);
  const std::vector<TokenId> tokens = prompt(1, 203);
  ask(tokens);
  c.tiers.hicache_storage_backend = "none";
  c.tiers.hicache_size_gb = 0.001;
  restart(c);
  using Action = StorageRequest::Action;
  EXPECT_TRUE(engine_->storage({}).value().empty());
  EXPECT_EQ(ask(tokens).cached_tokens, 0);
  ASSERT_TRUE(engine_->flush_cache().ok());
  const StorageRequest attach{
      .action = Action::kAttach, .backend = "redis", .redis = c.tiers.redis};
  const auto attached = engine_->storage(attach);
  ASSERT_TRUE(attached) << attached.error().to_string();
  ASSERT_EQ(attached->size(), 1u);
  EXPECT_EQ((*attached)[0].backend, "redis");
  EXPECT_EQ((*attached)[0].problem, "");
  EXPECT_EQ(ask(tokens).cached_tokens, 200);
  EXPECT_EQ(engine_->storage(attach).error().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine_->storage({.action = Action::kAttach, .backend = "file"}).value().size(), 2u);
  ASSERT_TRUE(engine_->storage({.action = Action::kClear, .backend = "redis"}));
  EXPECT_EQ(engine_->storage({.action = Action::kDetach, .backend = "redis"}).value().size(), 1u);
  EXPECT_EQ(engine_->storage({.action = Action::kDetach}).value().size(), 0u);
  EXPECT_FALSE(engine_->storage({.action = Action::kDetach, .backend = "redis"}));
  EXPECT_EQ(engine_->storage({.action = Action::kAttach, .backend = "tape"}).error().code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(engine_->flush_cache().ok());
  EXPECT_EQ(ask(tokens).cached_tokens, 0);
}

// Engines that share nothing but a bucket, beside a folder and attached while one runs.
TEST_F(TiersEngineTest, EnginesShareABucket) {
  TestS3 s3;
  EngineConfig c = config();
  c.tiers.hicache_storage_backend = "s3";
  c.tiers.s3 = s3.server();
  c.tiers.s3.lookup_timeout = c.tiers.s3.transfer_timeout = std::chrono::seconds(30);
  start(c);
  const std::vector<TokenId> tokens = prompt(1, 203);
  EXPECT_EQ(ask(tokens, "tenant").cached_tokens, 0);
  restart(c);
  EXPECT_EQ(ask(tokens).cached_tokens, 0) << "another tenant";
  EXPECT_EQ(ask(tokens, "tenant").cached_tokens_storage, 200);
  EXPECT_EQ(engine_->stats().tiers.stores.at(0).kind, "s3");
  EXPECT_EQ(engine_->stats().tiers.stores.at(0).store.cut_offs, 0);
  EngineConfig plain = c;
  plain.tiers.hicache_storage_backend = "file";
  restart(plain);
  EXPECT_EQ(ask(tokens, "tenant").cached_tokens, 0);
  ASSERT_TRUE(engine_->flush_cache().ok());
  using Action = StorageRequest::Action;
  const StorageRequest attach{.action = Action::kAttach, .backend = "s3", .s3 = c.tiers.s3};
  ASSERT_EQ(engine_->storage(attach).value().size(), 2u);
  const auto again = engine_->storage({.action = Action::kAttach, .backend = "redis"});
  EXPECT_EQ(again.error().message(), "s3 is attached already: detach it first");
  EXPECT_FALSE(engine_->storage({.action = Action::kDetach, .backend = "redis"}));
  EXPECT_EQ(engine_->storage({.action = Action::kDetach, .backend = "s3"}).value().size(), 1u);
  StorageRequest nameless = attach;
  nameless.s3.bucket = "";
  EXPECT_EQ(engine_->storage(nameless).error().code(), StatusCode::kInvalidArgument);
}

class CacheFileTest : public TiersEngineTest {
 protected:
  EngineConfig host_config() const {
    EngineConfig c = config();
    c.tiers.hicache_storage_backend = "none";
    c.tiers.hicache_size_gb = 0.002;
    c.cache.max_total_tokens = 1600;
    return c;
  }
  std::vector<CacheNode> nodes() {
    std::vector<CacheNode> all;
    for (uint32_t from = 1; from != 0;) {
      std::promise<CacheNodes> read;
      engine_->read_cache({.from = from, .num_max = 3, .tokens_max = 1 << 20},
                          [&](Result<CacheNodes> part) { read.set_value(*std::move(part)); });
      CacheNodes part = read.get_future().get();
      std::ranges::move(part.nodes, std::back_inserter(all));
      from = part.next;
    }
    return all;
  }
  Result<StorageReport> export_cache(PrefixFilter filter = {}) {
    const auto reports = engine_->storage({.action = StorageRequest::Action::kExport,
                                           .file = folder_ / "cache.kv",
                                           .nodes = nodes(),
                                           .filter = std::move(filter)});
    if (!reports) return fail(reports.error());
    return reports->front();
  }
  Result<StorageReport> import_cache() {
    const auto reports =
        engine_->storage({.action = StorageRequest::Action::kImport, .file = folder_ / "cache.kv"});
    if (!reports) return fail(reports.error());
    return reports->front();
  }
};

// A second engine, which shares nothing with the first but the file, loads what the first computed.
TEST_F(CacheFileTest, PrefixesGoToAnotherEngine) {
  start(host_config());
  const std::vector<TokenId> one = prompt(1, 203);
  std::vector<TokenId> two = one;
  two[102] = 251;  // behind 25 pages of 4 tokens
  ask(one);
  ask(two);
  ask(one, "tenant");
  const StorageReport written = export_cache().value();
  EXPECT_EQ(written.num_missing, 0);
  EXPECT_GE(written.num_tokens, 200 + 100 + 200) << "what prefixes share is written once";
  EXPECT_LT(written.num_tokens, 200 + 200 + 200);
  restart(host_config());
  EXPECT_EQ(ask(two).cached_tokens, 0);
  ASSERT_TRUE(engine_->flush_cache().ok());
  const StorageReport taken = import_cache().value();
  EXPECT_EQ(taken.num_pages, written.num_pages);
  EXPECT_EQ(taken.num_missing, 0);
  EXPECT_EQ(taken.num_bytes, written.num_bytes);
  EXPECT_EQ(ask(one).cached_tokens_host, 200);
  EXPECT_GE(ask(two).cached_tokens, 200);
  EXPECT_EQ(ask(one, "another").cached_tokens, 0);
  EXPECT_EQ(ask(one, "tenant").cached_tokens_host, 200);
}

// A page that several prefixes share and no tier has is missing once.
TEST_F(CacheFileTest, CountsWhatNoTierHas) {
  start(config());
  std::vector<TokenId> tokens = prompt(1, 203);
  ask(tokens);
  tokens[102] = 251;
  ask(tokens);
  const StorageReport written = export_cache().value();
  EXPECT_EQ(written.num_missing, 0);
  ASSERT_TRUE(engine_->storage({.action = StorageRequest::Action::kDetach}));
  const StorageReport report = export_cache().value();
  EXPECT_EQ(report.num_pages, 0);
  EXPECT_EQ(report.num_missing, written.num_pages);
}

TEST_F(CacheFileTest, PrefixesAreChosen) {
  start(host_config());
  const std::vector<TokenId> one = prompt(1, 83), two = prompt(2, 83);
  ask(one);
  ask(two);
  ask(two, "tenant");
  const auto tokens = [&](PrefixFilter filter) {
    return export_cache(std::move(filter)).value().num_tokens;
  };
  const int64_t all = tokens({}), of_tenant = tokens({.extra_key = "tenant"});
  EXPECT_GE(of_tenant, 80);
  EXPECT_EQ(tokens({.extra_key = ""}), all - of_tenant);
  EXPECT_EQ(tokens({.extra_key = "another"}), 0);
  EXPECT_EQ(tokens({.tokens = {one.begin(), one.begin() + 7}}), all - 2 * of_tenant);
  EXPECT_EQ(tokens({.tokens = {7, 7, 7}}), 0);
  EXPECT_EQ(tokens({.extra_key = "tenant", .tokens = {two.begin(), two.begin() + 1}}), of_tenant);
}

// Storage gets imported pages, too, and the host's memory no more than it has room for.
TEST_F(CacheFileTest, EveryTierTakesThem) {
  start(host_config());
  for (TokenId first = 1; first < 6; ++first) ask(prompt(first, 83));
  const int64_t num_pages = export_cache().value().num_pages;
  EngineConfig c = config();  // with a folder
  restart(c);
  EXPECT_EQ(import_cache().value().num_pages, num_pages);
  EXPECT_EQ(ask(prompt(3, 83)).cached_tokens_storage, 80);
  restart(c);
  EXPECT_EQ(ask(prompt(4, 83)).cached_tokens_storage, 80);
  EXPECT_GT(export_cache().value().num_pages, 20) << "from the folder";
  start(host_config());
  for (TokenId first = 1; first < 6; ++first) ask(prompt(first, 83));
  ASSERT_EQ(export_cache().value().num_pages, num_pages);
  EngineConfig small = host_config();
  const int64_t page_bytes = engine_->stats().tiers.stores[0].page_bytes;
  small.tiers.hicache_size_gb = 30.5e-9 * static_cast<double>(page_bytes);
  restart(small);
  const StorageReport part = import_cache().value();
  const int64_t room = engine_->stats().tiers.stores[0].store.num_pages_max;
  ASSERT_LT(room, num_pages);
  EXPECT_EQ(part.num_pages, room);
  EXPECT_EQ(part.num_missing, num_pages - room);
  EXPECT_GT(ask(prompt(1, 83)).cached_tokens_host, 0) << "the file's first pages are kept";
}

TEST_F(CacheFileTest, RefusesWhatDoesNotFit) {
  start(host_config());
  ask(prompt(1, 83));
  ASSERT_GT(export_cache().value().num_pages, 0);
  EngineConfig model = host_config();
  model.model.json_model_override_args = R"({"rope_theta": 1})";
  restart(model);
  const Status other = import_cache().error();
  EXPECT_EQ(other.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(other.message().find("model"), std::string::npos) << other.message();
  EXPECT_EQ(engine_->stats().tiers.stores[0].store.num_pages, 0);
  restart(host_config());
  const auto path = folder_ / "cache.kv";
  const auto size = std::filesystem::file_size(path);
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Rng rng(seed);
    const auto at = static_cast<std::streamoff>(rng.below(size));
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char byte = static_cast<char>(file.get());
    const auto put = [&](char value) {
      file.seekp(at);
      file.put(value);
      file.flush();
    };
    put(static_cast<char>(byte ^ (1 << rng.below(8))));
    ASSERT_FALSE(import_cache()) << "seed " << seed;
    put(byte);
  }
  EXPECT_EQ(engine_->stats().tiers.stores[0].store.num_pages, 0);
  EXPECT_TRUE(import_cache());
  EngineConfig back = host_config();
  back.tiers.hicache_write_policy = "write_back";
  restart(back);
  EXPECT_NE(export_cache().error().message().find("write_through"), std::string::npos);
  EngineConfig none = host_config();
  none.tiers.enable_hierarchical_cache = false;
  restart(none);
  EXPECT_NE(import_cache().error().message().find("--enable-hierarchical-cache"),
            std::string::npos);
}

// A tree that changes while it is read: what does not fit together is left out.
TEST(CachedPrefixes, AreReadFromNodes) {
  const auto prefixes = [](const std::vector<CacheNode>& nodes, const PrefixFilter& filter = {}) {
    std::vector<std::pair<std::string, std::vector<TokenId>>> out;
    for_each_prefix(nodes, filter, [&](std::string_view name, std::span<const TokenId> tokens) {
      out.emplace_back(name, std::vector<TokenId>(tokens.begin(), tokens.end()));
    });
    return out;
  };
  const CacheNode root{.number = 1, .name_space = "t"};
  const CacheNode inner{.number = 2, .parent = 1, .end = 2, .tokens = {5, 6}};
  const CacheNode leaf{.number = 3, .parent = 2, .end = 3, .tokens = {7}};
  const CacheNode other{.number = 4, .parent = 2, .end = 4, .tokens = {8, kFirstSpanKey}};
  const CacheNode lost{.number = 5, .parent = 9, .end = 3, .tokens = {8}};
  const CacheNode moved{.number = 6, .parent = 2, .end = 9, .tokens = {8}};
  const CacheNode first{.number = 7, .parent = 8, .end = 1, .tokens = {8}};
  const CacheNode second{.number = 8, .parent = 7, .end = 2, .tokens = {8}};
  const CacheNode own{.number = 10, .name_space = std::string("\0adapter", 8)};
  const CacheNode of_own{.number = 11, .parent = 10, .end = 1, .tokens = {8}};
  using Expected = std::vector<std::pair<std::string, std::vector<TokenId>>>;
  EXPECT_EQ(prefixes({root, inner, leaf, other, lost, moved, first, second, own, of_own}),
            (Expected{{"t", {5, 6, 7}}, {"t", {5, 6, 8}}}));
  EXPECT_EQ(prefixes({leaf, inner, root}, {.extra_key = ""}), Expected());
  EXPECT_EQ(prefixes({leaf, inner, root}, {.tokens = {5, 6, 7, 9}}), (Expected{{"t", {5, 6, 7}}}));
  EXPECT_EQ(prefixes({root}), Expected());
}

// On the CPU; cuda_tiers_engine_test.cc has the same on GPUs.
TEST(TiersOfModels, PrefixesComeBackFromTheHost) {
  for (const char* model : {"llama_untied_bias", "deepseek_v2"})
    expect_tiers_change_nothing(model, {.compute = {.device = "cpu"}});
  expect_tiers_change_nothing("llama_untied_bias", {.compute = {.device = "cpu", .tp_size = 2}});
}

TEST_F(TiersEngineTest, RefusesSettingsThatContradictEachOther) {
  const auto problem = [&](auto change) {
    EngineConfig c = config();
    change(c);
    c.model.skip_tokenizer_init = true;
    auto engine = Engine::create(
        c, Engine::Parts{.executor = std::make_unique<NullExecutor>(NullExecutorConfig{
                             .vocab_size = kByteVocabSize, .page_size = c.cache.page_size}),
                         .info = {.vocab_size = kByteVocabSize, .context_length = 380}});
    return engine ? std::string() : engine.error().message();
  };
  EXPECT_EQ(problem([](EngineConfig&) {}), "");
  EXPECT_NE(problem([](EngineConfig& c) {
              c.tiers.hicache_storage_backend = "none";
            }).find("--hicache-storage-backend file"),
            std::string::npos);
  EXPECT_NE(problem([](EngineConfig& c) { c.cache.disable_radix_cache = true; }).find("contradict"),
            std::string::npos);
  EXPECT_NE(
      problem([](EngineConfig& c) { c.tiers.hicache_write_policy = "never"; }).find("write_back"),
      std::string::npos);
  EXPECT_NE(
      problem([](EngineConfig& c) { c.tiers.hicache_storage_backend = "tape"; }).find("file,s3"),
      std::string::npos);
  EXPECT_NE(problem([](EngineConfig& c) {
              c.tiers.hicache_storage_prefetch_policy = "best_effort";
            }).find("--hicache-size"),
            std::string::npos);
  EXPECT_NE(problem([](EngineConfig& c) {
              c.tiers.hicache_storage_prefetch_policy = "never";
            }).find("wait_complete"),
            std::string::npos);
  EXPECT_NE(problem([](EngineConfig& c) {
              c.tiers.hicache_disk_size_gb = 1e-9;
            }).find("--hicache-disk-size"),
            std::string::npos);
  EXPECT_NE(problem([this](EngineConfig& c) {
              std::ofstream(folder_ / "file") << "no folder";
              c.tiers.hicache_storage_path = folder_ / "file";
            }).find("--hicache-storage-path"),
            std::string::npos);
}

}  // namespace
}  // namespace espalier
