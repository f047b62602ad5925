// A machine without a GPU, which every machine becomes with CUDA_VISIBLE_DEVICES empty.
#include "engine/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "engine/test_requests.h"
#include "tensor/cuda/device.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

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
  EngineConfig config{.model_path = kModels / "qwen2_f32",
                      .skip_tokenizer_init = true,
                      .max_total_tokens = 1000,
                      .device = "auto",
                      .num_threads = 1};
  const auto engine = Engine::create(config);
  ASSERT_TRUE(engine) << engine.error().to_string();
  EXPECT_EQ((*engine)->config().device, "cpu");
  config.device = "cuda";
  const auto refused = Engine::create(config);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kUnavailable);
}

TEST(Device, UnknownNamesAreRefused) {
  const auto device = choose_device("tpu");
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(device.error().message(), HasSubstr("auto, cpu or cuda"));
}

}  // namespace
}  // namespace espalier
