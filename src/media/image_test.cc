#include "media/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>

#include "media/drawn.h"

namespace espalier {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<uint8_t>;

const std::string kPictures = test::kMediaGoldens + "pictures/";

Image read_ppm(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string magic;
  int32_t width = 0, height = 0, largest = 0;
  file >> magic >> width >> height >> largest;
  file.get();
  return {width, height,
          Bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()}};
}

int largest_difference(const Bytes& a, const Bytes& b) {
  int largest = a.size() == b.size() ? 0 : 256;
  for (size_t i = 0; i < a.size() && largest < 256; ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

TEST(Image, EqualsPillow) {
  std::map<std::string, int> cases;
  for (const auto& entry : std::filesystem::directory_iterator(kPictures)) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() == ".ppm") continue;
    const auto image = decode_image(test::read_bytes(path), {});
    ASSERT_TRUE(image) << path << ": " << image.error().message();
    const Image expected = read_ppm(path.string() + ".ppm");
    EXPECT_EQ(image->width, expected.width) << path;
    EXPECT_EQ(image->height, expected.height) << path;
    // Versions of the libraries round the lossy formats' colours differently, by one.
    const bool lossy = path.extension() == ".jpg" || path.filename() == "lossy.webp";
    EXPECT_LE(largest_difference(image->rgb, expected.rgb), lossy ? 1 : 0) << path;
    ++cases[path.extension()];
  }
  EXPECT_EQ(cases, (std::map<std::string, int>{
                       {".jpg", 9}, {".png", 7}, {".webp", 3}, {".gif", 3}, {".bmp", 4}}));
}

TEST(Image, HeaderStatesFormatAndStoredSize) {
  const std::map<std::string, ImageFormat> files = {
      {"rgb.jpg", ImageFormat::kJpeg},    {"rgb.png", ImageFormat::kPng},
      {"lossy.webp", ImageFormat::kWebp}, {"palette.gif", ImageFormat::kGif},
      {"rgb.bmp", ImageFormat::kBmp},     {"turned6.jpg", ImageFormat::kJpeg}};
  for (const auto& [name, format] : files) {
    const auto header = read_image_header(test::read_bytes(kPictures + name), {});
    ASSERT_TRUE(header) << name;
    EXPECT_EQ(header->format, format);
    EXPECT_EQ(header->width, 23) << name;
    EXPECT_EQ(header->height, 17) << name;
  }
  EXPECT_EQ(image_format_name(ImageFormat::kWebp), "WebP");
}

std::string error_of(const Bytes& bytes, const ImageLimits& limits = {}) {
  const auto image = decode_image(bytes, limits);
  return image ? "" : std::string(image.error().message());
}

TEST(Image, RefusesWhatIsNoPicture) {
  EXPECT_THAT(error_of({}), HasSubstr("empty"));
  EXPECT_THAT(error_of({'h', 'e', 'l', 'l', 'o'}), HasSubstr("send JPEG, PNG, WebP, GIF or BMP"));
}

TEST(Image, LimitsHoldForEveryFormat) {
  for (const char* name : {"rgb.jpg", "rgb.png", "lossy.webp", "palette.gif", "rgb.bmp"}) {
    const Bytes bytes = test::read_bytes(kPictures + name);
    EXPECT_EQ(error_of(bytes, {.pixels_max = 23 * 17}), "");
    EXPECT_THAT(error_of(bytes, {.pixels_max = 23 * 17 - 1}), HasSubstr("above the limit")) << name;
    const auto size = static_cast<int64_t>(bytes.size());
    EXPECT_EQ(error_of(bytes, {.bytes_max = size}), "");
    EXPECT_THAT(error_of(bytes, {.bytes_max = size - 1}), HasSubstr("above the limit")) << name;
  }
}

TEST(Image, RefusesFilesThatEndEarly) {
  for (const auto& entry : std::filesystem::directory_iterator(kPictures)) {
    if (entry.path().extension() == ".ppm") continue;
    Bytes bytes = test::read_bytes(entry.path());
    bytes.resize(bytes.size() / 2);
    EXPECT_NE(error_of(bytes), "") << entry.path();
  }
}

// A header of a huge picture in a file of a few bytes.
TEST(Image, RefusesBombsFromTheirHeader) {
  Bytes png = test::read_bytes(kPictures + "rgb.png");
  // The width's bytes, and a checksum that fits them, of 1,000,000 x 17 pixels.
  const Bytes header = {0x00, 0x0f, 0x42, 0x40};
  std::copy(header.begin(), header.end(), png.begin() + 16);
  EXPECT_NE(error_of(png), "");
  Bytes bmp = test::read_bytes(kPictures + "rgb.bmp");
  bmp[20] = 1;  // 65,559 pixels wide
  EXPECT_THAT(error_of(bmp), HasSubstr("ends before its picture does"));
  Bytes gif = test::read_bytes(kPictures + "palette.gif");
  gif[7] = gif[9] = 0xff;  // 65,303 x 65,297 pixels
  EXPECT_THAT(error_of(gif), HasSubstr("above the limit of 64000000 pixels"));
  Bytes jpeg = test::read_bytes(kPictures + "rgb.jpg");
  for (size_t i = 0; i + 9 < jpeg.size(); ++i) {
    if (jpeg[i] != 0xff || jpeg[i + 1] != 0xc0) continue;
    jpeg[i + 5] = jpeg[i + 7] = 0xfe;
    break;
  }
  EXPECT_THAT(error_of(jpeg), HasSubstr("above the limit of 64000000 pixels"));
}

TEST(Image, RefusesAnimationsOfWebp) {
  // RIFF, WEBP, VP8X with the bit of animations, 1 x 1 pixels.
  const std::string file("RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0\0\0\0\0\0\0", 30);
  EXPECT_THAT(error_of(Bytes(file.begin(), file.end())), HasSubstr("one of its frames"));
}

}  // namespace
}  // namespace espalier
