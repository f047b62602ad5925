// Requests against what transformers' generate() makes of them, alone and together.
#include "speech/transcriber.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <future>
#include <map>
#include <mutex>

#include "speech/test_model.h"

namespace espalier::speech {
namespace {

using testing::HasSubstr;

std::unique_ptr<Transcriber> open(const std::string& name, int32_t running_max = 3) {
  auto made = Transcriber::create({.path = test::golden_folder(name),
                                   .dtype = "float32",
                                   .num_threads = 2,
                                   .running_max = running_max,
                                   .waiting_max = 16,
                                   .seed = 5});
  EXPECT_TRUE(made) << made.error().message();
  return std::move(*made);
}

TranscriptionRequest request_of(const test::SpeechCase& tested) {
  return {.samples = test::drawn_samples(tested.samples),
          .language = tested.language,
          .translate = tested.translate,
          .prompt = tested.prompt,
          .timestamps = tested.timestamps};
}

// A pair's second time, which transformers keeps with the segment before where the next one is cut
// off, is no text.
std::vector<TokenId> without_times(const std::vector<TokenId>& tokens) {
  std::vector<TokenId> text;
  std::ranges::copy_if(tokens, std::back_inserter(text), [](TokenId id) { return id < 256; });
  return text;
}

void expect_equal(const Transcription& made, const test::SpeechCase& expected) {
  std::vector<TokenId> tokens;
  for (const TranscriptSegment& segment : made.segments) {
    tokens.insert(tokens.end(), segment.tokens.begin(), segment.tokens.end());
  }
  EXPECT_EQ(without_times(tokens), without_times(expected.tokens));
  EXPECT_EQ(made.text, expected.text);
  EXPECT_EQ(made.language, expected.language.empty() ? expected.detected : expected.language);
  if (!expected.timestamps) return;
  ASSERT_EQ(made.segments.size(), expected.segments.size());
  for (size_t i = 0; i < made.segments.size(); ++i) {
    EXPECT_NEAR(made.segments[i].start, expected.segments[i][0], 1e-6) << i;
    EXPECT_NEAR(made.segments[i].end, expected.segments[i][1], 1e-6) << i;
  }
}

// Holds the transcriber's thread at a request's first text, until it is opened.
class Gate {
 public:
  TranscriptSink before(TranscriptSink sink) {
    return [this, sink](TranscriptEvent&& event) {
      opened_.wait();
      sink(std::move(event));
    };
  }
  void open() { open_.set_value(); }

 private:
  std::promise<void> open_;
  std::shared_future<void> opened_ = open_.get_future().share();
};

class TranscriberGolden : public testing::TestWithParam<const char*> {};

TEST_P(TranscriberGolden, EqualsGenerateOfTransformers) {
  const auto transcriber = open(GetParam());
  for (const test::SpeechCase& tested : test::read_cases(GetParam())) {
    SCOPED_TRACE(testing::Message() << tested.samples << " samples, '" << tested.language << "'");
    const auto made = transcriber->transcribe(request_of(tested));
    ASSERT_TRUE(made) << made.error().message();
    expect_equal(*made, tested);
    EXPECT_NEAR(made->duration, static_cast<double>(tested.samples) / 16000, 1e-9);
    EXPECT_GT(made->num_tokens, 0);
  }
}

// What a test collects of requests that run at the same time.
class Collected {
 public:
  TranscriptSink sink(size_t index) {
    return [this, index](TranscriptEvent&& event) {
      std::lock_guard lock(mutex_);
      deltas_[index] += event.delta;
      if (!event.finished) return;
      EXPECT_FALSE(ends_.contains(index)) << "a request ends once";
      ends_[index] = std::move(event);
      changed_.notify_all();
    };
  }
  TranscriptEvent end(size_t index) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ends_.contains(index); });
    return ends_[index];
  }
  std::string deltas(size_t index) {
    std::lock_guard lock(mutex_);
    return deltas_[index];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<size_t, TranscriptEvent> ends_;
  std::map<size_t, std::string> deltas_;
};

TEST_P(TranscriberGolden, RequestsTogetherEqualThemselvesAlone) {
  const std::vector<test::SpeechCase> cases = test::read_cases(GetParam());
  Collected collected;
  const auto transcriber = open(GetParam());
  constexpr size_t kRounds = 2;
  for (size_t i = 0; i < kRounds * cases.size(); ++i) {
    const auto id = transcriber->submit(request_of(cases[i % cases.size()]), collected.sink(i));
    ASSERT_TRUE(id) << id.error().message();
  }
  for (size_t i = 0; i < kRounds * cases.size(); ++i) {
    const TranscriptEvent end = collected.end(i);
    ASSERT_TRUE(end.status.ok()) << end.status.message();
    expect_equal(end.result, cases[i % cases.size()]);
    EXPECT_EQ(collected.deltas(i), end.result.text);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TranscriberGolden, testing::Values("multilingual", "english"),
                         [](const auto& tested) { return std::string(tested.param); });

TEST(Transcriber, TemperatureDrawsOtherTokens) {
  const auto transcriber = open("multilingual");
  test::SpeechCase tested = test::read_cases("multilingual").at(0);
  TranscriptionRequest request = request_of(tested);
  request.temperature = 1;
  const auto first = transcriber->transcribe(request), second = transcriber->transcribe(request);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->text, tested.text);
  EXPECT_NE(first->text, second->text);
  // Another transcriber of the same seed draws the same.
  const auto again = open("multilingual")->transcribe(request);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->text, first->text);
}

TEST(Transcriber, ShortSoundsAreRead) {
  const auto transcriber = open("multilingual");
  for (const int64_t count : {1, 100, 161, 5000}) {
    const auto made = transcriber->transcribe(
        {.samples = test::drawn_samples(count), .language = "en", .timestamps = true});
    ASSERT_TRUE(made) << made.error().message();
    EXPECT_FALSE(made->segments.empty());
  }
}

TEST(Transcriber, TokensOfAWindowAreBounded) {
  const auto made =
      open("multilingual")
          ->transcribe({.samples = test::drawn_samples(16'000), .language = "en", .tokens_max = 1});
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(made->num_tokens, 1);
}

TEST(Transcriber, WindowsOfALongSoundLetALaterRequestPass) {
  std::promise<void> opened, long_end, short_end;
  std::atomic<bool> long_ended = false, passed = false;
  const auto transcriber = open("multilingual", 2);  // behind what its sinks write
  std::shared_future<void> gate = opened.get_future().share();
  // Holds the thread at its end, so that the next two begin together, the long one in slot 0.
  ASSERT_TRUE(transcriber->submit({.samples = test::drawn_samples(500), .language = "en"},
                                  [gate](TranscriptEvent&& event) {
                                    if (event.finished) gate.wait();
                                  }));
  // A window of one token ends in the step behind its encoding, so that it needs the next.
  ASSERT_TRUE(transcriber->submit(
      {.samples = test::drawn_samples(16'000 * 40), .language = "en", .tokens_max = 1},
      [&](TranscriptEvent&& event) {
        if (!event.finished) return;
        long_ended = true;
        long_end.set_value();
      }));
  ASSERT_TRUE(
      transcriber->submit({.samples = test::drawn_samples(500), .language = "en", .tokens_max = 1},
                          [&](TranscriptEvent&& event) {
                            if (!event.finished) return;
                            passed = !long_ended;
                            short_end.set_value();
                          }));
  opened.set_value();
  short_end.get_future().wait();
  long_end.get_future().wait();
  EXPECT_TRUE(passed);
}

TEST(Transcriber, RefusesWhatTheModelLacks) {
  const auto refused = [](Transcriber& transcriber, TranscriptionRequest request) {
    const auto id = transcriber.submit(std::move(request), [](TranscriptEvent&&) {
      ADD_FAILURE() << "a refused request has no events";
    });
    EXPECT_FALSE(id);
    EXPECT_EQ(id.error().code(), StatusCode::kInvalidArgument);
    return id.error().message();
  };
  const std::vector<float> sound = test::drawn_samples(1000);
  const auto multilingual = open("multilingual"), english = open("english");
  EXPECT_THAT(refused(*multilingual, {}), HasSubstr("no samples"));
  EXPECT_THAT(refused(*multilingual, {.samples = sound, .language = "xx"}), HasSubstr("ISO 639-1"));
  EXPECT_THAT(refused(*multilingual, {.samples = sound, .language = "Spanish"}),
              HasSubstr("does not know the language 'Spanish'"));
  EXPECT_THAT(refused(*multilingual, {.samples = sound, .temperature = 1.5}),
              HasSubstr("between 0 and 1"));
  EXPECT_THAT(refused(*english, {.samples = sound, .prompt = std::string(16'385, 'a')}),
              HasSubstr("prompt has 16385 bytes"));
  EXPECT_TRUE(english->transcribe({.samples = sound, .prompt = std::string(16'384, 'a')}));
  EXPECT_THAT(refused(*english, {.samples = sound, .language = "de"}),
              HasSubstr("a multilingual model"));
  EXPECT_THAT(refused(*english, {.samples = sound, .translate = true}),
              HasSubstr("does not translate"));
  EXPECT_TRUE(english->transcribe({.samples = sound, .language = "English"}));
}

TEST(Transcriber, EndsWhatIsCancelledAndRefusesTooMany) {
  Collected collected;
  const auto transcriber = open("multilingual", 1);
  Gate gate;
  const auto first = transcriber->submit({.samples = test::drawn_samples(80'000), .language = "en"},
                                         gate.before(collected.sink(0)));
  ASSERT_TRUE(first);
  std::vector<uint64_t> ids;
  for (size_t i = 1;; ++i) {
    const auto id = transcriber->submit({.samples = test::drawn_samples(500), .language = "en"},
                                        collected.sink(i));
    if (!id) {
      EXPECT_EQ(id.error().code(), StatusCode::kResourceExhausted);
      break;
    }
    ids.push_back(*id);
    ASSERT_LE(ids.size(), 17u);
  }
  EXPECT_GE(ids.size(), 15u);
  transcriber->cancel(ids.back());
  transcriber->cancel(*first);
  gate.open();
  EXPECT_EQ(collected.end(ids.size()).status.code(), StatusCode::kAborted);
  EXPECT_EQ(collected.end(0).status.code(), StatusCode::kAborted);
  for (size_t i = 1; i < ids.size(); ++i) EXPECT_TRUE(collected.end(i).status.ok());
}

TEST(Transcriber, EndsAllWhenItIsDestroyedAndNoneAfterClosing) {
  Collected collected;
  Gate gate;
  auto transcriber = open("multilingual", 1);
  // Long enough that it runs when the transcriber ends, a moment after the gate has opened.
  ASSERT_TRUE(transcriber->submit({.samples = test::drawn_samples(16'000 * 240), .language = "en"},
                                  gate.before(collected.sink(0))));
  const std::vector<float> sound = test::drawn_samples(500);
  for (size_t i = 1; i < 3; ++i) {
    ASSERT_TRUE(transcriber->submit({.samples = sound, .language = "en"}, collected.sink(i)));
  }
  transcriber->close();
  const auto refused = transcriber->submit({.samples = sound}, collected.sink(3));
  gate.open();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kUnavailable);
  transcriber.reset();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(collected.end(i).status.code(), StatusCode::kAborted);
  }
}

TEST(Transcriber, StatesWhatItIs) {
  const auto info = open("multilingual")->info();
  EXPECT_EQ(info.languages, (std::vector<std::string>{"en", "de", "fr"}));
  EXPECT_TRUE(info.translates);
  EXPECT_EQ(info.window_seconds, 2);
  EXPECT_EQ(info.dtype, "float32");
  EXPECT_EQ(info.num_decoder_layers, 3);
  const auto stated = read_transcriber_info({.path = test::golden_folder("multilingual")});
  ASSERT_TRUE(stated) << stated.error().message();
  EXPECT_EQ(stated->num_parameters, info.num_parameters);
  EXPECT_EQ(stated->languages, info.languages);
  EXPECT_TRUE(is_transcriber(test::golden_folder("english")));
  EXPECT_FALSE(is_transcriber("tests/golden/models/qwen2_f32"));
  EXPECT_FALSE(is_transcriber("no/such/folder"));
}

TEST(Transcriber, FailsByWhatAFolderLacks) {
  const auto missing = Transcriber::create({.path = "tests/golden/models/qwen2_f32"});
  ASSERT_FALSE(missing);
  EXPECT_FALSE(missing.error().message().empty());
  const auto type = Transcriber::create({.path = test::golden_folder("english"), .dtype = "q4_k"});
  ASSERT_FALSE(type);
  EXPECT_THAT(type.error().message(), HasSubstr("auto, float32 or bfloat16"));
}

}  // namespace
}  // namespace espalier::speech
