// A system without a GPU, which every system is with CUDA_VISIBLE_DEVICES empty.
#include "engine/startup/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/testing/test_requests.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

// Whatever is wrong with the GPU, "auto" goes on without it and logs the reason.
TEST(Device, AutoSaysWhyTheCpuIsTaken) {
  const auto broken = [](int32_t) {
    return fail(error(StatusCode::kUnavailable, "the driver of this test is too old"));
  };
  testing::internal::CaptureStderr();
  const auto device = choose_device("auto", 0, broken);
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(device) << device.error().to_string();
  EXPECT_FALSE(device->cuda);
  EXPECT_THAT(log, HasSubstr("device=cpu"));
  EXPECT_THAT(log, HasSubstr("the driver of this test is too old"));
  const auto refused = choose_device("cuda", 0, broken);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("the driver of this test is too old"));
  EXPECT_TRUE(choose_device("cpu", 0, broken));  // nobody looks
}

class NoGpu : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    if (cuda::open_device()) GTEST_SKIP() << "SKIPPED: a test before has opened the GPU";
  }
};

TEST_F(NoGpu, AutoTakesTheCpu) {
  const auto device = choose_device("auto");
  ASSERT_TRUE(device) << device.error().to_string();
  EXPECT_FALSE(device->cuda);
  EXPECT_EQ(device->name, "cpu");
}

TEST_F(NoGpu, CudaIsRefusedAndSaysWhatToDo) {
  const auto device = choose_device("cuda");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code(), StatusCode::kUnavailable);
  EXPECT_THAT(device.error().message(), HasSubstr("--device cpu"));
}

TEST_F(NoGpu, AnEngineStartsAllTheSameWhereItMayChoose) {
  EngineConfig config{.model = {.model_path = kModels / "qwen2_f32", .skip_tokenizer_init = true},
                      .compute = {.device = "auto", .num_threads = 1},
                      .cache = {.max_total_tokens = 1000}};
  const auto engine = Engine::create(config);
  ASSERT_TRUE(engine) << engine.error().to_string();
  EXPECT_EQ((*engine)->config().compute.device, "cpu");
  config.compute.device = "cuda";
  const auto refused = Engine::create(config);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kUnavailable);
}

TEST(Device, IsOpenedByItsIndex) {
  std::vector<int32_t> opened;
  const auto open = [&](int32_t index) -> Result<cuda::DeviceInfo> {
    opened.push_back(index);
    return fail(error(StatusCode::kUnavailable, "no device {}", index));
  };
  EXPECT_FALSE(choose_device("cuda", 0, open));
  EXPECT_FALSE(choose_device("cuda:3", 0, open));
  EXPECT_FALSE(choose_device("cuda", 2, open));
  EXPECT_FALSE(choose_device("cuda:2", 2, open));
  EXPECT_TRUE(choose_device("auto", 5, open)) << "the CPU is taken instead";
  EXPECT_EQ(opened, (std::vector<int32_t>{0, 3, 2, 2, 5}));
  const auto two = choose_device("cuda:3", 1, open);
  ASSERT_FALSE(two);
  EXPECT_THAT(two.error().message(), HasSubstr("two GPUs"));
  for (const char* wrong : {"cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda1", "cpu:0", "c"}) {
    EXPECT_FALSE(parse_device(wrong)) << wrong;
  }
}

TEST(Device, UnknownNamesAreRefused) {
  const auto device = choose_device("tpu");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(device.error().message(), HasSubstr("auto, cpu or cuda"));
}

}  // namespace
}  // namespace espalier
