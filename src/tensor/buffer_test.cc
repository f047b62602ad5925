#include "tensor/buffer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <utility>

namespace espalier {
namespace {

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(BufferTest, IsAlignedAndZeroAtEverySize) {
  for (size_t size : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{4097},
                      Buffer::kHugeBytes - 1, Buffer::kHugeBytes, Buffer::kHugeBytes + 1}) {
    auto buffer = Buffer::allocate(size);
    ASSERT_TRUE(buffer);
    EXPECT_EQ(buffer->size_bytes(), size);
    const size_t alignment = size >= Buffer::kHugeBytes ? Buffer::kHugeBytes : Buffer::kAlignment;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % alignment, 0u) << size;
    EXPECT_TRUE(std::all_of(buffer->data(), buffer->data() + size,
                            [](std::byte b) { return b == std::byte{0}; }));
    std::fill_n(buffer->data(), size, std::byte{1});  // all of it can be written
  }
}

TEST(BufferTest, LargeMemoryCostsNothingUntilItIsWritten) {
  const int64_t before = resident_bytes();
  auto buffer = Buffer::allocate(size_t{8} << 30);
  ASSERT_TRUE(buffer);
  EXPECT_LT(resident_bytes() - before, int64_t{64} << 20);
  buffer->as<uint8_t>()[(size_t{8} << 30) - 1] = 1;
  EXPECT_LT(resident_bytes() - before, int64_t{64} << 20);
}

TEST(BufferTest, MovesWithoutCopying) {
  auto buffer = Buffer::allocate(size_t{4} << 20);
  ASSERT_TRUE(buffer);
  std::byte* data = buffer->data();
  data[5] = std::byte{7};
  Buffer moved = std::move(*buffer);
  EXPECT_EQ(moved.data(), data);
  EXPECT_EQ(moved.data()[5], std::byte{7});
  Buffer assigned;
  assigned = std::move(moved);
  EXPECT_EQ(assigned.data(), data);
}

TEST(BufferTest, NoMemoryIsAnErrorThatSaysHowMuch) {
  auto buffer = Buffer::allocate(size_t{1} << 60);
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(buffer.error().message().find("MiB"), std::string::npos);
}

TEST(BufferTest, NothingAskedIsNothingHeld) {
  auto buffer = Buffer::allocate(0);
  ASSERT_TRUE(buffer);
  EXPECT_EQ(buffer->data(), nullptr);
  EXPECT_EQ(buffer->size_bytes(), 0u);
}

}  // namespace
}  // namespace espalier
