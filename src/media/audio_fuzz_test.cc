// Valid sounds of every format, changed at random: each is decoded or refused with a message,
// within the limits. ESPALIER_FUZZ_SCALE=1000 runs a million cases of WAV; the asan preset shows
// what they touch.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/rng.h"
#include "media/audio.h"
#include "media/drawn_sound.h"

namespace espalier {
namespace {

using SoundFile = std::vector<uint8_t>;

std::vector<SoundFile> sound_files(bool wav) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(test::kSoundGoldens)) {
    if ((entry.path().extension() == ".wav") == wav) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<SoundFile> files;
  for (const auto& path : paths) files.push_back(test::read_sound(path.filename().string()));
  return files;
}

// Half of the changes lie in the first 64 bytes, where headers are.
size_t changed_place(Rng& rng, const SoundFile& bytes) {
  return rng.below(rng.below(2) == 0 ? bytes.size() : std::min<size_t>(64, bytes.size()));
}

void change(Rng& rng, SoundFile& bytes) {
  const size_t at = changed_place(rng, bytes);
  switch (rng.below(5)) {
    case 0:
      bytes[at] = static_cast<uint8_t>(rng.below(256));
      break;
    case 1:
      bytes[at] ^= static_cast<uint8_t>(1u << rng.below(8));
      break;
    case 2:
      bytes[at] = rng.below(2) == 0 ? 0 : 0xff;
      break;
    case 3:
      bytes.resize(at + 1);
      break;
    default:
      bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), 1 + rng.below(8),
                   static_cast<uint8_t>(rng.below(256)));
  }
}

// Decodes so many changed files and checks each result.
void run_changed_sounds(const std::vector<SoundFile>& files, uint64_t rounds) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  Rng rng(seed);
  const AudioLimits limits{.bytes_max = 20'000, .seconds_max = 2};
  uint64_t decoded = 0, refused = 0;
  for (uint64_t round = 0; round < rounds; ++round) {
    SoundFile bytes = files[rng.below(files.size())];
    const uint64_t count = 1 + rng.below(4);
    for (uint64_t i = 0; i < count; ++i) change(rng, bytes);
    const auto audio = decode_audio(bytes, limits);
    if (!audio) {
      ASSERT_FALSE(audio.error().message().empty());
      ++refused;
      continue;
    }
    ++decoded;
    ASSERT_GE(std::ssize(audio->samples), 1);
    ASSERT_LE(std::ssize(audio->samples), limits.frames_max());
    ASSERT_LE(audio->seconds(), limits.seconds_max);
    ASSERT_TRUE(std::ranges::all_of(audio->samples, [](float x) { return std::isfinite(x); }));
  }
  // Changes that all files survive, or none does, would test little.
  EXPECT_GT(decoded, rounds / 20);
  EXPECT_GT(refused, rounds / 20);
}

uint64_t fuzz_scale() {
  const char* scale = std::getenv("ESPALIER_FUZZ_SCALE");
  return scale == nullptr ? 1 : std::strtoull(scale, nullptr, 10);
}

TEST(AudioFuzz, WavIsDecodedOrRefused) {
  run_changed_sounds(sound_files(true), 2000 * fuzz_scale());
}

TEST(AudioFuzz, OtherFormatsAreDecodedOrRefused) {
  const auto probe = read_audio_header(test::read_sound("mono.flac"), {});
  if (!probe) GTEST_SKIP() << probe.error().message();
  run_changed_sounds(sound_files(false), 200 * fuzz_scale());
}

}  // namespace
}  // namespace espalier
