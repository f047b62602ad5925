#include "media/resize.h"

#include <gtest/gtest.h>

#include <fstream>

#include "media/drawn.h"

namespace espalier {
namespace {

TEST(Resize, EqualsPillowToTheBit) {
  std::ifstream file(test::kMediaGoldens + "resize.txt");
  std::string name, hash;
  int32_t width, height, new_width, new_height, cases = 0;
  while (file >> name >> width >> height >> new_width >> new_height >> hash) {
    const Resample filter = name == "bicubic" ? Resample::kBicubic : Resample::kBilinear;
    const Image out = resize(test::drawn(width, height), new_width, new_height, filter);
    ASSERT_EQ(out.width, new_width);
    ASSERT_EQ(out.height, new_height);
    EXPECT_EQ(fmt::format("{:016x}", test::fnv(out.rgb)), hash)
        << name << " " << width << "x" << height << " to " << new_width << "x" << new_height;
    ++cases;
  }
  EXPECT_EQ(cases, 120);
}

TEST(Resize, KeepsOneColour) {
  Image image{.width = 13, .height = 7, .rgb = std::vector<uint8_t>(13 * 7 * 3, 200)};
  for (const Resample filter : {Resample::kBilinear, Resample::kBicubic}) {
    for (const uint8_t value : resize(image, 40, 3, filter).rgb) ASSERT_EQ(value, 200);
  }
}

}  // namespace
}  // namespace espalier
