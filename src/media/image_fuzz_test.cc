// Valid files of every format, changed at random: each is decoded or refused with a message, within
// the limits. ESPALIER_FUZZ_SCALE=1000 runs a million cases; the asan preset shows what they touch.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/rng.h"
#include "media/drawn.h"
#include "media/image.h"

namespace espalier {
namespace {

using Bytes = std::vector<uint8_t>;

std::vector<Bytes> seeds() {
  std::vector<std::filesystem::path> paths;
  const std::string folder = test::kMediaGoldens + "pictures";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".ppm") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> files;
  for (const auto& path : paths) files.push_back(test::read_bytes(path));
  return files;
}

uint64_t byte(Rng& rng) { return rng.below(256); }

void mutate(Rng& rng, const std::vector<Bytes>& files, Bytes& bytes) {
  const size_t at = rng.below(bytes.size());
  switch (rng.below(6)) {
    case 0:
      bytes[at] = static_cast<uint8_t>(byte(rng));
      break;
    case 1:
      bytes[at] ^= static_cast<uint8_t>(1u << rng.below(8));
      break;
    case 2:  // values at the ends of a number's range
      bytes[at] = rng.below(2) == 0 ? 0 : 0xff;
      break;
    case 3:
      bytes.resize(at + 1);
      break;
    case 4:
      bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), 1 + rng.below(8),
                   static_cast<uint8_t>(byte(rng)));
      break;
    default: {  // a part of another file
      const Bytes& other = files[rng.below(files.size())];
      const size_t from = rng.below(other.size());
      const size_t count =
          std::min({size_t{1} + rng.below(64), other.size() - from, bytes.size() - at});
      std::copy_n(other.begin() + static_cast<ptrdiff_t>(from), count,
                  bytes.begin() + static_cast<ptrdiff_t>(at));
    }
  }
}

TEST(ImageFuzz, DecodesOrRefuses) {
  const char* scale = std::getenv("ESPALIER_FUZZ_SCALE");  // 1: a second or so
  const uint64_t rounds = 1000 * (scale == nullptr ? 1 : std::strtoull(scale, nullptr, 10));
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  const std::vector<Bytes> files = seeds();
  const ImageLimits limits{.bytes_max = 4096, .pixels_max = 20'000};
  uint64_t decoded = 0, refused = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    Bytes bytes = files[rng.below(files.size())];
    const uint64_t count = 1 + rng.below(4);
    for (uint64_t i = 0; i < count; ++i) mutate(rng, files, bytes);
    const auto image = decode_image(bytes, limits);
    if (!image) {
      ASSERT_FALSE(image.error().message().empty());
      ++refused;
      continue;
    }
    ++decoded;
    const int64_t pixels = int64_t{image->width} * image->height;
    ASSERT_GE(pixels, 1);
    ASSERT_LE(pixels, limits.pixels_max);
    ASSERT_EQ(std::ssize(image->rgb), pixels * 3);
  }
  // Mutations that all files survive, or none does, would test little.
  EXPECT_GT(decoded, rounds / 20);
  EXPECT_GT(refused, rounds / 20);
}

}  // namespace
}  // namespace espalier
