#include "media/resize.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/rng.h"
#include "media/drawn.h"

namespace espalier {
namespace {

TEST(Resize, EqualsPillowToTheBit) {
  std::ifstream file(test::kMediaGoldens + "resize.txt");
  std::string name, hash;
  int32_t width, height, new_width, new_height, cases = 0;
  while (file >> name >> width >> height >> new_width >> new_height >> hash) {
    const Resample filter = name == "bicubic" ? Resample::kBicubic : Resample::kBilinear;
    const Image drawn = test::drawn(width, height);
    for (const ResizePasses& passes : usable_resize_passes()) {
      const Image out = resize_by(passes, drawn, new_width, new_height, filter);
      ASSERT_EQ(out.width, new_width);
      ASSERT_EQ(out.height, new_height);
      EXPECT_EQ(fmt::format("{:016x}", test::fnv(out.rgb)), hash)
          << passes.name << ": " << name << " " << width << "x" << height << " to " << new_width
          << "x" << new_height;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 120);
}

// Instruction sets give the same bits, also of very narrow pictures and of many inputs an output.
TEST(Resize, PassesGiveTheSameBits) {
  const auto passes = usable_resize_passes();
  ASSERT_STREQ(passes.back().name, "plain");
  Rng rng(25);
  for (int round = 0; round < 300; ++round) {
    const auto side = [&] {
      return static_cast<int32_t>(1 + rng.below(round % 10 == 0 ? 900 : 60));
    };
    const Image drawn = test::drawn(side(), side());
    const int32_t width = side(), height = side();
    const Resample filter = round % 2 == 0 ? Resample::kBicubic : Resample::kBilinear;
    const Image plain = resize_by(passes.back(), drawn, width, height, filter);
    for (const ResizePasses& each : passes) {
      ASSERT_EQ(resize_by(each, drawn, width, height, filter).rgb, plain.rgb)
          << each.name << ": " << drawn.width << "x" << drawn.height << " to " << width << "x"
          << height;
    }
  }
}

TEST(Resize, KeepsOneColour) {
  Image image{.width = 13, .height = 7, .rgb = std::vector<uint8_t>(13 * 7 * 3, 200)};
  for (const Resample filter : {Resample::kBilinear, Resample::kBicubic}) {
    for (const uint8_t value : resize(image, 40, 3, filter).rgb) ASSERT_EQ(value, 200);
  }
}

}  // namespace
}  // namespace espalier
