#include "media/processor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "media/drawn.h"
#include "media/tiles.h"

namespace espalier {
namespace {

using testing::HasSubstr;

ImageProcessorSpec clip(int32_t edge, int32_t crop) {
  return {.shortest_edge = edge,
          .size = std::nullopt,
          .crop = ImageProcessorSpec::Size{crop, crop},
          .mean = {0.48145466f, 0.4578275f, 0.40821073f},
          .std = {0.26862954f, 0.26130258f, 0.27577711f}};
}

// The largest difference from transformers' values, in steps of a byte (1 / 255).
double difference_from_transformers(const std::vector<float>& values, std::istream& golden) {
  double largest = 0;
  for (uint64_t i = 0; i < 24; ++i) {
    double expected = 0;
    golden >> expected;
    const size_t index = (i * 2654435761 + 12345) % values.size();
    const std::array<double, 3> std = {0.26862954, 0.26130258, 0.27577711};
    const double scale = std[index / (values.size() / 3)] * 255;
    largest = std::max(largest, std::fabs(values[index] - expected) * scale);
  }
  return largest;
}

TEST(Processor, EqualsTransformersOfClip) {
  std::ifstream file(test::kMediaGoldens + "pixels.txt");
  int32_t cases = 0;
  for (std::string line; std::getline(file, line); ++cases) {
    std::istringstream golden(line);
    int32_t width, height, edge, crop;
    golden >> width >> height >> edge >> crop;
    const auto pixels = process_image(test::drawn(width, height), clip(edge, crop));
    ASSERT_TRUE(pixels) << pixels.error().message();
    EXPECT_EQ(pixels->values.size(), static_cast<size_t>(3) * crop * crop);
    // Where the picture is padded the golden is of torchvision's resize, which is less exact.
    const double allowed = crop <= edge ? 1e-4 : 1.001;
    EXPECT_LE(difference_from_transformers(pixels->values, golden), allowed) << line;
  }
  EXPECT_EQ(cases, 8);
}

TEST(Processor, OtherMeansAreNoticed) {
  std::ifstream file(test::kMediaGoldens + "pixels.txt");
  int32_t width, height, edge, crop;
  file >> width >> height >> edge >> crop;
  ImageProcessorSpec spec = clip(edge, crop);
  std::swap(spec.mean[0], spec.mean[2]);
  const auto pixels = process_image(test::drawn(width, height), spec);
  EXPECT_GT(difference_from_transformers(pixels->values, file), 1);
}

TEST(Processor, ExactSizeIgnoresTheShape) {
  const ImageProcessorSpec spec{.size = ImageProcessorSpec::Size{8, 6}, .crop = std::nullopt};
  const auto pixels = process_image(test::drawn(31, 5), spec);
  ASSERT_TRUE(pixels);
  EXPECT_EQ(pixels->width, 8);
  EXPECT_EQ(pixels->height, 6);
  EXPECT_EQ(spec.output_size(31, 5), (ImageProcessorSpec::Size{8, 6}));
}

TEST(Processor, MarginIsBlack) {
  const Image white{.width = 2, .height = 2, .rgb = std::vector<uint8_t>(12, 255)};
  const ImageProcessorSpec spec{.size = std::nullopt, .crop = ImageProcessorSpec::Size{5, 4}};
  const auto pixels = process_image(white, spec);
  ASSERT_TRUE(pixels);
  const std::vector<float> red(pixels->values.begin(), pixels->values.begin() + 20);
  EXPECT_EQ(red, (std::vector<float>{0, 0, 0, 0, 0,  //
                                     0, 1, 1, 0, 0,  //
                                     0, 1, 1, 0, 0,  //
                                     0, 0, 0, 0, 0}));
}

TEST(Processor, RefusesWhatWouldBecomeTooLong) {
  const auto pixels = process_image(test::drawn(1, 100), clip(336, 336));
  ASSERT_FALSE(pixels);
  EXPECT_THAT(pixels.error().message(), HasSubstr("less narrow"));
}

TEST(Processor, SidesBecomeMultiplesWithinTheArea) {
  ImageProcessorSpec spec;
  spec.area = {.pixels_min = 56 * 56, .pixels_max = 28 * 28 * 1280, .multiple = 28};
  const auto size = [&](int32_t width, int32_t height) { return spec.output_size(width, height); };
  using Size = ImageProcessorSpec::Size;
  EXPECT_EQ(size(1024, 768), (Size{1036, 756}));
  EXPECT_EQ(size(42, 70), (Size{56, 56}));  // halves go to the even multiple
  EXPECT_EQ(size(1, 1), (Size{56, 56}));
  EXPECT_EQ(size(4000, 3000), (Size{1148, 840}));
  EXPECT_FALSE(process_image({.width = 201, .height = 1, .rgb = std::vector<uint8_t>(603)}, spec));
  EXPECT_TRUE(process_image({.width = 200, .height = 1, .rgb = std::vector<uint8_t>(600)}, spec));
}

// As transformers' get_optimal_tiled_canvas chooses among up to 12 tiles of 448 pixels a side.
TEST(Tiles, TheNearestShapeIsChosen) {
  using Size = ImageProcessorSpec::Size;
  const auto of = [](int32_t width, int32_t height) {
    return nearest_grid({.min = 1, .max = 12}, 448, width, height);
  };
  EXPECT_EQ(of(800, 600), (Size{4, 3}));
  EXPECT_EQ(of(1000, 1000), (Size{3, 3}));
  EXPECT_EQ(of(500, 500), (Size{1, 1}));
  EXPECT_EQ(of(2000, 1), (Size{12, 1}));
  EXPECT_EQ(of(1, 2000), (Size{1, 12}));
}

// As transformers' get_optimal_tiled_canvas of Mllama's processor chooses, of at most 4 tiles.
TEST(Tiles, CanvasesAreThoseOfTheReference) {
  struct Case {
    int32_t width, height, columns, rows;
  };
  const Case cases[] = {
      {1, 1, 1, 1},       {560, 560, 1, 1},   {561, 560, 2, 1},  {560, 1120, 1, 2},
      {1120, 1121, 2, 2}, {100, 1000, 1, 2},  {1000, 100, 2, 1}, {640, 480, 2, 1},
      {480, 640, 1, 2},   {3000, 900, 4, 1},  {900, 3000, 1, 4}, {2240, 560, 4, 1},
      {2241, 560, 4, 1},  {4000, 4000, 2, 2}, {1, 5000, 1, 4},   {700, 1500, 1, 3},
      {1680, 500, 3, 1},  {1300, 1250, 2, 2},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(least_canvas(4, 560, c.width, c.height),
              (ImageProcessorSpec::Size{c.columns, c.rows}))
        << c.width << " x " << c.height;
  }
  EXPECT_EQ(tile_shape_number({1, 1}, 4), 1);
  EXPECT_EQ(tile_shape_number({4, 1}, 4), 4);
  EXPECT_EQ(tile_shape_number({1, 2}, 4), 5);
  EXPECT_EQ(tile_shape_number({1, 4}, 4), 8);
  EXPECT_EQ(tile_shape_number({5, 1}, 4), 0);
}

// The picture lies in the left upper corner; beside it is black.
TEST(Tiles, OfACanvasStandRowByRow) {
  Image image{.width = 7, .height = 6, .rgb = {}};
  for (int32_t i = 0; i < 42; ++i) image.rgb.insert(image.rgb.end(), 3, static_cast<uint8_t>(i));
  const Tiles tiles = canvas_tiles(image, {.rescale = 1}, 4, {2, 2});
  ASSERT_EQ(tiles.pixels.size(), 4u);
  EXPECT_EQ(tiles.pixels[0].values[5], 8);   // (1, 1)
  EXPECT_EQ(tiles.pixels[1].values[0], 4);   // (0, 4)
  EXPECT_EQ(tiles.pixels[1].values[3], 0);   // beside it
  EXPECT_EQ(tiles.pixels[2].values[0], 28);  // (4, 0)
  EXPECT_EQ(tiles.pixels[3].values[5], 40);  // (5, 5)
}

// Floors before it grows to whole squares, and leaves nothing of a side that is too thin.
TEST(Processor, SidesFitWithinAnEdge) {
  ImageProcessorSpec spec;
  spec.within = ImageProcessorSpec::Within{.most = {1024, 1024}, .multiple = 16};
  const auto size = [&](int32_t width, int32_t height) {
    return processed_size({width, height}, spec).value();
  };
  EXPECT_EQ(size(1, 1), (ImageProcessorSpec::Size{16, 16}));
  EXPECT_EQ(size(1024, 1024), (ImageProcessorSpec::Size{1024, 1024}));
  EXPECT_EQ(size(2000, 1000), (ImageProcessorSpec::Size{1024, 512}));
  EXPECT_EQ(size(1025, 513), (ImageProcessorSpec::Size{1024, 512}));
  EXPECT_FALSE(processed_size({5000, 2}, spec));
}

// As Qwen2VLVideoProcessor.sample_frames.
TEST(Processor, FramesAreSampledByTimeOrNumber) {
  using testing::ElementsAre;
  const ImageProcessorSpec::Video by_time{.frames_per_second = 2};
  EXPECT_THAT(sample_frames(by_time, 90, 30), ElementsAre(0, 15, 30, 45, 60, 75));
  EXPECT_THAT(sample_frames(by_time, 30, 30), ElementsAre(0, 7, 15, 22));  // four at least
  EXPECT_THAT(sample_frames(by_time, 3, 30), ElementsAre(0, 1));           // whole pairs
  EXPECT_THAT(sample_frames(by_time, 1, 30), ElementsAre(0));
  EXPECT_THAT(sample_frames(by_time, 3, 0), ElementsAre(0, 1, 2));  // sampled already
  EXPECT_EQ(sample_frames(by_time, 1000000, 1).size(), 768u);
  EXPECT_THAT(sample_frames({.num_frames = 5}, 8, 30), ElementsAre(0, 2, 4, 6));
}

}  // namespace
}  // namespace espalier
