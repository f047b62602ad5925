// The engine's small parts, each alone: settings, system info, the registry.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/config.h"
#include "engine/requests/registry.h"
#include "engine/startup/system_info.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;
using Scope = Engine::AbortScope;

// 64 KiB of KV a token in bfloat16; 1 GiB of weights.
ModelInfo info() {
  return {.vocab_size = 1000,
          .context_length = 2048,
          .num_layers = 16,
          .num_kv_heads = 8,
          .head_dim = 128,
          .num_parameters = 1 << 29,
          .weight_bytes = 1 << 30};
}
constexpr SystemInfo kSystem{.available_bytes = int64_t{10} << 30, .num_cpus = 4};

TEST(Resolve, LeavesNothingToChoose) {
  const auto c = resolve({}, info(), kSystem);
  ASSERT_TRUE(c) << c.error().to_string();
  EXPECT_EQ(c->model.context_length, 2048);
  EXPECT_EQ(c->schedule.max_running_requests, 256);
  EXPECT_EQ(c->schedule.max_queued_requests, 4096);
  EXPECT_EQ(c->schedule.chunked_prefill_size, 512);
  EXPECT_EQ(c->schedule.max_prefill_tokens, 512);
  EXPECT_EQ(c->compute.num_threads, 4);
  EXPECT_EQ(c->model.tokenizer_threads, 2);
  EXPECT_EQ(c->grammar.grammar_mask_threads, 1);
  EXPECT_NE(c->sampling.random_seed, 0u);
  EXPECT_EQ(c->cache.max_total_tokens, 5 * 16384);  // 0.6 of 10 GiB, less the weights
}

TEST(Resolve, PoolIsNoLargerThanAllRequestsCouldUse) {
  EXPECT_EQ(
      resolve({.schedule = {.max_running_requests = 4}}, info(), kSystem)->cache.max_total_tokens,
      4 * 2048);
  EXPECT_EQ(resolve({.model = {.context_length = 100}, .schedule = {.max_running_requests = 4}},
                    info(), kSystem)
                ->cache.max_total_tokens,
            400);
  EXPECT_EQ(resolve({.cache = {.max_total_tokens = 1000, .page_size = 64}}, info(), kSystem)
                ->cache.max_total_tokens,
            960);
}

TEST(Resolve, IsItsOwnFixedPoint) {
  const auto once = resolve({}, info(), kSystem);
  const auto twice = resolve(*once, info(), kSystem);
  ASSERT_TRUE(twice) << twice.error().to_string();
  EXPECT_EQ(twice->cache.max_total_tokens, once->cache.max_total_tokens);
  EXPECT_EQ(twice->sampling.random_seed, once->sampling.random_seed);
}

// Threads that share a processor wait for each other: more of them only ever compute slower.
TEST(Resolve, NoMoreThreadsThanProcessorsCompute) {
  for (const auto& [asked, taken] : {std::pair{0, 4}, {1, 1}, {4, 4}, {5, 4}, {4096, 4}})
    EXPECT_EQ(resolve({.compute = {.num_threads = asked}}, info(), kSystem)->compute.num_threads,
              taken)
        << asked;
}

TEST(Resolve, KvTypeFollowsTheWeights) {
  EXPECT_EQ(*resolve_kv_type({}, info()), KvType::kBFloat16);
  ModelInfo float32 = info();
  float32.weight_bytes *= 2;
  EXPECT_EQ(*resolve_kv_type({}, float32), KvType::kFloat32);
  EXPECT_EQ(*resolve_kv_type({.cache = {.kv_cache_dtype = "bfloat16"}}, float32),
            KvType::kBFloat16);
  EXPECT_EQ(*resolve_kv_type({.cache = {.kv_cache_dtype = "fp8_e4m3"}}, info()),
            KvType::kFloat8E4M3);
  EXPECT_FALSE(resolve_kv_type({.cache = {.kv_cache_dtype = "int3"}}, float32));
}

TEST(Resolve, KeysOfOneByteLeaveRoomForTwiceTheTokens) {
  SystemInfo small = kSystem;
  small.available_bytes = (info().weight_bytes + (int64_t{1} << 30)) / 6 * 10;  // 0.6 are used
  const auto wide = resolve({}, info(), small);
  const auto narrow = resolve({.cache = {.kv_cache_dtype = "fp8_e4m3"}}, info(), small);
  ASSERT_TRUE(wide && narrow);
  EXPECT_NEAR(narrow->cache.max_total_tokens, 2 * wide->cache.max_total_tokens, 2);
}

// What a GPU holds of keys and values is its own requests'; on the CPU all ranks share the memory.
TEST(Resolve, RanksWithRequestsOfTheirOwnHoldAsManyTokensEach) {
  const auto tokens = [](const std::string& device, bool own, int32_t page_size) {
    const EngineConfig config{
        .compute = {.device = device, .tp_size = 4, .enable_dp_attention = own},
        .cache = {.page_size = page_size}};
    const auto c = resolve(config, info(), kSystem);
    EXPECT_TRUE(c) << c.error().to_string();
    return c ? c->cache.max_total_tokens : 0;
  };
  EXPECT_EQ(tokens("cuda", false, 1), 5 * 16384);
  EXPECT_EQ(tokens("cuda", true, 1), 4 * 5 * 16384);
  EXPECT_EQ(tokens("cpu", true, 1), 5 * 16384);
  EXPECT_EQ(tokens("cpu", true, 1000), 80 * 1000);
  const auto small = resolve({.compute = {.tp_size = 4, .enable_dp_attention = true},
                              .schedule = {.max_running_requests = 3, .chunked_prefill_size = 2}},
                             info(), kSystem);
  ASSERT_TRUE(small);
  EXPECT_EQ(small->schedule.max_running_requests, 4);
  EXPECT_EQ(small->schedule.chunked_prefill_size, 4);
}

TEST(Resolve, ContradictionsSayWhatToDo) {
  const auto message = [](const EngineConfig& c) {
    const auto r = resolve(c, info(), kSystem);
    EXPECT_FALSE(r.has_value());
    return r ? std::string() : r.error().message();
  };
  EXPECT_THAT(message({.model = {.context_length = 4096}}),
              AllOf(HasSubstr("4096"), HasSubstr("2048")));
  EXPECT_THAT(message({.cache = {.max_total_tokens = 1000000}}),
              AllOf(HasSubstr("1000000"), HasSubstr("81920"), HasSubstr("mem_fraction_static")));
  EXPECT_THAT(message({.cache = {.mem_fraction_static = 0.05}}),
              AllOf(HasSubstr("0.05"), HasSubstr("raise it")));
  EXPECT_THAT(message({.cache = {.mem_fraction_static = 0.10001, .page_size = 16}}),
              AllOf(HasSubstr("page of 16 tokens"), HasSubstr("mem_fraction_static")));
  EXPECT_THAT(message({.model = {.context_length = 1}}), HasSubstr("context_length is 1"));
  EXPECT_THAT(message({.cache = {.mem_fraction_static = 1.5}}), HasSubstr("(0, 1]"));
  EXPECT_THAT(message({.cache = {.max_total_tokens = 10, .page_size = 16}}),
              HasSubstr("page_size"));
  EXPECT_THAT(message({.cache = {.page_size = 0}}), HasSubstr("page_size"));
  EXPECT_THAT(message({.schedule = {.max_running_requests = -1}}),
              HasSubstr("max_running_requests"));
  EXPECT_THAT(message({.schedule = {.chunked_prefill_size = -2}}),
              HasSubstr("chunked_prefill_size"));
  EXPECT_THAT(message({.schedule = {.schedule_policy = "magic"}}), HasSubstr("magic"));
  EXPECT_THAT(message({.schedule = {.schedule_conservativeness = 0}}),
              HasSubstr("conservativeness"));
  EXPECT_THAT(message({.sampling = {.sampling_defaults = "mine"}}), HasSubstr("mine"));
  EXPECT_THAT(message({.model = {.tokenizer_path = "/t", .skip_tokenizer_init = true}}),
              HasSubstr("contradict"));
}

TEST(Resolve, AStepHasRoomForAPictureWhoseRowsSeeEachOther) {
  ModelInfo seeing = info();
  seeing.images = ImagesInfo{.placeholder = 9, .num_rows = 256, .width = 2, .bidirectional = true};
  EXPECT_TRUE(resolve({.schedule = {.chunked_prefill_size = 256}}, seeing, kSystem));
  const auto small = resolve({.schedule = {.chunked_prefill_size = 255}}, seeing, kSystem);
  ASSERT_FALSE(small);
  EXPECT_THAT(small.error().message(), AllOf(HasSubstr("255"), HasSubstr("256 tokens")));
}

TEST(Resolve, MinusOneLiftsTheChunk) {
  EXPECT_EQ(resolve({.schedule = {.chunked_prefill_size = -1}}, info(), kSystem)
                ->schedule.chunked_prefill_size,
            2048);
  EXPECT_EQ(resolve({.schedule = {.chunked_prefill_size = 3}}, info(), kSystem)
                ->schedule.chunked_prefill_size,
            3);
}

class SystemInfoTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / ("machine_" + std::to_string(getpid()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const fs::path& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  fs::path root_;
};

TEST_F(SystemInfoTest, TakesWhatTheSystemSays) {
  write("proc/meminfo", "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:   5000 kB\n");
  const SystemInfo m = read_system_info(root_);
  EXPECT_EQ(m.available_bytes, 5000 * 1024);
  EXPECT_GE(m.num_cpus, 1);
}

TEST_F(SystemInfoTest, TakesTheTightestGroupOfVersionTwo) {
  write("proc/meminfo", "MemAvailable: 50000000 kB\n");
  write("proc/self/cgroup", "0::/user/app\n");
  write("sys/fs/cgroup/memory.max", "max\n");
  write("sys/fs/cgroup/memory.current", "123\n");
  write("sys/fs/cgroup/user/memory.max", "1000000\n");
  write("sys/fs/cgroup/user/memory.current", "400000\n");
  write("sys/fs/cgroup/user/memory.stat", "anon 1\nfile 2\ninactive_file 50000\n");
  write("sys/fs/cgroup/user/app/memory.max", "max\n");
  write("sys/fs/cgroup/user/app/memory.current", "5\n");
  EXPECT_EQ(read_system_info(root_).available_bytes, 650000);
}

TEST_F(SystemInfoTest, TakesTheGroupOfVersionOne) {
  write("proc/meminfo", "MemAvailable: 50000000 kB\n");
  write("proc/self/cgroup", "5:cpu,memory:/box\n4:pids:/box\n");
  write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2000000\n");
  write("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "500000\n");
  write("sys/fs/cgroup/memory/box/memory.stat", "cache 7\ntotal_inactive_file 1000\n");
  EXPECT_EQ(read_system_info(root_).available_bytes, 1501000);
}

TEST_F(SystemInfoTest, IsModestWhenNothingIsKnown) {
  EXPECT_EQ(read_system_info(root_).available_bytes, int64_t{4} << 30);
}

TEST(Registry, ScopesOfAbort) {
  RequestRegistry r(100);
  const RequestId a = r.admit({.rid = "a"})->id, ab = r.admit({.rid = "ab"})->id,
                  b = r.admit({.rid = "b"})->id;
  EXPECT_THAT(r.take_for_abort("a", Scope::kExact), ElementsAre(a));
  EXPECT_THAT(r.take_for_abort("a", Scope::kPrefix), ElementsAre(ab));  // a was meant before
  EXPECT_THAT(r.take_for_abort("c", Scope::kPrefix), ElementsAre());
  EXPECT_THAT(r.take_for_abort("", Scope::kAll), ElementsAre(b));
}

TEST(Registry, ALowerPriorityGivesWayToAHigherOne) {
  RequestRegistry r(4, QueueEvictionRule::kLowestPriority);
  const auto admit = [&](const char* rid, int32_t priority, int32_t n = 1) {
    return r.admit({.rid = rid, .num_samples = n, .priority = priority});
  };
  ASSERT_TRUE(admit("runs", 0));
  r.on_scheduled("runs");
  const RequestId old = admit("old", 1)->id, young = admit("young", 1)->id;
  ASSERT_TRUE(admit("equal", 2));
  EXPECT_EQ(admit("no", 1).error().message(), "The request queue is full.");  // of its own priority
  EXPECT_THAT(admit("one", 2)->evicted, ElementsAre(young));
  EXPECT_EQ(admit("many", 2, 3).error().code(),
            StatusCode::kResourceExhausted);                             // only old gives way
  EXPECT_THAT(r.take_for_abort("young", Scope::kExact), ElementsAre());  // it ends anyway
  r.release_sample("young");
  r.release_rid("young");
  EXPECT_THAT(admit("two", 2)->evicted, ElementsAre(old));
  EXPECT_EQ(r.num_samples(), 5);  // old has not ended yet
  EXPECT_EQ(admit("three", 2).error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(admit("four", 3, 3)->evicted,
              testing::SizeIs(3));  // equal, one, two; never what runs
}

// All seven arrive before the scheduler has seen the first.
TEST(Registry, WhatRunsAsItArrivesGivesWayToNone) {
  RequestRegistry r(4, QueueEvictionRule::kLowestPriority, 1);
  std::vector<RequestId> ids;
  for (int32_t priority = 1; priority <= 7; ++priority) {
    const auto admitted = r.admit({.rid = std::to_string(priority), .priority = priority});
    ASSERT_TRUE(admitted) << admitted.error().message();
    ids.push_back(admitted->id);
    if (priority <= 4) {
      EXPECT_THAT(admitted->evicted, ElementsAre());
    } else {
      EXPECT_THAT(admitted->evicted, ElementsAre(ids[static_cast<size_t>(priority) - 4]));
    }
  }
  EXPECT_EQ(r.admit({.rid = "low", .priority = 3}).error().code(), StatusCode::kResourceExhausted);
}

TEST(Registry, TheLargestShareGivesWay) {
  RequestRegistry r(6, QueueEvictionRule::kLargestShare);
  const auto admit = [&](const char* rid, const char* share, int32_t n = 1) {
    return r.admit({.rid = rid, .num_samples = n, .share = share});
  };
  ASSERT_TRUE(admit("a1", "a", 2));
  r.on_scheduled("a1");
  const RequestId a2 = admit("a2", "a", 2)->id, a3 = admit("a3", "a")->id;
  ASSERT_TRUE(admit("b1", "b"));
  EXPECT_EQ(admit("a4", "a").error().code(), StatusCode::kResourceExhausted);  // its own share
  EXPECT_THAT(admit("c1", "c")->evicted, ElementsAre(a3));                     // the newest of a
  EXPECT_THAT(admit("c2", "c")->evicted, ElementsAre(a2));  // frees two: a keeps 2, c has 2
  EXPECT_FALSE(admit("c3", "c")->evicted.size());
  EXPECT_EQ(admit("c4", "c").error().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(admit("b2", "b", 3).error().code(), StatusCode::kResourceExhausted);
}

TEST(Registry, SettlesWhenEveryCallerHasBeenNotified) {
  RequestRegistry r(2);
  ASSERT_TRUE(r.admit({.rid = "a", .num_samples = 2}));
  EXPECT_EQ(r.admit({.rid = "b"}).error().code(), StatusCode::kResourceExhausted);
  r.release_sample("a");
  ASSERT_TRUE(r.admit({.rid = "b"}));
  r.release_rid("a");
  r.settle();
  EXPECT_FALSE(r.wait_settled(std::chrono::milliseconds(1)));
  r.settle();
  EXPECT_TRUE(r.wait_settled(std::chrono::milliseconds(1)));
  r.close();
  EXPECT_EQ(r.admit({.rid = "c"}).error().code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace espalier
