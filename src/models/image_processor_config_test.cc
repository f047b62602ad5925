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

TEST(ImageProcessorConfig, ReadsWhatPicturesMustFitInto) {
  const TempFolder folder;
  const PatchesSpec patches{.patch_size = 14, .merge = 2, .lines = true};
  const auto of = [&](const std::string& size) {
    std::ofstream(folder.path() / "preprocessor_config.json")
        << R"({"do_pad": true, "size": )" << size << ", " << kMeans << "}";
    return read_image_processor(folder.path(), patches);
  };
  const auto edge = of(R"({"longest_edge": 1540})");
  ASSERT_TRUE(edge) << edge.error().message();
  EXPECT_EQ(edge->within->most, (ImageProcessorSpec::Size{1540, 1540}));
  EXPECT_EQ(edge->within->multiple, 28);
  EXPECT_EQ(of(R"({"height": 56, "width": 84})")->within->most, (ImageProcessorSpec::Size{84, 56}));
  EXPECT_FALSE(of(R"({"longest_edge": 0})"));
}

TEST(ImageProcessorConfig, ReadsCountsOfTiles) {
  const TempFolder folder;
  const TilesSpec tiles{.in_sequence = true, .counts = {.min = 1, .max = 6}};
  const auto of = [&](const std::string& text) {
    std::ofstream(folder.path() / "preprocessor_config.json") << "{" << text << kMeans << "}";
    return read_image_processor(folder.path(), kPatches, tiles);
  };
  const auto own = of(R"("size": {"height": 28, "width": 28}, "max_patches": 4, )");
  ASSERT_TRUE(own) << own.error().message();
  EXPECT_EQ(own->tile_counts, (ImageProcessorSpec::TileCounts{1, 4}));
  // As OpenGVLab's files state it: CLIP's edge and crop, and the counts in config.json.
  const auto released = of(R"("size": 28, "crop_size": 28, "do_center_crop": true, )");
  ASSERT_TRUE(released) << released.error().message();
  EXPECT_EQ(released->tile_counts, tiles.counts);
  EXPECT_EQ(released->size, (ImageProcessorSpec::Size{28, 28}));
  const auto other = of(R"("size": {"height": 30, "width": 30}, )");
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message(), HasSubstr("28"));
}

TEST(ImageProcessorConfig, PanAndScanIsRefused) {
  const std::string size = R"({"size": {"height": 28, "width": 28}, )" + kMeans;
  EXPECT_TRUE(read(size + R"(, "do_pan_and_scan": null})"));
  EXPECT_THAT(error_of(size + R"(, "do_pan_and_scan": true})"), HasSubstr("do_pan_and_scan"));
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

constexpr PatchesSpec kAnySize{.patch_size = 14, .frames = 2, .merge = 2};

std::string error_of_any_size(const std::string& text) {
  const TempFolder folder;
  std::ofstream(folder.path() / "preprocessor_config.json") << text;
  const auto spec = read_image_processor(folder.path(), kAnySize);
  return spec ? "" : std::string(spec.error().message());
}

TEST(ImageProcessorConfig, ReadsBoundsOfTheArea) {
  for (const char* bounds : {R"("min_pixels": 3136, "max_pixels": 100000)",
                             R"("size": {"shortest_edge": 3136, "longest_edge": 100000})",
                             R"("size": {"min_pixels": 3136, "max_pixels": 100000})"}) {
    const TempFolder folder;
    std::ofstream(folder.path() / "preprocessor_config.json")
        << "{" << bounds << R"(, "patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, )"
        << kMeans << "}";
    const auto spec = read_image_processor(folder.path(), kAnySize);
    ASSERT_TRUE(spec) << spec.error().message();
    ASSERT_TRUE(spec->area);
    EXPECT_EQ(spec->area->pixels_min, 3136);
    EXPECT_EQ(spec->area->pixels_max, 100000);
    EXPECT_EQ(spec->area->multiple, 28);
  }
}

TEST(ImageProcessorConfig, RefusesAreasThatDoNotFit) {
  EXPECT_THAT(error_of_any_size(R"({"patch_size": 16, )" + kMeans + "}"),
              HasSubstr("'patch_size'"));
  EXPECT_THAT(error_of_any_size(R"({"merge_size": 1, )" + kMeans + "}"), HasSubstr("'merge_size'"));
  EXPECT_THAT(error_of_any_size(R"({"temporal_patch_size": 1, )" + kMeans + "}"),
              HasSubstr("'temporal_patch_size'"));
  EXPECT_THAT(error_of_any_size(R"({"max_pixels": 700, "min_pixels": 1, )" + kMeans + "}"),
              HasSubstr("'max_pixels'"));
  EXPECT_THAT(error_of_any_size(R"({"max_pixels": 4000, "min_pixels": 5000, )" + kMeans + "}"),
              HasSubstr("'max_pixels'"));
  EXPECT_THAT(error_of_any_size(R"({"max_pixels": -1, )" + kMeans + "}"), HasSubstr("max_pixels"));
  EXPECT_THAT(error_of_any_size(R"({"do_resize": false, )" + kMeans + "}"), HasSubstr("do_resize"));
  EXPECT_THAT(error_of_any_size(R"({"do_center_crop": true, )" + kMeans + "}"),
              HasSubstr("do_center_crop"));
}

TEST(ImageProcessorConfig, TilesAreThoseOfTheModel) {
  const TilesSpec tiles{.resolutions = {{56, 28}, {28, 56}}};
  const auto error = [&](const std::string& text) {
    const TempFolder folder;
    std::ofstream(folder.path() / "preprocessor_config.json")
        << "{" << text << ", " << kMeans << "}";
    const auto spec = read_image_processor(folder.path(), kPatches, tiles);
    return spec ? std::string() : std::string(spec.error().message());
  };
  const std::string size = R"("size": {"shortest_edge": 28}, "crop_size": 28, "do_pad": true, )";
  EXPECT_EQ(error(size + R"("image_grid_pinpoints": [[28, 56], [56, 28]])"), "");
  EXPECT_THAT(error(size + R"("image_grid_pinpoints": [[56, 28], [28, 56]])"),
              HasSubstr("another list"));
  EXPECT_THAT(error(size + R"("image_grid_pinpoints": [[56], [28, 56]])"), HasSubstr("pairs"));
  EXPECT_THAT(error(size + R"("image_grid_pinpoints": 5)"), HasSubstr("pairs"));
  EXPECT_THAT(error(size + R"("image_grid_pinpoints": [[0, -4]])"), HasSubstr("pairs"));
  EXPECT_THAT(error(R"("size": {"shortest_edge": 30}, "crop_size": 28,
                       "image_grid_pinpoints": [[28, 56], [56, 28]])"),
              HasSubstr("not one square"));
  EXPECT_THAT(error(R"("size": {"shortest_edge": 29}, "crop_size": 29,
                       "image_grid_pinpoints": [[28, 56], [56, 28]])"),
              HasSubstr("no whole tiles of 29"));
}

}  // namespace
}  // namespace espalier
