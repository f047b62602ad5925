#include "media/resample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "media/drawn_sound.h"

namespace espalier {
namespace {

std::vector<float> tone(double hz, int32_t rate, double seconds) {
  std::vector<float> samples;
  for (int64_t i = 0; i < static_cast<int64_t>(seconds * rate); ++i) {
    samples.push_back(
        static_cast<float>(std::sin(2 * std::numbers::pi * hz * static_cast<double>(i) / rate)));
  }
  return samples;
}

// The largest value of |x - y|, a twentieth of a second from the ends.
double largest_difference(const std::vector<float>& x, const std::vector<float>& y, int32_t rate) {
  double largest = 0;
  const auto edge = static_cast<size_t>(rate / 20);
  for (size_t i = edge; i + edge < std::min(x.size(), y.size()); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i])));
  }
  return largest;
}

TEST(Resample, TonesOfThePassBandStay) {
  for (const int32_t from : {8000, 11025, 22050, 32000, 44100, 48000, 96000, 44101, 191'999}) {
    const double half = std::min(from, 16000) / 2.0;
    for (const double hz : {50.0, 0.25 * half, 0.6 * half, 0.9 * half}) {
      const std::vector<float> made = resample(tone(hz, from, 0.5), from, 16000);
      const std::vector<float> expected = tone(hz, 16000, 0.5);
      EXPECT_NEAR(static_cast<double>(made.size()), static_cast<double>(expected.size()), 1)
          << from;
      EXPECT_LT(largest_difference(made, expected, 16000), 1e-3) << from << " Hz, tone of " << hz;
    }
  }
}

TEST(Resample, TonesAboveTheBandAreDamped) {
  for (const int32_t from : {22050, 44100, 48000, 192000, 191'999}) {
    for (const double hz : {8800.0, 10'000.0}) {
      const std::vector<float> made = resample(tone(hz, from, 0.5), from, 16000);
      const std::vector<float> silence(made.size());
      EXPECT_LT(largest_difference(made, silence, 16000), 1e-4) << from << " Hz, tone of " << hz;
    }
  }
}

TEST(Resample, TheSameRateChangesNothing) {
  const std::vector<float> samples = test::drawn_samples(1000);
  EXPECT_EQ(resample(samples, 16000, 16000), samples);
}

TEST(Resample, AConstantKeepsItsLevel) {
  const std::vector<float> made = resample(std::vector<float>(44100, 0.5f), 44100, 16000);
  EXPECT_EQ(made.size(), 16000u);
  EXPECT_LT(largest_difference(made, std::vector<float>(16000, 0.5f), 16000), 1e-6);
}

TEST(Resample, ShortSoundsHaveResults) {
  EXPECT_TRUE(resample(std::vector<float>{}, 8000, 16000).empty());
  EXPECT_EQ(resample(std::vector<float>{1.0f}, 8000, 16000).size(), 2u);
  EXPECT_EQ(resample(std::vector<float>{1.0f}, 48000, 16000).size(), 0u);
  EXPECT_EQ(resample(std::vector<float>{1.0f, 1.0f}, 48000, 16000).size(), 1u);
}

}  // namespace
}  // namespace espalier
