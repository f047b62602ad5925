// The messages for every kind of system without a usable device.
#include "tensor/cuda/device_query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

namespace espalier::cuda {
namespace {

using ::testing::HasSubstr;
using Found = DeviceQuery::Found;

DeviceQuery h200() {
  return {.driver_version = 13000,
          .runtime_version = 13000,
          .found = Found::kDevices,
          .num_devices = 1,
          .compute_major = 9,
          .architectures = "80-virtual,90a-real"};
}

void expect_refused(const DeviceQuery& query, const std::string& words) {
  const Status status = check_device(query);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(words));
  EXPECT_THAT(status.message(), HasSubstr("--device cpu"));
}

TEST(DeviceQuery, EachLackIsNamed) {
  EXPECT_TRUE(check_device(h200()).ok());
  DeviceQuery q = h200();
  q.driver_version = 0;
  expect_refused(q, "no NVIDIA driver was found");
  q = h200();
  q.driver_version = 11080;
  q.found = Found::kOldDriver;
  expect_refused(q, "supports CUDA 11.8 and this build needs 13.0");
  q = h200();
  q.found = Found::kNone;
  expect_refused(q, "no NVIDIA device is visible");
  q = h200();
  q.num_devices = 0;
  expect_refused(q, "no NVIDIA device is visible");
  for (const int32_t index : {-1, 1}) {
    q = h200();
    q.index = index;
    expect_refused(q, fmt::format("there is no GPU {}: CUDA finds 1", index));
  }
  q.num_devices = 2;
  q.index = 1;
  EXPECT_TRUE(check_device(q).ok());
  q = h200();
  q.found = Found::kOtherError;
  q.error = "system not yet initialized";
  expect_refused(q, "system not yet initialized");
  q = h200();
  q.compute_major = 7;
  q.compute_minor = 5;
  expect_refused(q, "compute capability 7.5 and 8.0 is the oldest");
  q = h200();
  q.compute_major = 8;
  q.architectures = "90a-real";
  expect_refused(q, "-DESPALIER_CUDA_ARCHITECTURES=80,");
}

TEST(DeviceQuery, CodeRunsWhereItsKindAllows) {
  const auto code = [](std::string_view architectures, int major, int minor) {
    const auto found = code_for(architectures, major, minor).value_or(DeviceCode());
    return std::pair(found.architecture, found.own);
  };
  const std::pair none(0, false);
  const char* const usual = "80-virtual,90a-real";
  EXPECT_EQ(code(usual, 8, 0), std::pair(80, false));
  EXPECT_EQ(code(usual, 9, 0), std::pair(90, true));
  EXPECT_EQ(code("90a-real,80-virtual", 9, 0), std::pair(90, true));
  EXPECT_EQ(code(usual, 12, 0), std::pair(80, false));  // from PTX, without what Hopper has
  EXPECT_EQ(code("80-virtual", 9, 0), std::pair(80, false));
  EXPECT_EQ(code("90a-real", 9, 0), std::pair(90, true));
  EXPECT_EQ(code("90a-real", 10, 0), none);
  EXPECT_EQ(code("90a-real", 8, 9), none);
  EXPECT_EQ(code("90a", 10, 0), none);
  EXPECT_EQ(code("80-real", 8, 9), std::pair(80, false));
  EXPECT_EQ(code("80-real,86-real", 8, 9), std::pair(86, false));
  EXPECT_EQ(code("89-real", 8, 0), none);
  EXPECT_EQ(code("80-real", 9, 0), none);
  EXPECT_EQ(code("80", 10, 0), std::pair(80, false));
  EXPECT_EQ(code("80,90", 10, 0), std::pair(90, false));
  EXPECT_EQ(code("", 8, 0), none);
  EXPECT_EQ(code("native", 8, 0), none);
}

}  // namespace
}  // namespace espalier::cuda
