// Requests with pictures through an engine of a tiny LLaVA: the numbers of transformers, the same
// bits whatever is cached, cut or beside them, and errors for what cannot be served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <future>

#include "engine/testing/refusing_encoder.h"
#include "engine/testing/seeing_requests.h"

namespace espalier {
namespace {

using testing::HasSubstr;

// A tensor of the golden's reference.safetensors: a length, a header of JSON, and the data.
template <typename T>
std::vector<T> reference(const std::string& name, const std::string& model = "llava_clip") {
  std::ifstream in("tests/golden/images/" + model + "/reference.safetensors", std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  uint64_t header = 0;
  if (file.size() < sizeof header) return {};
  std::memcpy(&header, file.data(), sizeof header);
  const std::string_view text = std::string_view(file).substr(sizeof header, header);
  const size_t at = text.find("\"data_offsets\":[", text.find("\"" + name + "\""));
  size_t begin = 0, end = 0;
  if (std::sscanf(text.data() + at, "\"data_offsets\":[%zu,%zu]", &begin, &end) != 2) return {};
  std::vector<T> values((end - begin) / sizeof(T));
  std::memcpy(values.data(), file.data() + sizeof header + header + begin, end - begin);
  return values;
}

void expect_equal(const std::vector<Answer>& got, const std::vector<Answer>& want,
                  const std::string& how) {
  ASSERT_EQ(got.size(), want.size()) << how;
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].ids, want[i].ids) << how << ", request " << i;
    EXPECT_EQ(got[i].logprobs, want[i].logprobs) << how << ", request " << i;
    EXPECT_EQ(got[i].input_logprobs, want[i].input_logprobs) << how << ", request " << i;
  }
}

// One after the other, with what is cached then, and all at once.
void expect_equal_in_any_company(Engine& engine, const std::vector<Answer>& want,
                                 const std::string& how) {
  expect_equal(answers(engine), want, how + ", cold");
  expect_equal(answers(engine), want, how + ", warm");
  expect_equal(answers_together(engine), want, how + ", together");
  const bool one_token = engine.model_info().images->num_cross_layers > 0;
  EXPECT_GT(engine.stats().tokens.cached, one_token ? 50 : 100) << how;
}

TEST(ImagesEngine, PromptLogprobsEqualTransformers) {
  auto engine = load_golden(kSeeing, {});
  ASSERT_NE(engine, nullptr);
  GenerateRequest request = seen_request();
  request.logprob_start_len = 0;
  const auto result = engine->generate(request);
  ASSERT_TRUE(result) << result.error().message();
  const auto prompt = reference<TokenId>("seen_prompt");
  const auto logits = reference<float>("seen_logits");
  ASSERT_FALSE(prompt.empty() || logits.empty());
  ASSERT_EQ(result->stats.prompt_tokens, std::ssize(prompt));
  ASSERT_EQ(result->input_logprobs.size(), prompt.size() - 1);
  const size_t vocab = logits.size() / prompt.size();
  for (size_t at = 1; at < prompt.size(); ++at) {
    const float* row = logits.data() + (at - 1) * vocab;
    double sum = 0;
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(double{row[i]});
    const double wanted = double{row[prompt[at]]} - std::log(sum);
    EXPECT_NEAR(result->input_logprobs[at - 1].logprob, wanted, 1e-3) << at;
  }
}

TEST(ImagesEngine, BitsDoNotDependOnTheCompany) {
  auto alone = load_golden(kSeeing, {.cache = {.disable_radix_cache = true}});
  ASSERT_NE(alone, nullptr);
  const std::vector<Answer> wanted = answers(*alone);
  const auto check = [&](const std::string& how, EngineConfig config) {
    auto engine = load_golden(kSeeing, config);
    ASSERT_NE(engine, nullptr);
    expect_equal_in_any_company(*engine, wanted, how);
  };
  check("defaults", {});
  for (const int32_t chunk : {1, 5, 16, 17})
    check("chunks of " + std::to_string(chunk), {.schedule = {.chunked_prefill_size = chunk}});
  check("pages of 5", {.compute = {.num_threads = 2},
                       .cache = {.page_size = 5},
                       .schedule = {.chunked_prefill_size = 7}});
  for (const char* algorithm : {"NGRAM", "RADIX", "COMBINED"})
    check(std::string("draft tokens, ") + algorithm,
          {.speculation = {.speculative_algorithm = algorithm}});
  check("a tiny pool",
        {.cache = {.max_total_tokens = 150},
         .schedule = {.chunked_prefill_size = 16, .schedule_conservativeness = 0.05}});
}

// The tree holds a picture's keys behind a text that others send too.
TEST(ImagesEngine, KeysOfPicturesAreNoDraftTokens) {
  GenerateRequest text = seen_request();
  text.input_ids.resize(4);  // what stands before the picture
  text.images.clear();
  const auto plain = load_golden(kSeeing, {});
  ASSERT_NE(plain, nullptr);
  const auto want = plain->generate(text);
  ASSERT_TRUE(want) << want.error().message();
  for (const char* algorithm : {"RADIX", "COMBINED"}) {
    const auto engine = load_golden(kSeeing, {.speculation = {.speculative_algorithm = algorithm}});
    ASSERT_NE(engine, nullptr);
    ASSERT_TRUE(engine->generate(seen_request()));
    for (int i = 0; i < 3; ++i) {
      const auto got = engine->generate(text);
      ASSERT_TRUE(got) << got.error().message();
      EXPECT_EQ(got->output_ids, want->output_ids) << algorithm;
    }
  }
}

TEST(ImagesEngine, RanksGiveOneAnswer) {
  auto one = load_golden(kSeeing, {.compute = {.tp_size = 2}});
  auto other = load_golden(kSeeing, {.compute = {.num_threads = 4, .tp_size = 2},
                                     .schedule = {.chunked_prefill_size = 5}});
  ASSERT_TRUE(one != nullptr && other != nullptr);
  expect_equal(answers(*other), answers(*one), "two ranks");
}

TEST(ImagesEngine, TheSecondQuestionFindsThePicture) {
  auto engine = load_golden(kSeeing, {});
  ASSERT_NE(engine, nullptr);
  GenerateRequest request = seen_request();
  request.input_ids = {1, 3, kPlaceholder, 5, 6, 7};
  request.images = {picture(40, 31)};
  const auto first = engine->generate(request);
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_EQ(first->stats.cached_tokens, 0);
  request.input_ids = {1, 3, kPlaceholder, 8, 9};
  const auto second = engine->generate(request);
  EXPECT_EQ(second->stats.prompt_tokens, 4 + kRows);
  EXPECT_EQ(second->stats.cached_tokens, 2 + kRows);
  EngineStats stats = engine->stats();
  EXPECT_EQ(stats.images.num_total, 2);
  EXPECT_EQ(stats.images.num_encoded, 1);
  // Another picture at the same place shares what stands before it, and nothing else.
  request.images = {picture(40, 30)};
  EXPECT_EQ(engine->generate(request)->stats.cached_tokens, 2);
  // One picture that is there behind another one.
  request.input_ids = {1, 3, kPlaceholder, kPlaceholder, 8};
  request.images = {picture(40, 31), picture(40, 30)};
  EXPECT_EQ(engine->generate(request)->stats.cached_tokens, 2 + kRows);
  stats = engine->stats();
  EXPECT_EQ(stats.images.num_encoded, 2);
  // Namespaces share rows, which are functions of the picture, and no pages.
  request.extra_key = "other";
  EXPECT_EQ(engine->generate(request)->stats.cached_tokens, 0);
  EXPECT_EQ(engine->stats().images.num_encoded, 2);
}

TEST(ImagesEngine, SamplesShareThePrompt) {
  auto engine = load_golden(kSeeing, {});
  ASSERT_NE(engine, nullptr);
  GenerateRequest request = seen_request();
  request.sampling.n = 3;
  request.sampling.temperature = 1.0f;
  request.sampling.sampling_seed = 4;
  const auto together = engine->generate_all(request);
  ASSERT_TRUE(together) << together.error().message();
  engine->flush_cache().ok();
  const auto again = engine->generate_all(request);
  ASSERT_TRUE(again);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ((*together)[i].output_ids, (*again)[i].output_ids);
  EXPECT_NE((*together)[0].output_ids, (*together)[1].output_ids);
}

// Rows that are kept give way, and those in use do not.
TEST(ImagesEngine, RowsStayWithinTheirBound) {
  constexpr int64_t kRowBytes = kRows * 32 * 4;
  auto engine = load_golden(kSeeing, {.images = {.image_cache_bytes = 2 * kRowBytes}});
  ASSERT_NE(engine, nullptr);
  GenerateRequest request = seen_request();
  request.input_ids = {1, kPlaceholder, 2};
  for (int32_t width = 10; width < 16; ++width) {
    request.images = {picture(width, 20)};
    EXPECT_TRUE(engine->generate(request));
    EXPECT_LE(engine->stats().images.row_bytes, 2 * kRowBytes);
  }
  EXPECT_EQ(engine->stats().images.num_encoded, 6);
  request.input_ids = {1, kPlaceholder, kPlaceholder, kPlaceholder};
  request.images = {picture(1, 20), picture(2, 20), picture(3, 20)};
  const auto refused = engine->generate(request);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("--image-cache-bytes has room for 2"));
}

TEST(ImagesEngine, WhatCannotBeServedIsRefused) {
  auto engine =
      load_golden(kSeeing, {.images = {.max_images_per_request = 2, .max_image_pixels = 5000}});
  ASSERT_NE(engine, nullptr);
  const auto refusal = [&](Engine& by, const auto& change) {
    GenerateRequest request = seen_request();
    change(request);
    const auto result = by.generate(request);
    return result ? std::string("served") : result.error().message();
  };
  EXPECT_THAT(refusal(*engine, [](auto& r) { r.images.pop_back(); }),
              HasSubstr("has 2 placeholders of pictures (token 97) and the request 1 pictures"));
  EXPECT_THAT(refusal(*engine, [](auto& r) { r.images.clear(); }),
              HasSubstr("and the request no picture: send a picture"));
  EXPECT_THAT(refusal(*engine, [](auto& r) { r.images.resize(3, r.images[0]); }),
              HasSubstr("--max-images-per-request"));
  EXPECT_THAT(refusal(*engine, [](auto& r) { r.images[1] = picture(100, 51); }),
              HasSubstr("picture 2 of 2: "));
  EXPECT_THAT(
      refusal(*engine,
              [](auto& r) { r.images[0].read = [] { return Result<std::string>("no picture"); }; }),
      HasSubstr("picture 1 of 2: "));
  EXPECT_THAT(refusal(*engine, [](auto& r) { r.session = SessionParams{.id = "s"}; }),
              HasSubstr("session"));
  EXPECT_THAT(refusal(*engine, [](auto& r) { r.logprob_start_len = 100; }),
              HasSubstr("the prompt has 44 tokens"));
  EXPECT_THAT(refusal(*engine, [](auto& r) { r.input_ids[0] = kFirstSpanKey; }),
              HasSubstr("the model's are in [0, 99)"));
  auto blind = load_golden("qwen2_f32", {});
  EXPECT_THAT(refusal(*blind, [](auto&) {}), HasSubstr("reads text alone"));
  EXPECT_EQ(refusal(*engine, [](auto&) {}), "served");
}

// Requests whose pictures are encoded in one batch with one that the encoder refuses are answered
// as if they were alone. Until that has happened: all first pictures come while one is encoded.
TEST(ImagesEngine, ARefusedPictureFailsItsRequestAlone) {
  const auto plain = load_golden(kSeeing, {});
  const RefusingEngine refusing = make_refusing_engine();
  ASSERT_TRUE(plain != nullptr && refusing.engine != nullptr);
  int32_t width = 10;  // of no picture before, whose rows would be kept
  while (refusing.counts->num_refused_together < 3) {
    std::vector<GenerateRequest> requests(6, seen_request());
    for (GenerateRequest& request : requests) {
      request.images = {picture(width, 20), picture(width + 1, 20)};
      width += 2;
    }
    requests[2].images[0] = RefusingEncoder::dark_picture(width, 20);
    refusing.counts->num_awaited = refusing.counts->num_come + static_cast<int>(requests.size());
    const auto results = results_in_a_crowd(*refusing.engine, requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const FinishReason& finish = results[i].finish;
      if (i == 2) {
        EXPECT_EQ(finish.type, FinishReason::Type::kError);
        EXPECT_EQ(finish.status.code(), StatusCode::kInvalidArgument);
        EXPECT_THAT(finish.status.message(),
                    HasSubstr("picture 1 of 2: the encoder does not take a picture without any"));
        continue;
      }
      ASSERT_EQ(finish.type, FinishReason::Type::kLength) << finish.status.to_string();
      const auto want = plain->generate(requests[i]);
      ASSERT_TRUE(want) << want.error().message();
      EXPECT_EQ(answer_of(results[i]), answer_of(*want)) << i;
    }
  }
  EXPECT_GE(refusing.counts->num_refused_alone, 3);
}

// A request ends while its picture is fetched, and what comes of the picture counts for nothing.
TEST(ImagesEngine, AbortsWhileAPictureIsRead) {
  auto engine = load_golden(kSeeing, {});
  ASSERT_NE(engine, nullptr);
  std::promise<void> reading, release;
  std::shared_future<void> released = release.get_future().share();
  GenerateRequest request = seen_request();
  request.rid = "slow";
  request.images[0].read = [&reading, released]() -> Result<std::string> {
    reading.set_value();
    released.wait();
    return bmp_of(test::drawn(40, 31));
  };
  Collector aborted;
  ASSERT_TRUE(engine->submit(request, aborted.sink()));
  reading.get_future().wait();
  EXPECT_TRUE(engine->generate(seen_request()));  // others go on
  engine->abort("slow", Engine::AbortScope::kExact);
  ASSERT_TRUE(aborted.wait_end());
  EXPECT_EQ(aborted.finish_type(), FinishReason::Type::kAbort);
  release.set_value();
  EXPECT_TRUE(engine->generate(seen_request()));
}

// Models whose pictures have as many rows as their sizes demand.
class AnySizeEngine : public testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return std::string("../images/") + GetParam(); }

  // The golden's prompt, one placeholder for each of its pictures.
  static GenerateRequest golden_request() {
    GenerateRequest request = seen_request();
    request.input_ids = reference<TokenId>("prompt", GetParam());
    request.input_ids.insert(request.input_ids.begin() + 7, kPlaceholder);
    request.input_ids.insert(request.input_ids.begin() + 4, kPlaceholder);
    return request;
  }
};

TEST_P(AnySizeEngine, GreedyTokensEqualTransformers) {
  const auto wanted = reference<TokenId>("seen_tokens", GetParam());
  const auto seen = reference<TokenId>("seen_prompt", GetParam());
  ASSERT_EQ(wanted.size(), 12u);
  for (const int32_t chunk : {512, 5}) {
    auto engine = load_golden(folder(), {.schedule = {.chunked_prefill_size = chunk}});
    ASSERT_NE(engine, nullptr);
    GenerateRequest request = golden_request();
    for (int round = 0; round < 3; ++round) {
      const auto result = engine->generate(request);
      ASSERT_TRUE(result) << result.error().message();
      EXPECT_EQ(result->stats.prompt_tokens, std::ssize(seen));
      EXPECT_EQ(result->output_ids, wanted) << "chunks of " << chunk << ", round " << round;
      request.input_ids = seen;  // as transformers' processor expands it
    }
  }
}

TEST_P(AnySizeEngine, BitsDoNotDependOnTheCompany) {
  auto alone = load_golden(folder(), {.cache = {.disable_radix_cache = true}});
  ASSERT_NE(alone, nullptr);
  const std::vector<Answer> wanted = answers(*alone);
  const auto check = [&](const std::string& how, const EngineConfig& config) {
    auto engine = load_golden(folder(), config);
    ASSERT_NE(engine, nullptr);
    expect_equal_in_any_company(*engine, wanted, how);
  };
  check("chunks of 7", {.compute = {.num_threads = 2},
                        .cache = {.page_size = 5},
                        .schedule = {.chunked_prefill_size = 7}});
  for (const char* algorithm : {"NGRAM", "RADIX", "COMBINED"})
    check(std::string("draft tokens, ") + algorithm,
          {.speculation = {.speculative_algorithm = algorithm}});
}

TEST_P(AnySizeEngine, TheSecondQuestionFindsThePicture) {
  auto engine = load_golden(folder(), {});
  ASSERT_NE(engine, nullptr);
  GenerateRequest request = golden_request();
  request.input_ids = {1, 3, kPlaceholder, 5, 6, 7};
  request.images = {picture(150, 80)};
  const auto first = engine->generate(request);
  ASSERT_TRUE(first) << first.error().message();
  const int32_t rows = first->stats.prompt_tokens - 5;
  request.input_ids = {1, 3, kPlaceholder, 8, 9};
  const auto second = engine->generate(request);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->stats.cached_tokens, 2 + rows);
  EXPECT_EQ(engine->stats().images.num_encoded, 1);
}

// Of pictures whose rows stand in the prompt.
class RowsInPromptEngine : public AnySizeEngine {};

TEST_P(RowsInPromptEngine, WhatCannotBeServedIsRefused) {
  auto engine = load_golden(folder(), {.images = {.image_cache_bytes = 20 * 32 * 4}});
  ASSERT_NE(engine, nullptr);
  GenerateRequest request = golden_request();
  request.logprob_start_len = 0;
  const auto logprobs = engine->generate(request);
  ASSERT_FALSE(logprobs);
  EXPECT_THAT(logprobs.error().message(), HasSubstr("logprob_start_len"));
  request.logprob_start_len = -1;
  request.input_ids = {1, kPlaceholder, 2};
  request.images = {picture(300, 200)};
  const auto large = engine->generate(request);
  ASSERT_FALSE(large);
  EXPECT_THAT(large.error().message(), HasSubstr("--image-cache-bytes has no room"));
  auto narrow = load_golden(folder(), {.model = {.context_length = 20}});
  ASSERT_NE(narrow, nullptr);
  const auto longer = narrow->generate(request);
  ASSERT_FALSE(longer);
  EXPECT_THAT(longer.error().message(), HasSubstr("prompt and output share"));
  EXPECT_EQ(narrow->stats().images.num_encoded, 0);
  request.input_ids = {1, kPlaceholder, kPlaceholder, 2};
  const auto few = load_golden(folder(), {})->generate(request);
  ASSERT_FALSE(few);
  EXPECT_THAT(few.error().message(), HasSubstr("2 placeholders"));
}

INSTANTIATE_TEST_SUITE_P(All, AnySizeEngine,
                         testing::Values("llava_next", "qwen2_vl", "qwen2_5_vl", "qwen3_vl",
                                         "pixtral", "mistral3", "internvl", "mllama"),
                         [](const auto& tested) { return std::string(tested.param); });
INSTANTIATE_TEST_SUITE_P(All, RowsInPromptEngine,
                         testing::Values("llava_next", "qwen2_vl", "qwen2_5_vl", "qwen3_vl",
                                         "pixtral", "mistral3", "internvl"),
                         [](const auto& tested) { return std::string(tested.param); });

// A picture that is read by cross attention is one token, which the model cannot generate, and the
// texts behind it see it from their first step to their last.
TEST(ImagesEngine, PicturesOfCrossAttentionAreOneToken) {
  const auto prompt = reference<TokenId>("first_prompt", "mllama");
  const auto logits = reference<float>("first_logits", "mllama");
  const size_t vocab = logits.size() / prompt.size();
  for (const int32_t chunk : {512, 3}) {
    auto engine = load_golden("../images/mllama", {.schedule = {.chunked_prefill_size = chunk}});
    ASSERT_NE(engine, nullptr);
    GenerateRequest request = seen_request();
    request.input_ids = prompt;
    request.images = {picture(40, 31), picture(17, 90), picture(28, 28)};
    request.logprob_start_len = 0;
    for (int round = 0; round < 2; ++round) {  // the second one finds all of it
      const auto result = engine->generate(request);
      ASSERT_TRUE(result) << result.error().message();
      EXPECT_EQ(result->stats.prompt_tokens, std::ssize(prompt));
      ASSERT_EQ(result->input_logprobs.size(), prompt.size() - 1);
      for (size_t at = 1; at < prompt.size(); ++at) {
        if (prompt[at] == kPlaceholder) {
          EXPECT_LT(result->input_logprobs[at - 1].logprob, -1e29f);
          continue;
        }
        const float* row = logits.data() + (at - 1) * vocab;
        double sum = 0;
        for (size_t i = 0; i < vocab; ++i) sum += std::exp(double{row[i]});
        const double wanted = double{row[prompt[at]]} - std::log(sum);
        EXPECT_NEAR(result->input_logprobs[at - 1].logprob, wanted, 1e-3) << at;
      }
    }
    // Another picture in the middle changes what is behind it.
    const auto before = engine->generate(request);
    request.images[1] = picture(90, 17);
    const auto other = engine->generate(request);
    ASSERT_TRUE(before && other);
    EXPECT_EQ(other->input_logprobs[3].logprob, before->input_logprobs[3].logprob);
    EXPECT_NE(other->input_logprobs.back().logprob, before->input_logprobs.back().logprob);
    EXPECT_EQ(engine->stats().images.num_encoded, 4);
    request.images.pop_back();
    const auto few = engine->generate(request);
    ASSERT_FALSE(few);
    EXPECT_THAT(few.error().message(), HasSubstr("3 placeholders"));
  }
}

// Frames of one size that differ in a byte, which have no rate.
ImageInput video_of(int32_t num_frames) {
  ImageInput video;
  for (int32_t i = 0; i < num_frames; ++i) {
    video.frames.emplace_back([i]() -> Result<std::string> {
      Image frame = test::drawn(50, 70);
      frame.rgb[0] = static_cast<uint8_t>(i);
      return bmp_of(frame);
    });
  }
  return video;
}

TEST(ImagesEngine, VideosTakeTheirPlaces) {
  constexpr TokenId kVideo = 98;
  const auto seen = reference<TokenId>("video_prompt", "qwen2_5_vl");
  ASSERT_FALSE(seen.empty());
  auto engine = load_golden("../images/qwen2_5_vl", {.schedule = {.chunked_prefill_size = 7}});
  ASSERT_NE(engine, nullptr);
  GenerateRequest request = seen_request();
  request.input_ids = reference<TokenId>("prompt", "qwen2_5_vl");
  request.input_ids.insert(request.input_ids.begin() + 7, kVideo);
  request.input_ids.insert(request.input_ids.begin() + 4, kPlaceholder);
  request.images = {picture(40, 31), video_of(5)};
  const auto first = engine->generate(request);
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_EQ(first->stats.prompt_tokens, std::ssize(seen));
  GenerateRequest expanded = request;
  expanded.input_ids = seen;
  const auto again = engine->generate(expanded);
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again->output_ids, first->output_ids);
  EXPECT_EQ(again->stats.cached_tokens, std::ssize(seen) - 1);
  EXPECT_EQ(engine->stats().images.num_encoded, 2);
  // Kinds may come in any order, as /generate brings them.
  request.images = {video_of(5), picture(40, 31)};
  const auto turned = engine->generate(request);
  ASSERT_TRUE(turned) << turned.error().message();
  EXPECT_EQ(turned->output_ids, first->output_ids);
  request.images = {video_of(5), video_of(5)};
  const auto refused = engine->generate(request);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("in the order of their placeholders"));
  // Two frames are one grid, and another time is another video.
  request.images = {picture(40, 31), video_of(6)};
  EXPECT_EQ(engine->generate(request)->stats.prompt_tokens, std::ssize(seen));
  request.images[1].frames_per_second = 1;
  EXPECT_TRUE(engine->generate(request));
  EXPECT_EQ(engine->stats().images.num_encoded, 4);
  for (const double rate : {1e-9, 1e-4}) {  // times that no number holds, and beyond the context
    request.images[1].frames_per_second = rate;
    const auto slow = engine->generate(request);
    ASSERT_FALSE(slow) << rate;
    EXPECT_EQ(slow.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(slow.error().message(), HasSubstr("higher fps"));
  }
}

// Qwen3-VL's: each pair of frames behind its time. The golden models have no tokenizer, so the
// prompt brings the times (video_times_test.cc has the others).
TEST(ImagesEngine, GridsOfVideosStandBehindTheirTimes) {
  constexpr TokenId kVideo = 98;
  auto engine = load_golden("../images/qwen3_vl", {.schedule = {.chunked_prefill_size = 7}});
  ASSERT_NE(engine, nullptr);
  const auto expanded = reference<TokenId>("video_prompt", "qwen3_vl");
  GenerateRequest request = seen_request();
  request.input_ids = expanded;
  request.images = {picture(40, 31), video_of(5)};
  const auto first = engine->generate(request);
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_EQ(first->stats.prompt_tokens, std::ssize(expanded));
  const auto again = engine->generate(request);
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again->output_ids, first->output_ids);
  EXPECT_EQ(again->stats.cached_tokens, std::ssize(expanded) - 1);
  EXPECT_EQ(engine->stats().images.num_encoded, 2);
  request.images[1].frames_per_second = 1;  // other times are another video
  EXPECT_TRUE(engine->generate(request));
  EXPECT_EQ(engine->stats().images.num_encoded, 3);
  request.input_ids = {90, kPlaceholder, kVideo, 66};
  const auto refused = engine->generate(request);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(refused.error().message(), HasSubstr("has no tokenizer"));
}

TEST(ImagesEngine, VideosNeedAModelThatReadsThem) {
  auto engine = load_golden(kSeeing, {});
  ASSERT_NE(engine, nullptr);
  GenerateRequest request = seen_request();
  request.images[1] = video_of(2);
  const auto refused = engine->generate(request);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(refused.error().message(), HasSubstr("send its frames as pictures"));
}

// Of Gemma 3 a picture's rows see each other, so a chunk ends in front of a picture or behind it.
TEST(ImagesEngine, WholePicturesAreNotCut) {
  const std::string folder = "../images/gemma3";
  const auto wanted = reference<TokenId>("seen_tokens", "gemma3");
  const auto seen = reference<TokenId>("seen_prompt", "gemma3");
  ASSERT_EQ(wanted.size(), 12u);
  for (const int32_t chunk : {512, 16, 17, 23}) {
    auto engine = load_golden(
        folder, {.cache = {.page_size = 5}, .schedule = {.chunked_prefill_size = chunk}});
    ASSERT_NE(engine, nullptr);
    GenerateRequest request = seen_request();
    request.input_ids = seen;
    for (int round = 0; round < 2; ++round) {
      const auto result = engine->generate(request);
      ASSERT_TRUE(result) << result.error().message();
      EXPECT_EQ(result->output_ids, wanted) << "chunks of " << chunk << ", round " << round;
    }
  }
  auto alone = load_golden(folder, {.cache = {.disable_radix_cache = true}});
  ASSERT_NE(alone, nullptr);
  const std::vector<Answer> answers_alone = answers(*alone);
  for (const int32_t chunk : {16, 19}) {
    auto engine = load_golden(folder, {.compute = {.num_threads = 2},
                                       .cache = {.page_size = 5},
                                       .schedule = {.chunked_prefill_size = chunk}});
    ASSERT_NE(engine, nullptr);
    expect_equal_in_any_company(*engine, answers_alone, "chunks of " + std::to_string(chunk));
  }
}

// LLaVA-OneVision reads a picture in tiles where it stands alone, and their rows differ.
TEST(ImagesEngine, PicturesBesideOthersHaveKeysOfTheirOwn) {
  auto engine = load_golden("../images/llava_onevision", {});
  ASSERT_NE(engine, nullptr);
  GenerateRequest request = seen_request();
  request.input_ids = {1, kPlaceholder, 2};
  request.images = {picture(40, 31)};
  const auto alone = engine->generate(request);
  ASSERT_TRUE(alone) << alone.error().message();
  EXPECT_EQ(alone->stats.prompt_tokens, 2 + 70);
  request.input_ids = {1, kPlaceholder, 2, kPlaceholder};
  request.images.push_back(picture(40, 31));
  const auto beside = engine->generate(request);
  ASSERT_TRUE(beside) << beside.error().message();
  EXPECT_EQ(beside->stats.prompt_tokens, 2 + 2 * 17);
  EXPECT_EQ(beside->stats.cached_tokens, 1);
  EXPECT_EQ(engine->stats().images.num_encoded, 2);
}

}  // namespace
}  // namespace espalier
