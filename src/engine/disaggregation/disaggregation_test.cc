// A prefill engine and a decode engine, over real sockets: answers are those of one engine, pages
// that the decode engine has are not sent, and whatever fails ends each request once and leaves no
// page in use on either side.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "base/rng.h"
#include "engine/disaggregation/disaggregation.h"
#include "engine/testing/test_engine.h"
#include "engine/testing/test_requests.h"

namespace espalier {
namespace {

EngineConfig with_role(EngineConfig config, std::string mode) {
  config.disaggregation.disaggregation_mode = std::move(mode);
  config.disaggregation.disaggregation_bootstrap_port = 0;  // any free one
  config.disaggregation.disaggregation_token = "token";
  return config;
}

// The parts of an answer that must not depend on where it was computed.
std::string text_of(const GenerateResult& r) {
  std::string text = fmt::format("{} {} {}", r.text, fmt::join(r.output_ids, ","),
                                 static_cast<int>(r.finish.type));
  const auto append = [&](const std::vector<TokenLogprobs>& all) {
    text += "|";
    for (const TokenLogprobs& one : all) {
      text += fmt::format(" {}", one.logprob);
      for (const auto& list : {one.top, one.wanted})
        for (const auto& [id, logprob] : list) text += fmt::format(" {}:{}", id, logprob);
    }
  };
  append(r.input_logprobs);
  append(r.output_logprobs);
  return text + fmt::format(" {} {}", r.stats.completion_tokens, r.stats.prompt_tokens);
}

struct Pair {
  std::unique_ptr<Engine> prefill, decode;
  uint64_t room = 0;

  // Both requests with the next room.
  std::pair<GenerateRequest, GenerateRequest> requests(const GenerateRequest& request) {
    std::pair<GenerateRequest, GenerateRequest> both = {request, request};
    const Bootstrap bootstrap{.host = "127.0.0.1",
                              .port = prefill->stats().disaggregation.bootstrap_port,
                              .room = ++room};
    both.first.bootstrap = both.second.bootstrap = bootstrap;
    return both;
  }
  Result<std::vector<GenerateResult>> ask(const GenerateRequest& request) {
    auto [first, second] = requests(request);
    std::thread other([&, r = std::move(first)]() mutable {
      const auto done = prefill->generate_all(std::move(r));
      EXPECT_TRUE(done) << done.error().to_string();
    });
    auto answer = decode->generate_all(std::move(second));
    other.join();
    return answer;
  }
};

// An engine whose pages are all free or cached once nothing runs; a cache can be dropped only then.
void expect_idle(Engine& engine) {
  Status flushed;
  while (true) {
    flushed = engine.flush_cache();
    const EngineStats stats = engine.stats();
    if (flushed.ok() && stats.disaggregation.waiting_bytes == 0 &&
        (stats.disaggregation.mode == "prefill" || stats.disaggregation.num_waiting == 0))
      break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(flushed.ok()) << flushed.to_string();
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.memory.kv_tokens_running, 0);
  EXPECT_EQ(stats.memory.kv_tokens_cached, 0);
  EXPECT_EQ(stats.disaggregation.waiting_bytes, 0);
}

class DisaggregationTest : public testing::TestWithParam<int32_t> {
 protected:
  static TestEngineOptions options(int32_t page_size) {
    TestEngineOptions options;
    options.config.cache.page_size = page_size;
    options.config.cache.max_total_tokens = 6000;
    options.config.schedule.chunked_prefill_size = 64;
    return options;
  }
  static Pair make_pair(const TestEngineOptions& base) {
    TestEngineOptions prefill = base, decode = base;
    prefill.config = with_role(base.config, "prefill");
    decode.config = with_role(base.config, "decode");
    return {make_test_engine(prefill).engine, make_test_engine(decode).engine};
  }

  void expect_equal(Engine& one, Pair& pair, const GenerateRequest& request) {
    const auto wanted = one.generate_all(request);
    const auto answer = pair.ask(request);
    ASSERT_TRUE(wanted) << wanted.error().to_string();
    ASSERT_TRUE(answer) << answer.error().to_string();
    ASSERT_EQ(answer->size(), wanted->size());
    for (size_t i = 0; i < wanted->size(); ++i)
      EXPECT_EQ(text_of((*answer)[i]), text_of((*wanted)[i])) << i;
  }
};

std::string long_text(uint64_t seed, uint64_t length) {
  Rng rng(seed);
  std::string text;
  while (text.size() < length) text += static_cast<char>('a' + rng.below(26));
  return text;
}

TEST_P(DisaggregationTest, AnswersAreThoseOfOneEngine) {
  const TestEngineOptions base = options(GetParam());
  const auto one = make_test_engine(base);
  Pair pair = make_pair(base);
  for (const uint64_t length : {1u, 3u, 4u, 5u, 64u, 127u, 128u, 300u}) {
    SCOPED_TRACE(length);
    GenerateRequest request{.text = long_text(length, length),
                            .sampling = {.max_new_tokens = 20, .sampling_seed = 5}};
    expect_equal(*one.engine, pair, request);
    request.sampling.n = 3;
    request.extra_key = "tenant";
    expect_equal(*one.engine, pair, request);
    request.sampling.n = 1;
    request.return_logprob = true;
    request.logprob_start_len = static_cast<int32_t>(length / 2);
    request.top_logprobs_num = 2;
    request.token_ids_logprob = {7, 9};
    expect_equal(*one.engine, pair, request);
    request.sampling.max_new_tokens = 1;
    expect_equal(*one.engine, pair, request);
    request.sampling.max_new_tokens = 8;
    request.sampling.stop = {"a", "e", "i", "o", "u"};
    request.sampling.frequency_penalty = 0.5f;
    request.logprob_start_len = -1;
    expect_equal(*one.engine, pair, request);
  }
  expect_idle(*pair.prefill);
  expect_idle(*pair.decode);
  EXPECT_EQ(pair.decode->stats().disaggregation.num_failed, 0);
}

TEST_P(DisaggregationTest, GrammarsAndForcedTokensPassOver) {
  const TestEngineOptions base = options(GetParam());
  const auto one = make_test_engine(base);
  Pair pair = make_pair(base);
  const auto check = [&](SamplingParams sampling, bool logprobs) {
    sampling.max_new_tokens = 60;
    sampling.sampling_seed = 3;
    GenerateRequest request{.text = "prompt:", .sampling = std::move(sampling)};
    request.return_logprob = logprobs;
    request.return_token_origins = true;
    expect_equal(*one.engine, pair, request);
    request.sampling.n = 2;
    expect_equal(*one.engine, pair, request);
  };
  for (const bool logprobs : {false, true}) {
    check({.regex = "forced at first, then [0-9]{3}-[a-z]{2}!"}, logprobs);
    check({.regex = "[0-9]{3}-forced[a-z]{2}!"}, logprobs);
    check({.regex = "all is forced"}, logprobs);
    check({.json_schema = R"({"type":"object","properties":{"name":{"enum":["a","bc"]}},
                              "required":["name"]})"},
          logprobs);
  }
  expect_idle(*pair.prefill);
  expect_idle(*pair.decode);
}

TEST_P(DisaggregationTest, OnlyMissingPagesAreSent) {
  const TestEngineOptions base = options(GetParam());
  Pair pair = make_pair(base);
  const std::string text = long_text(1, 200);
  const auto bytes_of_one = [&](const std::string& prompt) {
    const int64_t before = pair.decode->stats().disaggregation.num_bytes;
    const auto answer = pair.ask({.text = prompt, .sampling = {.max_new_tokens = 2}});
    EXPECT_TRUE(answer);
    return pair.decode->stats().disaggregation.num_bytes - before;
  };
  const int64_t page_bytes = 8 * GetParam();
  const auto pages = [&](int64_t tokens) { return (tokens + GetParam() - 1) / GetParam(); };
  EXPECT_EQ(bytes_of_one(text), pages(200) * page_bytes);
  EXPECT_LE(bytes_of_one(text), page_bytes) << "all but the last token's page is cached";
  EXPECT_EQ(bytes_of_one(text + long_text(2, 40)), (pages(240) - 200 / GetParam()) * page_bytes);
  const auto hit = pair.ask({.text = text, .sampling = {.max_new_tokens = 2}});
  ASSERT_TRUE(hit);
  EXPECT_GE(hit->front().stats.cached_tokens, 196);
}

TEST_P(DisaggregationTest, RequestsWithoutARoomAreAnsweredAlone) {
  const TestEngineOptions base = options(GetParam());
  Pair pair = make_pair(base);
  const auto one = make_test_engine(base);
  const GenerateRequest request{.text = "alone", .sampling = {.max_new_tokens = 9}};
  const auto wanted = one.engine->generate(request);
  for (Engine* engine : {pair.prefill.get(), pair.decode.get()}) {
    const auto answer = engine->generate(request);
    ASSERT_TRUE(answer);
    EXPECT_EQ(text_of(*answer), text_of(*wanted));
  }
}

// Greedy, sampled and penalised answers of models, bit by bit.
TEST(DisaggregationModels, AnswersAreThoseOfOneEngine) {
  for (const char* const model : {"llama_tied_llama3", "qwen3_moe", "deepseek_v2"}) {
    SCOPED_TRACE(model);
    if (!std::filesystem::exists(kModels / model)) FAIL() << "no golden model";
    EngineConfig config;
    config.cache.page_size = 4;
    config.schedule.chunked_prefill_size = 16;
    const auto one = load_golden(model, config);
    Pair pair{load_golden(model, with_role(config, "prefill")),
              load_golden(model, with_role(config, "decode"))};
    ASSERT_TRUE(one && pair.prefill && pair.decode);
    for (int round = 0; round < 2; ++round)  // the second finds its prefixes
      for (GenerateRequest& request : make_requests()) {
        request.return_logprob = true;
        request.top_logprobs_num = 3;
        if (!request.sampling.sampling_seed) request.sampling.sampling_seed = 11;
        const auto wanted = one->generate(request);
        const auto answer = pair.ask(request);
        ASSERT_TRUE(wanted && answer);
        EXPECT_EQ(text_of(answer->front()), text_of(*wanted));
      }
    expect_idle(*pair.prefill);
    expect_idle(*pair.decode);
  }
}

INSTANTIATE_TEST_SUITE_P(PageSizes, DisaggregationTest, testing::Values(1, 4));

// --- What fails.

class DisaggregationFaults : public DisaggregationTest {};

TEST_F(DisaggregationFaults, RequestsThatDoNotFitARoleAreRefused) {
  Pair pair = make_pair(options(1));
  const auto one = make_test_engine(options(1));
  const GenerateRequest request{.text = "x", .sampling = {.max_new_tokens = 4}};
  auto with = [&](const auto& change) {
    GenerateRequest changed = pair.requests(request).second;
    change(changed);
    return changed;
  };
  const auto code = [](Engine& engine, GenerateRequest r) {
    const auto answer = engine.generate(std::move(r));
    return answer ? StatusCode::kOk : answer.error().code();
  };
  EXPECT_EQ(code(*one.engine, with([](auto&) {})), StatusCode::kFailedPrecondition);
  EXPECT_EQ(code(*pair.decode, with([](auto& r) { r.bootstrap->host = ""; })),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(*pair.decode, with([](auto& r) { r.bootstrap->port = 0; })),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(*pair.decode, with([](auto& r) { r.sampling.max_new_tokens = 0; })),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(code(*pair.prefill, with([](auto& r) { r.session = SessionParams{}; })),
            StatusCode::kUnimplemented);
  EXPECT_EQ(code(*pair.prefill, with([](auto& r) { r.lora = "a"; })), StatusCode::kUnimplemented);
}

TEST_F(DisaggregationFaults, SettingsThatContradictAreNamed) {
  const auto message = [](const auto& change) {
    EngineConfig config = with_role({}, "prefill");
    change(config);
    return check_disaggregation(config).message();
  };
  using testing::HasSubstr;
  EXPECT_THAT(message([](auto& c) { c.disaggregation.disaggregation_mode = "both"; }),
              HasSubstr("prefill, decode or null"));
  EXPECT_THAT(message([](auto& c) { c.disaggregation.disaggregation_transfer_backend = "nixl"; }),
              HasSubstr("must be auto or tcp"));
  EXPECT_THAT(message([](auto& c) { c.compute.dp_size = 2; }), HasSubstr("dp_size 2"));
  EXPECT_EQ(message([](auto&) {}), "");
}

TEST_F(DisaggregationFaults, EnginesThatDifferFailTheRequestWithAReason) {
  using testing::HasSubstr;
  const auto failure = [&](const auto& change) {
    TestEngineOptions prefill = options(4), decode = options(4);
    prefill.config = with_role(prefill.config, "prefill");
    decode.config = with_role(decode.config, "decode");
    change(decode.config);
    Pair pair{make_test_engine(prefill).engine, make_test_engine(decode).engine};
    auto [first, second] = pair.requests({.text = "prompt", .sampling = {.max_new_tokens = 4}});
    EXPECT_TRUE(pair.prefill->generate(std::move(first)));
    const auto answer = pair.decode->generate(std::move(second));
    EXPECT_FALSE(answer);
    expect_idle(*pair.decode);
    return answer ? std::string() : answer.error().to_string();
  };
  EXPECT_THAT(failure([](EngineConfig& c) { c.disaggregation.disaggregation_token = "x"; }),
              HasSubstr("token"));
  EXPECT_THAT(failure([](EngineConfig& c) { c.cache.page_size = 2; }), HasSubstr("page size"));
  EXPECT_THAT(failure([](EngineConfig& c) { c.model.json_model_override_args = "{\"a\":1}"; }),
              HasSubstr("fingerprint"));
}

TEST_F(DisaggregationFaults, WithoutAPrefillServerTheRequestEnds) {
  Pair pair = make_pair(options(1));
  auto request = pair.requests({.text = "prompt", .sampling = {.max_new_tokens = 4}}).second;
  pair.prefill.reset();
  const auto answer = pair.decode->generate(std::move(request));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), StatusCode::kUnavailable) << answer.error().to_string();
  expect_idle(*pair.decode);
}

TEST_F(DisaggregationFaults, ARoomThatIsInUseIsRefused) {
  Pair pair = make_pair(options(1));
  auto request = pair.requests({.text = "prompt", .sampling = {.max_new_tokens = 4}}).first;
  EXPECT_TRUE(pair.prefill->generate(request));  // it waits for its decode server
  const auto second = pair.prefill->generate(request);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), StatusCode::kAlreadyExists);
}

// Its memory is given back at once, and the request may be sent again under the same number.
TEST_F(DisaggregationFaults, TheRoomOfAnAbortedPromptIsFree) {
  Pair pair = make_pair(options(1));
  auto [first, second] = pair.requests({.text = "prompt", .sampling = {.max_new_tokens = 4}});
  first.rid = "left";
  ASSERT_TRUE(pair.prefill->pause_generation(Engine::PauseMode::kInPlace).ok());
  std::thread client([&] {
    const auto answer = pair.prefill->generate(first);
    EXPECT_TRUE(!answer || answer->finish.type == FinishReason::Type::kAbort);
  });
  while (pair.prefill->stats().disaggregation.num_waiting == 0) std::this_thread::yield();
  pair.prefill->abort("left", Engine::AbortScope::kExact);
  ASSERT_TRUE(pair.prefill->continue_generation().ok());
  client.join();
  while (pair.prefill->stats().disaggregation.waiting_bytes > 0) std::this_thread::yield();
  first.rid = "again";
  EXPECT_TRUE(pair.prefill->generate(first));
  EXPECT_TRUE(pair.decode->generate(std::move(second)));
  expect_idle(*pair.prefill);
  expect_idle(*pair.decode);
}

TEST_F(DisaggregationFaults, APromptThatNobodyFetchesIsDropped) {
  TestEngineOptions prefill = options(1);
  prefill.config = with_role(prefill.config, "prefill");
  prefill.config.disaggregation.disaggregation_timeout = 0.05;
  Pair pair{make_test_engine(prefill).engine, nullptr};
  EXPECT_TRUE(pair.prefill->generate(
      pair.requests({.text = "prompt", .sampling = {.max_new_tokens = 4}}).first));
  expect_idle(*pair.prefill);
  while (pair.prefill->stats().disaggregation.num_failed == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

TEST_F(DisaggregationFaults, ADrainedPrefillServerWaitsForItsReaders) {
  Pair pair = make_pair(options(1));
  auto [first, second] = pair.requests({.text = "prompt", .sampling = {.max_new_tokens = 4}});
  EXPECT_TRUE(pair.prefill->generate(std::move(first)));
  std::thread drains([&] {
    pair.prefill->drain(std::chrono::seconds(60));
    pair.prefill.reset();
  });
  EXPECT_TRUE(pair.decode->generate(std::move(second)));
  drains.join();
}

// Lives of a pair from seeds: requests come and are aborted on either side, generation is paused, a
// prefill server ends in the middle. Each request ends once; an answer is the right one.
TEST_F(DisaggregationFaults, RandomLives) {
  const char* const scale = std::getenv("ESPALIER_FUZZ_SCALE");
  const uint64_t num_seeds = 12 * (scale == nullptr ? 1 : std::max(1, std::atoi(scale)));
  int num_answers = 0, num_failures = 0;
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    TestEngineOptions base = options(rng.below(2) == 0 ? 1 : 4);
    base.config.cache.max_total_tokens = 1200;
    base.config.schedule.max_running_requests = 6;
    base.step_delay = std::chrono::microseconds(rng.below(300));
    base.context_length = 600;
    base.config.disaggregation.disaggregation_timeout = 3;
    Pair pair = make_pair(base);
    struct Asked {
      std::string rid, text;
      std::unique_ptr<Collector> prefill, decode;
    };
    std::vector<Asked> asked;
    const size_t num_requests = 12;
    for (size_t i = 0; i < num_requests; ++i) {
      Asked& a = asked.emplace_back();
      a.rid = fmt::format("r{}", i);
      a.text = long_text(seed * 100 + rng.below(4), 40 + 20 * rng.below(8));
      auto [first, second] = pair.requests({.rid = a.rid, .text = a.text});
      first.sampling = second.sampling = {.max_new_tokens = 12, .ignore_eos = true};
      a.prefill = std::make_unique<Collector>();
      a.decode = std::make_unique<Collector>();
      const bool decode_first = rng.below(2) == 0;
      const auto to_decode = [&] { return pair.decode->submit(second, a.decode->sink()); };
      ASSERT_TRUE(!decode_first || to_decode());
      ASSERT_TRUE(pair.prefill->submit(first, a.prefill->sink()));
      ASSERT_TRUE(decode_first || to_decode());
      std::this_thread::sleep_for(std::chrono::microseconds(rng.below(2000)));
      if (rng.below(5) == 0)
        (rng.below(2) == 0 ? pair.prefill : pair.decode)
            ->abort(asked[rng.below(asked.size())].rid, Engine::AbortScope::kExact);
      if (rng.below(12) == 0) {
        Engine& paused = *(rng.below(2) == 0 ? pair.prefill : pair.decode);
        ASSERT_TRUE(paused.pause_generation(Engine::PauseMode::kRetract).ok());
        ASSERT_TRUE(paused.continue_generation().ok());
      }
    }
    if (rng.below(4) == 0) pair.prefill.reset();
    for (Asked& a : asked) {
      ASSERT_TRUE(a.prefill->wait_end() && a.decode->wait_end());
      const GenerateResult& r = a.decode->result();
      if (!r.finish.status.ok()) {
        ++num_failures;
        continue;
      }
      ++num_answers;
      EXPECT_EQ(r.output_ids, Script().answer(bytes_of(a.text), 12));
    }
    expect_idle(*pair.decode);
    if (pair.prefill == nullptr) continue;
    // What no decode server will fetch any more goes with the engine.
    EXPECT_EQ(pair.prefill->stats().memory.kv_tokens_running, 0);
  }
  EXPECT_GT(num_answers, 0);
  EXPECT_GT(num_failures, 0);
}

}  // namespace
}  // namespace espalier
