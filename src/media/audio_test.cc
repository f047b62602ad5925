#include "media/audio.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "media/drawn_sound.h"

namespace espalier {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<uint8_t>;

bool has_libsndfile() { return dlopen("libsndfile.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr; }

// The drawn quarter of a second, and the same mixed with itself in reverse.
std::vector<float> expected_samples(bool stereo) {
  const std::vector<float> one = test::drawn_samples(4000);
  if (!stereo) return one;
  std::vector<float> mixed;
  for (size_t i = 0; i < one.size(); ++i) {
    mixed.push_back((one[i] + one[one.size() - 1 - i]) / 2);
  }
  return mixed;
}

struct SoundCase {
  const char* name;
  AudioFormat format;
  int32_t sample_rate, num_channels;
  float tolerance;
};

// The tests below are skipped without the library, so where data is required it is required too.
TEST(SoundLibrary, IsThereWhereDataIsRequired) {
  const char* const required = std::getenv("ESPALIER_REQUIRE_DATA");
  if (required != nullptr && std::string_view(required) == "1") {
    EXPECT_TRUE(has_libsndfile()) << "tools/setup installs libsndfile1";
  }
}

class ExactSound : public testing::TestWithParam<SoundCase> {};

TEST_P(ExactSound, SamplesAreThoseThatWereWritten) {
  const SoundCase& tested = GetParam();
  if (tested.format != AudioFormat::kWav && !has_libsndfile()) {
    GTEST_SKIP() << "libsndfile is not installed: tools/setup installs it";
  }
  const Bytes bytes = test::read_sound(tested.name);
  const auto header = read_audio_header(bytes, {});
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ(header->format, tested.format);
  EXPECT_EQ(header->sample_rate, tested.sample_rate);
  EXPECT_EQ(header->num_channels, tested.num_channels);
  EXPECT_EQ(header->num_frames, 4000);
  const auto audio = decode_audio(bytes, {});
  ASSERT_TRUE(audio) << audio.error().message();
  EXPECT_EQ(audio->sample_rate, tested.sample_rate);
  const std::vector<float> expected = expected_samples(tested.num_channels == 2);
  ASSERT_EQ(audio->samples.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(audio->samples[i], expected[i], tested.tolerance) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, ExactSound,
    testing::Values(SoundCase{"pcm16.wav", AudioFormat::kWav, 16000, 1, 0},
                    SoundCase{"pcm8.wav", AudioFormat::kWav, 16000, 1, 1.0f / 128},
                    SoundCase{"pcm24.wav", AudioFormat::kWav, 16000, 2, 0},
                    SoundCase{"pcm32.wav", AudioFormat::kWav, 16000, 1, 0},
                    SoundCase{"float.wav", AudioFormat::kWav, 16000, 1, 0},
                    SoundCase{"double.wav", AudioFormat::kWav, 16000, 1, 0},
                    SoundCase{"extensible.wav", AudioFormat::kWav, 44100, 2, 0},
                    SoundCase{"mono.flac", AudioFormat::kFlac, 16000, 1, 0},
                    SoundCase{"stereo.flac", AudioFormat::kFlac, 44100, 2, 0}),
    [](const auto& tested) {
      std::string name = tested.param.name;
      std::ranges::replace(name, '.', '_');
      return name;
    });

// The largest correlation with the drawn sound at any delay up to 2,400 samples.
double likeness_to_drawn(const std::vector<float>& samples) {
  const std::vector<float> drawn = test::drawn_samples(4000);
  double best = 0;
  for (int64_t delay = -2400; delay <= 2400; ++delay) {
    double product = 0, own = 0, other = 0;
    for (int64_t i = 0; i < 1500; ++i) {
      const int64_t at = i + 1200 + delay;
      if (at < 0 || at >= std::ssize(samples)) continue;
      const double a = static_cast<double>(drawn[static_cast<size_t>(i + 1200)]);
      const double b = static_cast<double>(samples[static_cast<size_t>(at)]);
      product += a * b;
      own += a * a;
      other += b * b;
    }
    if (own > 0 && other > 0) best = std::max(best, product / std::sqrt(own * other));
  }
  return best;
}

class LossySound : public testing::TestWithParam<SoundCase> {};

TEST_P(LossySound, SoundsAsItWasWritten) {
  if (!has_libsndfile()) GTEST_SKIP() << "libsndfile is not installed: tools/setup installs it";
  const SoundCase& tested = GetParam();
  const auto audio = decode_audio(test::read_sound(tested.name), {});
  ASSERT_TRUE(audio) << audio.error().message();
  const auto header = read_audio_header(test::read_sound(tested.name), {});
  ASSERT_TRUE(header);
  EXPECT_EQ(header->format, tested.format);
  EXPECT_EQ(header->sample_rate, tested.sample_rate);
  EXPECT_GE(std::ssize(audio->samples), 3500);
  EXPECT_LE(std::ssize(audio->samples), header->num_frames);
  EXPECT_GT(likeness_to_drawn(audio->samples), static_cast<double>(tested.tolerance));
}

INSTANTIATE_TEST_SUITE_P(All, LossySound,
                         testing::Values(SoundCase{"vorbis.ogg", AudioFormat::kOgg, 16000, 1, 0.9f},
                                         SoundCase{"opus.ogg", AudioFormat::kOgg, 16000, 1, 0.8f},
                                         SoundCase{"layer3.mp3", AudioFormat::kMp3, 16000, 1,
                                                   0.9f}),
                         [](const auto& tested) {
                           std::string name = tested.param.name;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

void expect_refused(const Bytes& bytes, const AudioLimits& limits, const std::string& reason) {
  for (const Status& status :
       {read_audio_header(bytes, limits).error(), decode_audio(bytes, limits).error()}) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr(reason));
  }
}

Bytes changed(Bytes bytes, size_t at, uint8_t value) {
  bytes[at] = value;
  return bytes;
}

TEST(Audio, RefusesWhatItDoesNotRead) {
  const Bytes wav = test::read_sound("pcm16.wav");
  expect_refused({}, {}, "empty");
  expect_refused({1, 2, 3}, {}, "send WAV, FLAC, Ogg or MP3");
  expect_refused(Bytes(wav.begin(), wav.begin() + 20), {}, "WAV: ");
  expect_refused(Bytes(wav.begin(), wav.end() - 10), {}, "ends 10 bytes before its data do");
  expect_refused(changed(wav, 20, 6), {}, "format 6 of 16 bits");
  expect_refused(changed(wav, 22, 2), {}, "2 channels in frames of 2 bytes");
  expect_refused(changed(changed(wav, 24, 1), 25, 0), {}, "at 1 Hz");
  expect_refused(changed(changed(wav, 26, 0xff), 27, 0x7f), {}, "Hz are not read here");
}

TEST(Audio, RefusesWhatIsAboveALimit) {
  const Bytes wav = test::read_sound("pcm16.wav");
  expect_refused(wav, {.bytes_max = 8000}, "above the limit of 8000");
  expect_refused(wav, {.seconds_max = 0.2}, "above the limit of 0.2 s");
  EXPECT_TRUE(decode_audio(wav, {.seconds_max = 0.25}));
  // 192 kHz may not take four times the memory of 48 kHz.
  Bytes fast = changed(changed(wav, 24, 0x00), 25, 0xee);
  fast[26] = 2;  // 192,000
  expect_refused(fast, {.seconds_max = 0.03}, "of 48 kHz at most");
  if (!has_libsndfile()) return;
  for (const char* name : {"mono.flac", "vorbis.ogg", "layer3.mp3"}) {
    expect_refused(test::read_sound(name), {.seconds_max = 0.2}, "above the limit of 0.2 s");
  }
}

// A program that writes into a pipe leaves the sizes as they are.
TEST(Audio, ReadsWavOfUnknownSize) {
  for (const uint8_t filler : {0, 0xff}) {
    Bytes wav = test::read_sound("pcm16.wav");
    for (size_t at = 40; at < 44; ++at) wav[at] = filler;
    const auto audio = decode_audio(wav, {});
    ASSERT_TRUE(audio) << audio.error().message();
    EXPECT_EQ(audio->samples, test::drawn_samples(4000));
  }
}

TEST(Audio, RefusesSamplesThatAreNoNumbers) {
  Bytes wav = test::read_sound("float.wav");
  const float nan = NAN;
  std::memcpy(wav.data() + wav.size() - 8, &nan, sizeof nan);
  const auto audio = decode_audio(wav, {});
  ASSERT_FALSE(audio);
  EXPECT_THAT(audio.error().message(), HasSubstr("sample 3998 is not finite"));
}

TEST(Audio, ChunksBesideTheSoundArePassedOver) {
  Bytes wav = test::read_sound("pcm16.wav");
  const Bytes odd = {'L', 'I', 'S', 'T', 3, 0, 0, 0, 'a', 'b', 'c', 0};
  wav.insert(wav.begin() + 12, odd.begin(), odd.end());
  const auto audio = decode_audio(wav, {});
  ASSERT_TRUE(audio) << audio.error().message();
  EXPECT_EQ(audio->samples, test::drawn_samples(4000));
}

TEST(Audio, JoinedFilesAreReadToTheirEnd) {
  if (!has_libsndfile()) GTEST_SKIP() << "libsndfile is not installed: tools/setup installs it";
  for (const char* name : {"layer3.mp3", "vorbis.ogg", "opus.ogg"}) {
    const Bytes one = test::read_sound(name);
    const auto alone = decode_audio(one, {});
    ASSERT_TRUE(alone) << alone.error().message();
    Bytes joined;
    for (int i = 0; i < 3; ++i) joined.insert(joined.end(), one.begin(), one.end());
    const auto audio = decode_audio(joined, {});
    ASSERT_TRUE(audio) << audio.error().message();
    EXPECT_NEAR(audio->seconds(), 3 * alone->seconds(), 0.15) << name;
    const std::vector<float> last(audio->samples.end() - std::ssize(alone->samples),
                                  audio->samples.end());
    EXPECT_GT(likeness_to_drawn(last), 0.8) << name;
    const auto bounded = decode_audio(joined, {.seconds_max = 0.5});
    ASSERT_FALSE(bounded) << name;
    EXPECT_THAT(bounded.error().message(), HasSubstr("limit")) << name;
  }
}

TEST(Audio, RefusesAFlacThatIsCutOff) {
  if (!has_libsndfile()) GTEST_SKIP() << "libsndfile is not installed: tools/setup installs it";
  const Bytes flac = test::read_sound("stereo.flac");
  const auto audio = decode_audio(Bytes(flac.begin(), flac.begin() + std::ssize(flac) / 2), {});
  ASSERT_FALSE(audio);
  EXPECT_EQ(audio.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(audio.error().message(), HasSubstr("of 4000 samples: it is cut off"));
}

// A program that writes into a pipe cannot state the length in the header.
TEST(Audio, ReadsAFlacOfUnknownLengthUpToTheLimit) {
  if (!has_libsndfile()) GTEST_SKIP() << "libsndfile is not installed: tools/setup installs it";
  Bytes flac = test::read_sound("mono.flac");
  flac[21] &= 0xf0;
  for (size_t at = 22; at < 26; ++at) flac[at] = 0;
  const auto header = read_audio_header(flac, {});
  ASSERT_TRUE(header) << header.error().message();
  EXPECT_EQ(header->num_frames, 0);
  const auto audio = decode_audio(flac, {});
  ASSERT_TRUE(audio) << audio.error().message();
  EXPECT_EQ(audio->samples, test::drawn_samples(4000));
  const auto bounded = decode_audio(flac, {.seconds_max = 0.2});
  ASSERT_FALSE(bounded);
  EXPECT_EQ(bounded.error().code(), StatusCode::kFailedPrecondition);
}

TEST(Audio, NamesItsFormats) {
  EXPECT_EQ(audio_format_name(AudioFormat::kWav), "WAV");
  EXPECT_EQ(audio_format_name(AudioFormat::kMp3), "MP3");
  EXPECT_EQ(recognise_audio(test::read_sound("opus.ogg")), AudioFormat::kOgg);
  EXPECT_EQ(recognise_audio(test::read_sound("layer3.mp3")), AudioFormat::kMp3);
  EXPECT_EQ(recognise_audio(Bytes{'R', 'I', 'F', 'F'}), std::nullopt);
}

}  // namespace
}  // namespace espalier
