// Valid videos changed at random: each is decoded or refused with a message, within the limits.
// ESPALIER_FUZZ_SCALE makes more cases; the asan preset shows what they touch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>

#include "base/rng.h"
#include "media/drawn.h"
#include "media/video.h"

namespace espalier {
namespace {

using VideoBytes = std::vector<uint8_t>;

std::vector<VideoBytes> valid_videos() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(test::kMediaGoldens + "videos/")) {
    const auto kind = entry.path().extension();
    if (kind != ".png" && kind != ".txt") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<VideoBytes> videos;
  for (const auto& path : paths) videos.push_back(test::read_bytes(path.string()));
  return videos;
}

// Half of the changes lie where containers have their tables.
void change_video(Rng& rng, VideoBytes& bytes) {
  const size_t near = std::min<size_t>(bytes.size(), 900);
  const uint64_t where = rng.below(4);
  const size_t at = where == 0   ? rng.below(near)
                    : where == 1 ? bytes.size() - 1 - rng.below(near)
                                 : rng.below(bytes.size());
  switch (rng.below(6)) {
    case 0:
      bytes[at] = static_cast<uint8_t>(rng.below(256));
      break;
    case 1:
      bytes[at] ^= static_cast<uint8_t>(1u << rng.below(8));
      break;
    case 2:
      std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(at),
                  std::min<size_t>(4, bytes.size() - at),
                  static_cast<uint8_t>(rng.below(2) == 0 ? 0 : 0xff));
      break;
    case 3:
      bytes.resize(at + 1);
      break;
    case 4:
      bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at));
      break;
    default:
      bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), 1 + rng.below(8),
                   static_cast<uint8_t>(rng.below(256)));
  }
  if (bytes.empty()) bytes.push_back(0);
}

// Whether all frames were read.
bool read_changed(const VideoBytes& bytes, const VideoLimits& limits) {
  const auto video = VideoFile::open(bytes, limits);
  if (!video) {
    EXPECT_FALSE(video.error().message().empty());
    return false;
  }
  const VideoHeader& header = (*video)->header();
  EXPECT_LE(int64_t{header.width} * header.height, limits.pixels_max);
  EXPECT_LE(header.seconds(), limits.seconds_max);
  std::vector<int32_t> indices(static_cast<size_t>(std::min(header.num_frames, 8)));
  for (size_t i = 0; i < indices.size(); ++i)
    indices[i] = static_cast<int32_t>(i) * header.num_frames / static_cast<int32_t>(indices.size());
  size_t taken = 0;
  const Status status = (*video)->read(indices, [&](Image&& frame) {
    ++taken;
    EXPECT_EQ(std::ssize(frame.rgb), int64_t{header.width} * header.height * 3);
    return Status();
  });
  EXPECT_TRUE(status.ok() ? taken == indices.size() : !status.message().empty());
  return status.ok();
}

TEST(VideoFuzz, VideosAreDecodedOrRefused) {
  const std::vector<VideoBytes> videos = valid_videos();
  ASSERT_FALSE(videos.empty());
  if (const auto video = VideoFile::open(videos[0], {});
      !video && video.error().code() == StatusCode::kUnimplemented)
    GTEST_SKIP() << video.error().message();
  const char* scale = std::getenv("ESPALIER_FUZZ_SCALE");
  const uint64_t rounds = 200 * (scale == nullptr ? 1 : std::strtoull(scale, nullptr, 10));
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  const VideoLimits limits{.bytes_max = 20'000, .pixels_max = 10'000, .seconds_max = 20};
  uint64_t decoded = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    VideoBytes bytes = videos[rng.below(videos.size())];
    const uint64_t count = 1 + rng.below(4);
    for (uint64_t i = 0; i < count; ++i) change_video(rng, bytes);
    decoded += read_changed(bytes, limits) ? 1 : 0;
    ASSERT_FALSE(HasFailure());
  }
  // Changes that all videos survive, or none does, would test little.
  EXPECT_GT(decoded, rounds / 20);
  EXPECT_LT(decoded, rounds - rounds / 20);
}

}  // namespace
}  // namespace espalier
