#include "tensor/cuda/releasable_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tensor/cuda/device.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"
#include "tensor/cuda/testing.h"

namespace espalier::cuda {
namespace {

TEST(ReleasableBuffer, IsReleasedAndRestoredAtItsAddress) {
  ESPALIER_REQUIRE_DEVICE();
  constexpr int64_t kBytes = (int64_t{512} << 20) + 12345;
  auto buffer = ReleasableBuffer::allocate(kBytes, "a test");
  ASSERT_TRUE(buffer) << buffer.error().to_string();
  ReleasableBuffer& memory = **buffer;
  EXPECT_EQ(memory.size_bytes(), kBytes);
  std::byte* const address = memory.data();
  const auto stream = Stream::create();
  ASSERT_TRUE(stream);
  const auto host = PinnedBuffer::allocate(kBytes, "a test");
  ASSERT_TRUE(host);
  for (int round = 0; round < 5; ++round) {
    EXPECT_FALSE(memory.is_released());
    ASSERT_TRUE(fill_bytes(memory.data(), 0x40 + round, kBytes, *stream).ok());
    ASSERT_TRUE(copy_to_host(host->data(), memory.data(), kBytes, *stream).ok());
    ASSERT_TRUE(stream->synchronize().ok());
    EXPECT_EQ(host->data()[0], static_cast<std::byte>(0x40 + round));
    EXPECT_EQ(std::memcmp(host->data(), host->data() + 1, kBytes - 1), 0);
    const int64_t free_before = read_device_memory()->free_bytes;
    ASSERT_TRUE(memory.release().ok());
    EXPECT_TRUE(memory.is_released());
    EXPECT_GE(read_device_memory()->free_bytes - free_before, kBytes);
    const Status status = memory.restore();
    ASSERT_TRUE(status.ok()) << status.to_string();
    EXPECT_EQ(memory.data(), address);
  }
}

TEST(ReleasableBuffer, StaysReleasedWhereThereIsNoMemory) {
  ESPALIER_REQUIRE_DEVICE();
  auto most = ReleasableBuffer::allocate(read_device_memory()->total_bytes * 6 / 10, "most of it");
  ASSERT_TRUE(most) << most.error().to_string();
  ASSERT_TRUE((*most)->release().ok());
  auto other = ReleasableBuffer::allocate((*most)->size_bytes(), "another");
  ASSERT_TRUE(other) << other.error().to_string();
  const Status refused = (*most)->restore();
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), testing::HasSubstr("no device memory for most of it"));
  EXPECT_TRUE((*most)->is_released());
  other->reset();
  EXPECT_TRUE((*most)->restore().ok());
}

TEST(ReleasableBuffer, MayBeEmpty) {
  const auto empty = ReleasableBuffer::allocate(0, "nothing");
  ASSERT_TRUE(empty);
  EXPECT_EQ((*empty)->data(), nullptr);
  EXPECT_TRUE((*empty)->release().ok());
  EXPECT_TRUE((*empty)->restore().ok());
}

}  // namespace
}  // namespace espalier::cuda
