#include "media/mel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>

#include "base/rng.h"
#include "media/drawn_sound.h"
#include "media/fourier.h"

namespace espalier {
namespace {

// The largest difference from transformers' features, at the values that the line has.
double difference_from_whisper(const std::string& line,
                               const std::function<void(std::vector<float>&, MelSpec&)>& change) {
  std::istringstream golden(line);
  int32_t mels = 0;
  int64_t count = 0;
  golden >> mels >> count;
  std::vector<float> samples = test::drawn_samples(count);
  samples.resize(480'000);
  MelSpec spec{.num_mels = mels};
  if (change) change(samples, spec);
  const MelSpectrogram mel = log_mel(samples, spec);
  EXPECT_EQ(mel.num_frames, 3000);
  EXPECT_EQ(mel.values.size(), static_cast<size_t>(mels) * 3000);
  double largest = 0;
  for (uint64_t i = 0; i < 256; ++i) {
    double expected = 0;
    golden >> expected;
    const size_t at = (i * 2654435761 + 12345) % mel.values.size();
    largest = std::max(largest, std::fabs(static_cast<double>(mel.values[at]) - expected));
  }
  EXPECT_TRUE(golden);
  return largest;
}

std::vector<std::string> golden_lines() {
  std::ifstream file("tests/golden/media/mel.txt");
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(Mel, EqualsWhispersFeatureExtractor) {
  const std::vector<std::string> lines = golden_lines();
  ASSERT_EQ(lines.size(), 3u);
  for (const std::string& line : lines) {
    const double difference = difference_from_whisper(line, nullptr);
    RecordProperty("difference", std::to_string(difference));
    EXPECT_LT(difference, 1e-5) << line.substr(0, 16);
  }
}

TEST(Mel, FaultsAreNoticed) {
  const std::string line = golden_lines().at(1);
  const auto quieter = [](std::vector<float>& samples, MelSpec&) {
    for (float& sample : samples) sample *= 0.99f;
  };
  const auto other_rate = [](std::vector<float>&, MelSpec& spec) { spec.sample_rate = 16'100; };
  const auto later = [](std::vector<float>& samples, MelSpec&) {
    samples.insert(samples.begin(), 0.0f);
    samples.pop_back();
  };
  EXPECT_GT(difference_from_whisper(line, quieter), 1e-4);
  EXPECT_GT(difference_from_whisper(line, other_rate), 1e-4);
  EXPECT_GT(difference_from_whisper(line, later), 1e-4);
}

TEST(Mel, SilenceIsTheLowestValue) {
  const MelSpectrogram mel = log_mel(std::vector<float>(1600), {});
  EXPECT_EQ(mel.num_frames, 10);
  for (const float value : mel.values) EXPECT_EQ(value, -1.5f);
}

TEST(Mel, FiltersHaveUnitArea) {
  const std::vector<double> filters = mel_filters({.num_mels = 80});
  ASSERT_EQ(filters.size(), 80u * 201);
  // A bin is 40 Hz wide; wide triangles are sampled often enough to show their area of 1.
  const double last = std::accumulate(filters.end() - 201, filters.end(), 0.0) * 40;
  EXPECT_NEAR(last, 1, 0.02);
}

TEST(Fourier, EqualsTheDefinition) {
  Rng rng(7);
  for (const int32_t length : {1, 2, 3, 4, 5, 12, 30, 100, 400}) {
    std::vector<std::complex<double>> in(static_cast<size_t>(length)), out(in.size());
    for (auto& value : in) {
      value = {static_cast<double>(rng.below(2001)) / 1000 - 1,
               static_cast<double>(rng.below(2001)) / 1000 - 1};
    }
    media::FourierTransform(length).transform(in, out);
    for (int32_t k = 0; k < length; ++k) {
      std::complex<double> sum = 0;
      for (int32_t n = 0; n < length; ++n) {
        const auto turn = static_cast<double>(int64_t{n} * k % length);
        sum += in[static_cast<size_t>(n)] * std::polar(1.0, -2 * M_PI * turn / length);
      }
      EXPECT_LT(std::abs(sum - out[static_cast<size_t>(k)]), 1e-11) << length << ", " << k;
    }
  }
}

}  // namespace
}  // namespace espalier
