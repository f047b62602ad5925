#include "engine/executor/ranks_page_copier.h"

#include <gtest/gtest.h>

#include <thread>

#include "engine/testing/byte_device.h"
#include "engine/testing/remote_copier.h"

namespace espalier {
namespace {

TEST(RanksPageCopier, APageIsTheRanksPartsOneBehindTheOther) {
  ByteDevice first(4, 8), second(4, 16);
  RemoteCopier slow(second, {.seed = 1, .delay_max = std::chrono::microseconds(200)});
  RanksPageCopier ranks({&first, &slow});
  ASSERT_EQ(ranks.page_bytes(), 24);
  first.set(2, 5);
  second.set(2, 6);
  std::vector<std::byte> bytes(24);
  ASSERT_TRUE(ranks.read_page(2, bytes).ok());
  for (size_t i = 0; i < 24; ++i) EXPECT_EQ(static_cast<int>(bytes[i]), i < 8 ? 5 : 6) << i;
  ASSERT_TRUE(ranks.write_page(3, bytes).ok());
  EXPECT_EQ(first.get(3), 5);
  EXPECT_EQ(second.get(3), 6);
}

TEST(RanksPageCopier, AFailureOfOneRankFailsTheTransfer) {
  ByteDevice first(4, 8), second(4, 8);
  RemoteCopier fails(second, {.fail_one_of = 1});
  RanksPageCopier ranks({&first, &fails});
  std::vector<std::byte> bytes(16);
  const Status status = ranks.read_page(2, bytes);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("rank 1"), std::string::npos);
}

TEST(RanksPageCopier, TransfersOfSeveralThreadsKeepApart) {
  ByteDevice first(8, 8), second(8, 8);
  RemoteCopier slow(second, {.seed = 2, .delay_max = std::chrono::microseconds(50)});
  RanksPageCopier ranks({&first, &slow});
  std::vector<std::thread> threads;
  for (PageId page = 0; page < 8; ++page)
    threads.emplace_back([&, page] {
      const std::vector<std::byte> from(16, static_cast<std::byte>(page + 1));
      std::vector<std::byte> to(16);
      for (int i = 0; i < 50; ++i) {
        const auto write = ranks.begin_write(page, from);
        EXPECT_TRUE(ranks.finish(write).ok());
        EXPECT_TRUE(ranks.read_page(page, to).ok());
        EXPECT_EQ(to, from);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace espalier
