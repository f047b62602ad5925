// Requests with files of videos, and with sounds, through engines of tiny models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "engine/testing/seeing_requests.h"
#include "media/drawn_sound.h"
#include "media/video.h"

namespace espalier {
namespace {

using testing::HasSubstr;

constexpr TokenId kVideoToken = 98;
const std::string kHearing = "../sounds/qwen2_audio";

std::string file_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

const std::string kVideoPath = test::kMediaGoldens + "videos/h264.mp4";

ImageInput video_file(VideoSampling sampling = {}) {
  return {.read = []() -> Result<std::string> { return file_text(kVideoPath); },
          .frames = {},
          .video_file = sampling};
}

// The same frames one by one; 24 of the file's are a second.
ImageInput listed_frames(std::vector<int32_t> indices) {
  const auto bytes = test::read_bytes(kVideoPath);
  auto video = VideoFile::open(bytes, {});
  ImageInput out{.read = {}, .frames = {}};
  out.frames_per_second = static_cast<double>(indices.size()) / 40 * 24;
  const Status read = (*video)->read(indices, [&](Image&& frame) {
    out.frames.emplace_back([file = bmp_of(frame)]() -> Result<std::string> { return file; });
    return Status();
  });
  EXPECT_TRUE(read.ok()) << read.message();
  return out;
}

GenerateRequest with_video(ImageInput video) {
  GenerateRequest request = seen_request();
  request.input_ids = {90, 61, kVideoToken, 66, 86};
  request.images = {std::move(video)};
  return request;
}

TEST(VideoFilesEngine, AFileIsItsSampledFrames) {
  if (const auto probe = VideoFile::open(test::read_bytes(kVideoPath), {}); !probe)
    GTEST_SKIP() << probe.error().message();
  auto engine = load_golden("../images/qwen2_5_vl", {});
  ASSERT_NE(engine, nullptr);
  const auto answer = [&](ImageInput video) {
    const auto result = engine->generate(with_video(std::move(video)));
    EXPECT_TRUE(result) << result.error().message();
    return result ? answer_of(*result) : Answer{};
  };
  const Answer file = answer(video_file()), frames = answer(listed_frames({0, 10, 20, 30}));
  EXPECT_EQ(file.ids, frames.ids);
  EXPECT_EQ(file.logprobs, frames.logprobs);
  // Other frames are another video; the same eight by their rate are computed once.
  const int64_t encoded = engine->stats().images.num_encoded;
  const Answer more = answer(video_file({.num_frames = 8}));
  EXPECT_NE(more.logprobs, file.logprobs);
  EXPECT_EQ(answer(video_file({.frames_per_second = 4.8})).logprobs, more.logprobs);
  EXPECT_EQ(engine->stats().images.num_encoded, encoded + 1);
  const auto second = engine->generate(with_video(video_file()));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->stats.cached_tokens, second->stats.prompt_tokens - 1);
}

TEST(VideoFilesEngine, LimitsAndDamageAreReported) {
  if (const auto probe = VideoFile::open(test::read_bytes(kVideoPath), {}); !probe)
    GTEST_SKIP() << probe.error().message();
  EngineConfig config;
  config.images.max_video_seconds = 1;
  auto engine = load_golden("../images/qwen2_vl", config);
  ASSERT_NE(engine, nullptr);
  const auto refusal = [&](ImageInput video) {
    const auto result = engine->generate(with_video(std::move(video)));
    EXPECT_FALSE(result);
    return result ? "" : std::string(result.error().message());
  };
  EXPECT_THAT(refusal(video_file()), HasSubstr("raise --max-video-seconds"));
  ImageInput damaged = video_file();
  damaged.read = []() -> Result<std::string> { return file_text(kVideoPath).substr(0, 300); };
  EXPECT_THAT(refusal(damaged), HasSubstr("picture 1 of 1"));
  damaged.read = []() -> Result<std::string> { return "no video"; };
  EXPECT_THAT(refusal(damaged), HasSubstr("send MP4"));
}

TEST(VideoFilesEngine, AModelOfPicturesRefusesThem) {
  auto engine = load_golden(kSeeing, {});
  ASSERT_NE(engine, nullptr);
  GenerateRequest request = seen_request();
  request.images[1] = video_file();
  const auto refused = engine->generate(request);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("send its frames as pictures"));
}

ImageInput sound(int64_t samples) {
  std::string file = "RIFF";
  const auto bytes = static_cast<uint32_t>(2 * samples);
  append_number(file, 36 + bytes, 4);
  file += "WAVEfmt ";
  for (const auto& [number, size] :
       {std::pair{16u, 4}, {1u, 2}, {1u, 2}, {16'000u, 4}, {32'000u, 4}, {2u, 2}, {16u, 2}})
    append_number(file, number, size);
  file += "data";
  append_number(file, bytes, 4);
  for (const int16_t sample : test::drawn_sound(samples))
    append_number(file, static_cast<uint16_t>(sample), 2);
  return {.read = [file]() -> Result<std::string> { return file; }, .frames = {}, .is_sound = true};
}

// The golden's prompt, with one placeholder for each of its sounds.
GenerateRequest sound_request() {
  GenerateRequest request = seen_request();
  request.images = {sound(4000), sound(641)};
  return request;
}

// As tests/golden/sounds has them; the text is that of the pictures' prompt.
TEST(SoundsEngine, TokensEqualTransformers) {
  auto engine = load_golden(kHearing, {.schedule = {.chunked_prefill_size = 3}});
  ASSERT_NE(engine, nullptr);
  const auto result = engine->generate(sound_request());
  ASSERT_TRUE(result) << result.error().message();
  EXPECT_EQ(result->stats.prompt_tokens, 19);
  EXPECT_EQ(result->output_ids,
            (std::vector<TokenId>{53, 53, 53, 53, 64, 53, 53, 53, 53, 53, 53, 53}));
  const auto again = engine->generate(sound_request());
  ASSERT_TRUE(again);
  EXPECT_EQ(again->output_ids, result->output_ids);
  EXPECT_EQ(again->stats.cached_tokens, 18);
  EXPECT_EQ(engine->stats().images.num_encoded, 2);
}

TEST(SoundsEngine, OtherInputsAreRefused) {
  auto engine = load_golden(kHearing, {});
  ASSERT_NE(engine, nullptr);
  const auto refusal = [&](std::vector<ImageInput> inputs) {
    GenerateRequest request = sound_request();
    request.images = std::move(inputs);
    const auto result = engine->generate(request);
    EXPECT_FALSE(result);
    return result ? "" : std::string(result.error().message());
  };
  EXPECT_THAT(refusal({sound(4000), picture(20, 20)}), HasSubstr("takes sounds alone"));
  EXPECT_THAT(refusal({sound(4000), sound(16'001)}), HasSubstr("sound 2 of 2: the sound lasts"));
  EXPECT_THAT(refusal({sound(4000)}), HasSubstr("one placeholder for each sound"));
  auto seeing = load_golden(kSeeing, {});
  ASSERT_NE(seeing, nullptr);
  GenerateRequest request = seen_request();
  request.images[0] = sound(4000);
  const auto result = seeing->generate(request);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message(), HasSubstr("this model reads pictures"));
}

}  // namespace
}  // namespace espalier
