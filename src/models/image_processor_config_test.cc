#include "models/image_processor_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/temp_folder.h"

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr PatchesSpec kPatches{.patch_size = 7, .num_patches = 16};  // of 28 x 28 pixels
const std::string kMeans = R"("image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6])";

Result<ImageProcessorSpec> read(const std::string& text,
                                const char* file = "preprocessor_config.json") {
  const TempFolder folder;
  std::ofstream(folder.path() / file) << text;
  return read_image_processor(folder.path(), kPatches);
}

std::string error_of(const std::string& text) {
  const auto spec = read(text);
  return spec ? "" : std::string(spec.error().message());
}

TEST(ImageProcessorConfig, ReadsEdgeAndCrop) {
  const auto spec =
      read(R"({"size": {"shortest_edge": 30}, "crop_size": {"height": 28, "width": 28},
                             "resample": 2, )" +
           kMeans + "}");
  ASSERT_TRUE(spec) << spec.error().message();
  EXPECT_EQ(spec->shortest_edge, 30);
  EXPECT_EQ(spec->crop, (ImageProcessorSpec::Size{28, 28}));
  EXPECT_EQ(spec->filter, Resample::kBilinear);
  EXPECT_EQ(spec->mean[2], 0.3f);
  EXPECT_EQ(spec->std[0], 0.4f);
}

TEST(ImageProcessorConfig, ReadsNumbersForBothSidesAndExactSizes) {
  const auto old = read(R"({"size": 28, "crop_size": 28, )" + kMeans + "}");
  ASSERT_TRUE(old) << old.error().message();
  EXPECT_EQ(old->shortest_edge, 28);
  const auto exact =
      read(R"({"size": {"height": 28, "width": 29}, "rescale_factor": 0.5, )" + kMeans + "}");
  ASSERT_TRUE(exact) << exact.error().message();
  EXPECT_EQ(exact->size, (ImageProcessorSpec::Size{29, 28}));
  EXPECT_FALSE(exact->crop);
  EXPECT_EQ(exact->rescale, 0.5f);
}

TEST(ImageProcessorConfig, ReadsTheFileOfAWholeProcessor) {
  const auto spec = read(R"({"image_processor": {"size": 28, "crop_size": 28, )" + kMeans + "}}",
                         "processor_config.json");
  EXPECT_TRUE(spec) << spec.error().message();
}

TEST(ImageProcessorConfig, StepsCanBeLeftOut) {
  const auto spec = read(R"({"do_resize": false, "do_rescale": false, "do_normalize": false,
                             "crop_size": 28})");
  ASSERT_TRUE(spec) << spec.error().message();
  EXPECT_EQ(spec->shortest_edge, 0);
  EXPECT_EQ(spec->rescale, 1.0f);
  EXPECT_EQ(spec->std[1], 1.0f);
}

TEST(ImageProcessorConfig, RefusesByTheFieldsName) {
  EXPECT_THAT(error_of(R"({"size": 28, "crop_size": 35, )" + kMeans + "}"), HasSubstr("crop_size"));
  EXPECT_THAT(error_of(R"({"size": 28, )" + kMeans + "}"), HasSubstr("positions for 16"));
  EXPECT_THAT(error_of(R"({"size": 28, "crop_size": 28, "resample": 1, )" + kMeans + "}"),
              HasSubstr("resample"));
  EXPECT_THAT(error_of(R"({"size": 28, "crop_size": 28, "do_pad": true, )" + kMeans + "}"),
              HasSubstr("do_pad"));
  EXPECT_THAT(error_of(R"({"size": 28, "crop_size": 28})"), HasSubstr("image_mean"));
  EXPECT_THAT(error_of(R"({"size": 28, "crop_size": 28, "image_mean": [0, 0, 0],
                           "image_std": [1, 0, 1]})"),
              HasSubstr("image_std"));
  const TempFolder empty;
  const auto missing = read_image_processor(empty.path(), kPatches);
  ASSERT_FALSE(missing);
  EXPECT_THAT(missing.error().message(), HasSubstr("preprocessor_config.json"));
}

}  // namespace
}  // namespace espalier
