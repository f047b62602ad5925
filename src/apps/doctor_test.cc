#include "apps/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier::apps {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kGiB = int64_t{1} << 30;

cuda::DeviceInfo device() {
  return {.name = "NVIDIA H100", .compute_major = 9, .compute_minor = 0, .memory_bytes = 80 * kGiB};
}

TEST(Doctor, AGpuThatOthersUseIsNoted) {
  EXPECT_EQ(check_gpu(1, device(), 79 * kGiB).health, Health::kGood);
  const Finding taken = check_gpu(2, device(), 8 * kGiB);
  EXPECT_EQ(taken.health, Health::kNote);
  EXPECT_THAT(taken.found, HasSubstr("2 GPUs in all"));
  EXPECT_THAT(taken.advice, HasSubstr("--base-gpu-id"));
}

TEST(Doctor, AGpuThatCannotBeUsedIsAProblemAndNoneIsNot) {
  const Result<cuda::DeviceInfo> failed =
      fail(error(StatusCode::kUnavailable, "the driver is too old"));
  EXPECT_EQ(check_gpu(1, failed, 0).health, Health::kProblem);
  EXPECT_THAT(check_gpu(1, failed, 0).found, HasSubstr("too old"));
  EXPECT_EQ(check_gpu(0, failed, 0).health, Health::kNote);
}

TEST(Doctor, TheDriverAndTheOtherGpusAreLookedAt) {
  EXPECT_EQ(check_driver(std::string("550.54.15"), 2).found, "version 550.54.15");
  const Result<std::string> missing = fail(error(StatusCode::kNotFound, "no library"));
  EXPECT_EQ(check_driver(missing, 0).health, Health::kGood);
  EXPECT_EQ(check_driver(missing, 1).health, Health::kNote);
  EXPECT_THAT(check_driver(missing, 1).advice, HasSubstr("compute,utility"));
  cuda::GpuFigures gpu{.index = 3,
                       .name = "NVIDIA H100",
                       .memory_used_bytes = kGiB,
                       .memory_total_bytes = 80 * kGiB,
                       .temperature_celsius = 40};
  EXPECT_EQ(check_other_gpu(gpu).what, "GPU 3");
  EXPECT_EQ(check_other_gpu(gpu).health, Health::kGood);
  EXPECT_THAT(check_other_gpu(gpu).found, HasSubstr("79.0 GiB of 80.0 GiB free, 40 °C"));
  gpu.temperature_celsius = 90;
  EXPECT_THAT(check_other_gpu(gpu).advice, HasSubstr("cooling"));
  gpu.memory_used_bytes = 70 * kGiB;
  EXPECT_THAT(check_other_gpu(gpu).advice, HasSubstr("nvidia-smi"));
}

TEST(Doctor, LimitsThatAreTooLowComeWithAdvice) {
  EXPECT_EQ(check_memory(16 * kGiB, 32 * kGiB).health, Health::kGood);
  EXPECT_EQ(check_memory(kGiB, 32 * kGiB).health, Health::kNote);
  EXPECT_EQ(check_open_files(1024, 1 << 20).health, Health::kGood) << "the server raises it";
  EXPECT_THAT(check_open_files(1024, 1024).advice, HasSubstr("ulimit"));
}

TEST(Doctor, NcclIsMissedWhereThereAreSeveralGpus) {
  EXPECT_THAT(check_nccl(22304, 8).found, HasSubstr("2.23.4"));
  EXPECT_EQ(check_nccl(std::nullopt, 1).health, Health::kGood);
  EXPECT_EQ(check_nccl(std::nullopt, 2).health, Health::kNote);
}

TEST(Doctor, EveryFindingSaysWhatItIsOf) {
  const std::vector<Finding> findings = examine({.port = 0, .offline = true});
  EXPECT_GE(findings.size(), 10u);
  for (const Finding& each : findings) {
    EXPECT_FALSE(each.what.empty());
    EXPECT_FALSE(each.found.empty()) << each.what;
    EXPECT_TRUE(each.health != Health::kProblem || !each.advice.empty()) << each.what;
  }
}

}  // namespace
}  // namespace espalier::apps
