#include "base/memory_account.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace espalier {
namespace {

TEST(MemoryAccount, RefusesWhatWouldPassItsLimit) {
  const auto account = std::make_shared<MemoryAccount>("bodies", 100);
  MemoryCharge first(account), second(account);
  EXPECT_TRUE(first.resize(60));
  EXPECT_FALSE(second.resize(41));
  EXPECT_EQ(second.bytes(), 0);
  EXPECT_TRUE(second.resize(40));
  EXPECT_EQ(account->used(), 100);
  EXPECT_EQ(account->refused_total(), 1);
  EXPECT_TRUE(first.resize(10));  // less is granted always
  EXPECT_TRUE(second.resize(90));
  first.release();
  EXPECT_EQ(account->used(), 90);
}

TEST(MemoryAccount, AChargeMovesWithItsBytesAndGivesThemBackOnce) {
  const auto account = std::make_shared<MemoryAccount>("bodies", 100);
  {
    MemoryCharge a(account);
    ASSERT_TRUE(a.resize(30));
    MemoryCharge b = std::move(a);
    EXPECT_EQ(b.bytes(), 30);
    MemoryCharge c(account);
    ASSERT_TRUE(c.resize(20));
    c = std::move(b);  // what c held goes back
    EXPECT_EQ(account->used(), 30);
  }
  EXPECT_EQ(account->used(), 0);
  MemoryCharge none;
  EXPECT_TRUE(none.resize(int64_t{1} << 60));
}

TEST(MemoryAccount, ThreadsNeverPassTheLimitTogether) {
  const auto account = std::make_shared<MemoryAccount>("bodies", 1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([account, t] {
      MemoryCharge charge(account);
      for (int i = 0; i < 20000; ++i) {
        const bool granted = charge.resize((i * 37 + t * 101) % 400);
        ASSERT_LE(account->used(), 1000) << granted;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(account->used(), 0);
}

}  // namespace
}  // namespace espalier
