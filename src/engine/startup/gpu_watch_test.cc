// GpuWatch reads GPUs at most once in age_max, and figures() does not wait for a reading.
#include "engine/startup/gpu_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>

namespace espalier {
namespace {

std::vector<cuda::GpuFigures> gpu(int64_t used) {
  return {{.index = 0, .name = "g", .memory_used_bytes = used, .memory_total_bytes = 100}};
}

// Waits for another thread, which needs no time but for its turn.
template <typename Condition>
void wait_for(Condition condition) {
  while (!condition()) std::this_thread::yield();
}

TEST(GpuWatch, NobodyWaitsForAReading) {
  std::binary_semaphore may_read{0};
  std::atomic<int> readings{0};
  GpuWatch watch(
      [&] {
        return [&] {
          may_read.acquire();
          return gpu(++readings);
        };
      },
      Duration::zero());
  EXPECT_TRUE(watch.figures().empty()) << "the first reading is under way";
  may_read.release();
  wait_for([&] { return !watch.figures().empty(); });
  // That call wanted another reading, which is blocked: the old one is given meanwhile.
  EXPECT_EQ(watch.figures()[0].memory_used_bytes, 1);
  may_read.release();
  wait_for([&] { return watch.figures()[0].memory_used_bytes == 2; });
  may_read.release();  // for the reading that the last call wanted
}

TEST(GpuWatch, FreshFiguresAreNotReadAgain) {
  std::atomic<int> readings{0};
  {
    GpuWatch watch([&] { return [&] { return gpu(++readings); }; }, std::chrono::hours(1));
    wait_for([&] { return !watch.figures().empty(); });
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(watch.figures()[0].memory_used_bytes, 1);
  }
  EXPECT_EQ(readings, 1);
}

TEST(GpuWatch, WhereThereIsNothingToReadTheThreadEnds) {
  GpuWatch watch([] { return GpuWatch::Read(); });
  EXPECT_TRUE(watch.figures().empty());
  EngineConfig config;
  config.compute.device = "cpu";
  EXPECT_EQ(watch_gpus(config), nullptr);
}

}  // namespace
}  // namespace espalier
