#include "net/output_buffer.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace espalier::net {
namespace {

TEST(OutputBuffer, ChunksAStream) {
  OutputBuffer buffer(nullptr);
  buffer.start_stream();
  EXPECT_TRUE(buffer.append_to_stream("abc", true));
  EXPECT_TRUE(buffer.append_to_stream("defghijklmnopqrst", true));
  EXPECT_EQ(buffer.pending(), "3\r\nabc\r\n11\r\ndefghijklmnopqrst\r\n");
  EXPECT_TRUE(buffer.append_to_stream("x", false));
  EXPECT_TRUE(buffer.pending().ends_with("\r\nx"));
}

TEST(OutputBuffer, RandomWritesComeOutInOrder) {
  const uint64_t seed = 3;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  OutputBuffer buffer(nullptr);
  std::string expected, written;
  for (int i = 0; i < 2000; ++i) {
    if (rng.below(2) == 0) {
      const std::string bytes(rng.below(100), static_cast<char>('a' + rng.below(26)));
      buffer.tail() += bytes;
      expected += bytes;
    } else {
      const size_t num_bytes = rng.below(buffer.num_pending() + 1);
      written += buffer.pending().substr(0, num_bytes);
      buffer.consume(num_bytes);
    }
    ASSERT_EQ(written.size() + buffer.num_pending(), expected.size());
  }
  EXPECT_EQ(written + std::string(buffer.pending()), expected);
}

TEST(OutputBuffer, TheLastWriteIsBesideTheBound) {
  OutputBuffer buffer(nullptr);
  buffer.start_stream();
  buffer.append_to_stream(std::string(1000, 'x'), false);
  EXPECT_FALSE(buffer.exceeds(10));
  buffer.append_to_stream("y", false);
  EXPECT_TRUE(buffer.exceeds(10));
  buffer.consume(995);
  EXPECT_FALSE(buffer.exceeds(10));
}

TEST(OutputBuffer, OnlyLargeOutputsAreCharged) {
  auto account = std::make_shared<MemoryAccount>("outputs", 1 << 20);
  OutputBuffer buffer(account);
  EXPECT_TRUE(buffer.append_to_stream(std::string(1000, 'x'), false));
  EXPECT_EQ(account->used(), 0);
  EXPECT_TRUE(buffer.append_to_stream(std::string(500'000, 'x'), false));
  EXPECT_GE(account->used(), 501'000);
  EXPECT_FALSE(buffer.append_to_stream(std::string(1 << 20, 'x'), false));
  buffer.consume(buffer.num_pending());
  buffer.shrink();
  EXPECT_EQ(account->used(), 0);
  EXPECT_TRUE(buffer.reserve(OutputBuffer::kUncharged));
  EXPECT_EQ(account->used(), 0);
  EXPECT_FALSE(buffer.reserve(2 << 20));
}

}  // namespace
}  // namespace espalier::net
