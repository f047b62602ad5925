// Videos against PyAV and transformers: tests/golden/media/videos, by
// tools/goldens/make_video_goldens.py.
#include "media/video.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "media/drawn.h"
#include "media/processor.h"

namespace espalier {
namespace {

using testing::HasSubstr;

const std::string kVideoGoldens = test::kMediaGoldens + "videos/";

struct GoldenVideo {
  std::string name;
  int32_t frames = 0;
  double rate = 0;
  int32_t width = 0, height = 0;
};

std::vector<GoldenVideo> golden_videos() {
  std::ifstream file(kVideoGoldens + "videos.txt");
  std::vector<GoldenVideo> out;
  for (GoldenVideo each;
       file >> each.name >> each.frames >> each.rate >> each.width >> each.height;)
    out.push_back(each);
  return out;
}

std::vector<uint8_t> video_bytes(const std::string& name) {
  return test::read_bytes(kVideoGoldens + name);
}

// Nothing where FFmpeg is not here.
bool reads_videos() {
  const std::vector<uint8_t> bytes = video_bytes("h264.mp4");
  const auto video = VideoFile::open(bytes, {});
  return video || video.error().code() != StatusCode::kUnimplemented;
}
#define ESP_NEEDS_FFMPEG() \
  if (!reads_videos()) GTEST_SKIP() << "FFmpeg's libraries are not installed"

std::vector<Image> read_all(VideoFile& video, std::vector<int32_t> indices) {
  std::vector<Image> frames;
  const Status status = video.read(indices, [&](Image&& frame) {
    frames.push_back(std::move(frame));
    return Status();
  });
  EXPECT_TRUE(status.ok()) << status.message();
  return frames;
}

// FFmpeg's versions differ by few steps where they interpolate colours.
int largest_difference(const Image& a, const Image& b) {
  if (a.width != b.width || a.height != b.height) return 256;
  int most = 0;
  for (size_t i = 0; i < a.rgb.size(); ++i) most = std::max(most, std::abs(a.rgb[i] - b.rgb[i]));
  return most;
}

TEST(Video, HasTheFramesThatPyavReads) {
  ESP_NEEDS_FFMPEG();
  const std::vector<GoldenVideo> videos = golden_videos();
  ASSERT_GE(videos.size(), 7u);
  for (const GoldenVideo& golden : videos) {
    SCOPED_TRACE(golden.name);
    const std::vector<uint8_t> bytes = video_bytes(golden.name);
    auto video = VideoFile::open(bytes, {});
    ASSERT_TRUE(video) << video.error().message();
    const VideoHeader& header = (*video)->header();
    EXPECT_EQ(header.num_frames, golden.frames);
    EXPECT_NEAR(header.frames_per_second, golden.rate, 0.01 * golden.rate);
    EXPECT_EQ(header.width, golden.width);
    EXPECT_EQ(header.height, golden.height);
    const std::vector<int32_t> indices = {0, golden.frames / 2, golden.frames - 1};
    const std::vector<Image> frames = read_all(**video, indices);
    ASSERT_EQ(frames.size(), indices.size());
    for (size_t i = 0; i < indices.size(); ++i) {
      const auto png = video_bytes(golden.name + "." + std::to_string(indices[i]) + ".png");
      const auto wanted = decode_image(png, {});
      ASSERT_TRUE(wanted) << wanted.error().message();
      EXPECT_LE(largest_difference(frames[i], *wanted), 4) << indices[i];
    }
    EXPECT_GT(largest_difference(frames[0], frames[2]), 40);
  }
}

TEST(Video, FramesDoNotDependOnWhichOthersAreRead) {
  ESP_NEEDS_FFMPEG();
  const std::vector<uint8_t> bytes = video_bytes("h264.mp4");
  const auto read = [&](std::vector<int32_t> indices, int32_t num_threads) {
    auto video = VideoFile::open(bytes, {.num_threads = num_threads});
    return read_all(**video, std::move(indices));
  };
  const std::vector<Image> alone = read({17}, 1), twice = read({3, 17, 17, 30}, 4);
  ASSERT_EQ(twice.size(), 4u);
  EXPECT_EQ(alone[0].rgb, twice[1].rgb);
  EXPECT_EQ(alone[0].rgb, twice[2].rgb);
  EXPECT_NE(alone[0].rgb, twice[3].rgb);
}

TEST(Video, WhatEndsTheReading) {
  ESP_NEEDS_FFMPEG();
  const std::vector<uint8_t> bytes = video_bytes("h264.mp4");
  const std::vector<int32_t> indices = {0, 20};
  auto video = VideoFile::open(bytes, {});
  const Status refused =
      (*video)->read(indices, [](Image&&) { return invalid_argument("not this one"); });
  EXPECT_EQ(refused.message(), "not this one");
  std::stop_source stop;
  stop.request_stop();
  video = VideoFile::open(bytes, {});
  const Status stopped = (*video)->read(
      indices, [](Image&&) { return Status(); }, stop.get_token());
  EXPECT_EQ(stopped.code(), StatusCode::kAborted);
}

std::string refusal(const std::vector<uint8_t>& bytes, const VideoLimits& limits) {
  const auto video = VideoFile::open(bytes, limits);
  return video ? "" : std::string(video.error().message());
}

TEST(Video, LimitsAreCheckedBeforeFramesAreDecoded) {
  ESP_NEEDS_FFMPEG();
  const std::vector<uint8_t> bytes = video_bytes("h264.mp4");
  EXPECT_THAT(refusal(bytes, {.bytes_max = 100}), HasSubstr("raise --max-image-bytes"));
  EXPECT_THAT(refusal(bytes, {.pixels_max = 1000}), HasSubstr("a frame of 64 x 48 pixels"));
  EXPECT_THAT(refusal(bytes, {.seconds_max = 1}), HasSubstr("raise --max-video-seconds"));
  EXPECT_EQ(refusal(bytes, {.seconds_max = 2}), "");
  EXPECT_THAT(refusal({1, 2, 3}, {}), HasSubstr("send MP4"));
  EXPECT_THAT(refusal({}, {}), HasSubstr("send MP4"));
}

TEST(Video, AVideoThatIsCutOffIsRefused) {
  ESP_NEEDS_FFMPEG();
  std::vector<uint8_t> bytes = video_bytes("mpeg4.avi");
  bytes.resize(bytes.size() / 2);
  auto video = VideoFile::open(bytes, {});
  if (!video) return;
  // The frames that are there are counted, whatever the header states.
  EXPECT_LT((*video)->header().num_frames, 20);
  EXPECT_GT((*video)->header().num_frames, 2);
}

TEST(Video, ContainersAreRecognisedByTheirFirstBytes) {
  for (const GoldenVideo& golden : golden_videos())
    EXPECT_TRUE(recognise_video(video_bytes(golden.name))) << golden.name;
  EXPECT_FALSE(recognise_video(video_bytes("h264.mp4.0.png")));
  EXPECT_FALSE(recognise_video({}));
}

TEST(Video, FramesAreSampledAsTransformersDoes) {
  std::ifstream file(kVideoGoldens + "sampling.txt");
  int checked = 0;
  for (std::string line; std::getline(file, line); ++checked) {
    SCOPED_TRACE(line.substr(0, 40));
    std::istringstream words(line);
    std::string model;
    int32_t total = 0;
    double rate = 0;
    char colon = 0;
    words >> model >> total >> rate >> colon;
    std::vector<int32_t> wanted;
    for (int32_t index; words >> index;) wanted.push_back(index);
    ImageProcessorSpec::Video spec;
    if (model == "qwen3_vl") spec.to_last = true;
    if (model == "llava_next_video") {
      spec.num_frames = 32;
      spec.multiple = 1;
    }
    EXPECT_EQ(sample_frames(spec, total, rate), wanted);
  }
  EXPECT_GE(checked, 20);
}

// Of Qwen3-VL's processor: the times of pairs of frames.
TEST(Video, PairsOfFramesHaveTransformersTimes) {
  std::ifstream file(kVideoGoldens + "times.txt");
  int checked = 0;
  for (std::string line; std::getline(file, line); ++checked) {
    std::istringstream words(line);
    double rate = 0;
    char bar = 0;
    words >> rate >> bar;
    std::vector<int32_t> indices;
    for (int32_t index; words >> index;) indices.push_back(index);
    std::string made;
    for (const double seconds : grid_seconds(indices, rate, 2))
      made += fmt::format("<{:.1f} seconds>", seconds);
    EXPECT_TRUE(line.ends_with("| " + made)) << line << "\n" << made;
  }
  EXPECT_EQ(checked, 30);
}

// The same: bounds of all frames together.
TEST(Video, FramesBecomeAsLargeAsTransformersMakesThem) {
  std::ifstream file(kVideoGoldens + "areas.txt");
  int checked = 0;
  for (std::string line; std::getline(file, line); ++checked) {
    SCOPED_TRACE(line);
    std::istringstream words(line);
    int32_t frames = 0, capped = 0;
    ImageProcessorSpec::Size given, wanted;
    char colon = 0;
    words >> frames >> given.width >> given.height >> capped >> colon >> wanted.width >>
        wanted.height;
    ImageProcessorSpec spec;
    spec.video.emplace();
    spec.video->area = {.pixels_min = 65'536, .pixels_max = 2'097'152, .multiple = 32};
    spec.video->area_of_all = true;
    spec.video->frame_pixels = capped * 64 * 32 * 32;
    const auto made = processed_size(given, spec.of_frames(frames));
    ASSERT_TRUE(made) << made.error().message();
    EXPECT_EQ(*made, wanted) << made->width << " x " << made->height;
  }
  EXPECT_GE(checked, 250);
}

}  // namespace
}  // namespace espalier
