// The device layer on whatever this system has: a device, or a clear reason why there is none.
#include "tensor/cuda/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "tensor/cuda/error.h"
#include "tensor/cuda/memory.h"
#include "tensor/cuda/stream.h"
#include "tensor/cuda/testing.h"

namespace espalier::cuda {
namespace {

using ::testing::HasSubstr;

TEST(Device, IsThereOrTheMessageSaysWhatToDo) {
  const auto info = open_device();
  if (!info) {
    EXPECT_EQ(info.error().code(), StatusCode::kUnavailable);
    EXPECT_THAT(info.error().message(), HasSubstr("--device cpu"));
    return;
  }
  EXPECT_FALSE(info->name.empty());
  EXPECT_GE(info->compute_major, 8);
  const auto memory = read_device_memory();
  ASSERT_TRUE(memory) << memory.error().to_string();
  EXPECT_GT(memory->free_bytes, 0);
  EXPECT_LE(memory->free_bytes, memory->total_bytes);
}

TEST(Arena, LaysOutTheSameWithAndWithoutMemory) {
  alignas(Arena::kAlignment) std::byte block[2048];
  const auto lay_out = [](Arena& arena) {
    char* a = arena.take<char>(1);
    double* b = arena.take<double>(33);
    return std::pair(a, b);
  };
  Arena measure, real(block);
  EXPECT_EQ(lay_out(measure),
            std::pair(static_cast<char*>(nullptr), static_cast<double*>(nullptr)));
  const auto [a, b] = lay_out(real);
  EXPECT_EQ(measure.used_bytes(), real.used_bytes());
  EXPECT_EQ(real.used_bytes(), 256 + 512);  // 264 bytes of doubles take two pieces
  EXPECT_EQ(reinterpret_cast<std::byte*>(a), block);
  EXPECT_EQ(reinterpret_cast<std::byte*>(b), block + 256);
}

class OnDevice : public testing::Test {
 protected:
  void SetUp() override { ESPALIER_REQUIRE_DEVICE(); }
};

TEST_F(OnDevice, CopiesThereAndBackInTheOrderOfTheStream) {
  auto stream = Stream::create();
  ASSERT_TRUE(stream);
  auto host = PinnedBuffer::allocate(4096, "a test");
  auto device = DeviceBuffer::allocate(8192, "a test");
  ASSERT_TRUE(host && device);
  for (int i = 0; i < 4096; ++i) host->data()[i] = static_cast<std::byte>(i * 7);
  ASSERT_TRUE(copy_to_device(device->data() + 4096, host->data(), 4096, *stream).ok());
  ASSERT_TRUE(fill_bytes(device->data() + 4096, 0x5a, 1, *stream).ok());
  ASSERT_TRUE(stream->synchronize().ok());
  std::memset(host->data(), 0, 4096);
  ASSERT_TRUE(copy_to_host(host->data(), device->data() + 4096, 4096, *stream).ok());
  ASSERT_TRUE(stream->synchronize().ok());
  EXPECT_EQ(host->data()[0], std::byte{0x5a});
  for (int i = 1; i < 4096; ++i) ASSERT_EQ(host->data()[i], static_cast<std::byte>(i * 7)) << i;
}

TEST_F(OnDevice, AGraphRunsWhatWasRecordedEachTimeItIsLaunched) {
  auto stream = Stream::create();
  auto host = PinnedBuffer::allocate(2, "a test");
  auto device = DeviceBuffer::allocate(2, "a test");
  ASSERT_TRUE(stream && host && device);
  ASSERT_TRUE(fill_bytes(device->data(), 1, 2, *stream).ok());
  auto graph = Graph::capture(
      *stream, [&] { return copy_to_host(host->data() + 1, device->data(), 1, *stream); });
  ASSERT_TRUE(graph) << graph.error().to_string();
  for (const int value : {3, 4}) {
    ASSERT_TRUE(fill_bytes(device->data(), value, 1, *stream).ok());
    ASSERT_TRUE(graph->launch(*stream).ok());
    ASSERT_TRUE(stream->synchronize().ok());
    EXPECT_EQ(host->data()[1], static_cast<std::byte>(value));
  }
  const auto failed = Graph::capture(*stream, [] { return invalid_argument("not this"); });
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().message(), "not this");
}

// The last device: not the first one where the system has several.
TEST_F(OnDevice, AnyIndexWorks) {
  const int32_t last = count_devices() - 1;
  ASSERT_TRUE(open_device(last));
  EXPECT_EQ(current_device(), last);
  auto stream = Stream::create();
  auto host = PinnedBuffer::allocate(16, "a test");
  auto device = DeviceBuffer::allocate(16, "a test");
  ASSERT_TRUE(stream && host && device);
  // Another thread begins with device 0, and goes on with the last one's memory and stream.
  std::thread([&] {
    EXPECT_EQ(current_device(), 0);
    ASSERT_TRUE(use_device(last).ok());
    ASSERT_TRUE(fill_bytes(device->data(), 7, 16, *stream).ok());
    ASSERT_TRUE(copy_to_host(host->data(), device->data(), 16, *stream).ok());
    ASSERT_TRUE(stream->synchronize().ok());
  }).join();
  EXPECT_EQ(host->data()[15], std::byte{7});
  EXPECT_FALSE(open_device(last + 1));
  ASSERT_TRUE(use_device(0).ok());
}

TEST_F(OnDevice, TooMuchMemoryIsAnErrorThatSaysHowMuch) {
  const auto buffer = DeviceBuffer::allocate(int64_t{1} << 50, "the moon");
  ASSERT_FALSE(buffer);
  EXPECT_EQ(buffer.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(buffer.error().message(), HasSubstr("the moon"));
  EXPECT_TRUE(DeviceBuffer::allocate(4096, "a test"));  // later calls work
}

}  // namespace
}  // namespace espalier::cuda
