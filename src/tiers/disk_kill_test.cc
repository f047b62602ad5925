// A process that stores pages is killed (SIGKILL) at random times, again and again on one tier:
// what is read back is right or absent, and the tier goes on. ESPALIER_KILLS=1000 kills it more
// often.
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tiers/disk_page_store.h"
#include "tiers/test_pages.h"

namespace espalier {
namespace {

constexpr uint64_t kNumNames = 400;

DiskPageStoreConfig kill_config(const TestFolder& folder) {
  return {.folder = folder.path(),
          .scope = "model",
          .page_bytes = 9000,
          .size_bytes = 4096 + 256 * (12288 + 24),  // fewer than there are names: pages give way
          .write_buffer_bytes = 32 * 12288,
          .depth = 8};
}

// Opens the tier, reports it, and stores and erases pages until it is killed.
[[noreturn]] void store_for_ever(const TestFolder& folder, uint64_t seed, int ready) {
  DiskPageStoreConfig config = kill_config(folder);
  config.use_uring = seed % 2 == 0;
  config.use_direct_io = seed % 3 != 0;
  const auto store = DiskPageStore::open(config);
  if (!store || write(ready, "r", 1) != 1) _exit(1);
  Rng rng(seed);
  while (true) {
    const uint64_t begin = rng.below(kNumNames);
    std::vector<PageName> names;
    for (uint64_t i = begin; i < begin + 6; ++i) names.push_back(test_page_name(i));
    put_pages(**store, names);
    if (rng.below(6) == 0) (*store)->erase(names);
    if (rng.below(4) == 0) (*store)->flush();
  }
}

TEST(DiskKill, WhatAKilledProcessLeavesIsRightOrAbsent) {
  const TestFolder folder;
  const char* const setting = std::getenv("ESPALIER_KILLS");
  const int num_kills = setting == nullptr ? 100 : std::atoi(setting);
  std::vector<PageName> names;
  for (uint64_t i = 0; i < kNumNames; ++i) names.push_back(test_page_name(i));
  Rng rng(11);
  int64_t num_found = 0, num_corrupt = 0, num_early = 0;
  for (int i = 0; i < num_kills; ++i) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();  // this process has no other thread now
    ASSERT_GE(child, 0);
    if (child == 0) store_for_ever(folder, static_cast<uint64_t>(i), ready[1]);
    close(ready[1]);
    char byte = 0;
    // Most are killed while they store, some while they open the tier.
    const bool is_early = rng.below(8) == 0;
    if (!is_early) {
      ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the child could not open the tier";
    }
    num_early += is_early ? 1 : 0;
    usleep(static_cast<useconds_t>(rng.below(4000)));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    close(ready[0]);
    const auto store = DiskPageStore::open(kill_config(folder));
    ASSERT_TRUE(store.has_value()) << store.error().message();
    num_found += static_cast<int64_t>(count_right_pages(**store, names));
    num_corrupt += (*store)->stats().corrupt;
    ASSERT_EQ(put_pages(**store, {names[0]}), 1u);
    (*store)->flush();
    ASSERT_EQ(count_right_pages(**store, {names[0]}), 1u);
    if (testing::Test::HasFailure()) return;
  }
  std::printf("%d kills (%lld while opening): %lld pages right, %lld half written\n", num_kills,
              static_cast<long long>(num_early), static_cast<long long>(num_found),
              static_cast<long long>(num_corrupt));
  EXPECT_GT(num_found, num_kills * 20) << "too little was stored for the test to mean something";
}

}  // namespace
}  // namespace espalier
