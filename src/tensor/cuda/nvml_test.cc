// The figures of GPUs, read from a library that has NVML's symbols (fake_nvml.cc).
#include "tensor/cuda/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier::cuda {
namespace {

using ::testing::HasSubstr;

TEST(Nvml, ReadsWhatEachGpuReports) {
  const auto nvml = Nvml::open(ESPALIER_FAKE_NVML);
  ASSERT_TRUE(nvml) << nvml.error().message();
  EXPECT_EQ(nvml->driver_version().value(), "550.54.15");
  const std::vector<GpuFigures> gpus = nvml->read();
  ASSERT_EQ(gpus.size(), 2u) << "a GPU that is lost is left out";
  EXPECT_EQ(gpus[0].index, 0);
  EXPECT_EQ(gpus[0].name, "NVIDIA H100");
  EXPECT_EQ(gpus[0].memory_used_bytes, 60'000'000'000);
  EXPECT_EQ(gpus[0].memory_total_bytes, 80'000'000'000);
  EXPECT_EQ(gpus[0].utilisation, 0.87);
  EXPECT_EQ(gpus[0].temperature_celsius, 64);
  EXPECT_EQ(gpus[0].power_watts, 412.5);
  EXPECT_EQ(gpus[0].power_limit_watts, 700);
  EXPECT_EQ(gpus[1].index, 2);
  EXPECT_EQ(gpus[1].temperature_celsius, 64);
  EXPECT_EQ(gpus[1].power_watts, std::nullopt);
}

TEST(Nvml, WithoutItsLibraryThereIsAReason) {
  const auto missing = Nvml::open("libnvidia-ml-of-nobody.so.1");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), StatusCode::kNotFound);
  const auto other = Nvml::open("libc.so.6");
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message(), HasSubstr("no NVML that is known"));
}

}  // namespace
}  // namespace espalier::cuda
