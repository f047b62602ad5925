// Hidden states and the rules and processors that the host runs, on a GPU: as
// insides_engine_test.cc on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "base/clock.h"
#include "engine/testing/grammar_answers.h"
#include "engine/testing/insides_cases.h"
#include "engine/testing/near_answers.h"
#include "tensor/cuda/testing.h"

namespace espalier {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

EngineConfig on_cuda(bool graphs = true) {
  EngineConfig config;
  config.compute.device = "cuda";
  config.compute.disable_cuda_graph = !graphs;
  return config;
}

class HiddenStatesOnCudaOf : public testing::TestWithParam<const char*> {};

TEST_P(HiddenStatesOnCudaOf, AModelAreThoseOfTransformers) {
  ESPALIER_REQUIRE_DEVICE();
  for (const bool graphs : {true, false}) {
    EngineConfig config = on_cuda(graphs);
    config.schedule.chunked_prefill_size = 5;
    const auto engine = load_insides(GetParam(), config);
    ASSERT_TRUE(engine);
    for (int round = 0; round < 3; ++round)
      expect_hidden_states(*engine, GetParam(), 2e-4f, graphs ? "graphs" : "no graphs");
  }
}

// Of one prompt, each state within what bfloat16 rounds.
TEST_P(HiddenStatesOnCudaOf, AModelInBfloat16AreNearThoseOfTheCpu) {
  ESPALIER_REQUIRE_DEVICE();
  EngineConfig config = on_cuda();
  config.model.dtype = "bfloat16";
  config.compute.enable_return_hidden_states = true;
  const auto gpu = load_golden(GetParam(), config);
  const auto cpu = load_insides(GetParam());
  ASSERT_TRUE(gpu && cpu);
  const std::vector<int32_t> layers = all_layers(*cpu);
  const auto prompt = golden::read_hidden_states(GetParam()).prompt;
  const auto got = gpu->generate(hidden_request(prompt, 0, layers));
  const auto want = cpu->generate(hidden_request(prompt, 0, layers));
  ASSERT_TRUE(got && want) << got.error().to_string();
  ASSERT_EQ(got->hidden_states.size(), want->hidden_states.size());
  const auto size = static_cast<size_t>(cpu->model_info().hidden_size);
  for (size_t i = 0; i < layers.size(); ++i)
    EXPECT_LE(spread_error(state_of(got->hidden_states, layers.size(), i, size),
                           state_of(want->hidden_states, layers.size(), i, size)),
              3e-2f)
        << "state " << i;
}
INSTANTIATE_TEST_SUITE_P(All, HiddenStatesOnCudaOf, testing::ValuesIn(kInsidesModels));

// Beside requests that return none, in chunks, with and without what is cached, and through
// retractions: every token has one row, and the rows are those of the CPU.
TEST(HiddenStatesOnCuda, AreThoseOfTheCpuInACrowd) {
  ESPALIER_REQUIRE_DEVICE();
  const auto prompt = golden::read_hidden_states(kInsidesModels[0]).prompt;
  std::vector<GenerateRequest> requests;
  for (int i = 0; i < 8; ++i) {
    std::vector<TokenId> own = prompt;
    own.push_back(static_cast<TokenId>(3 + i / 2));
    requests.push_back(i % 4 == 3 ? greedy_request(own, 20)
                                  : hidden_request(own, 20, {-1, 0, i % 2 + 1}));
  }
  const auto cpu = load_insides(kInsidesModels[0]);
  EngineConfig config = on_cuda();
  config.schedule.chunked_prefill_size = 7;
  config.schedule.schedule_conservativeness = 0.1;
  config.cache.max_total_tokens = 90;  // of 264
  const auto crowd = load_insides(kInsidesModels[0], config);
  ASSERT_TRUE(cpu && crowd);
  for (int round = 0; round < 2; ++round) {
    const std::vector<GenerateResult> got = results_in_a_crowd(*crowd, requests);
    for (size_t i = 0; i < got.size(); ++i) {
      const auto want = cpu->generate(requests[i]);
      ASSERT_TRUE(want);
      EXPECT_EQ(got[i].output_ids, want->output_ids) << "request " << i;
      ASSERT_EQ(got[i].hidden_states.size(), want->hidden_states.size()) << "request " << i;
      if (!want->hidden_states.empty()) {
        EXPECT_LE(spread_error(got[i].hidden_states, want->hidden_states), 2e-4f)
            << "request " << i;
      }
    }
  }
  EXPECT_GT(crowd->stats().requests.num_retractions, 0);
}

// The golden's model, made for more tokens.
std::filesystem::path write_long_context() {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "long_context";
  std::filesystem::create_directories(folder);
  const std::filesystem::path model = "tests/golden/models/llama_tied_llama3";
  std::ifstream file(model / "config.json");
  std::string config(std::istreambuf_iterator<char>(file), {});
  const std::string made_for = "\"max_position_embeddings\": 256";
  EXPECT_NE(config.find(made_for), std::string::npos);
  config.replace(config.find(made_for), made_for.size(), "\"max_position_embeddings\": 32768");
  std::ofstream(folder / "config.json") << config;
  std::filesystem::copy(model / "model.safetensors", folder,
                        std::filesystem::copy_options::overwrite_existing);
  return folder;
}

// More rows than the block on their way to the host holds.
TEST(HiddenStatesOnCuda, OfALongPromptComeInPieces) {
  ESPALIER_REQUIRE_DEVICE();
  std::vector<TokenId> prompt;
  for (int i = 0; i < 20000; ++i) prompt.push_back(static_cast<TokenId>(3 + i * i % 97));
  const std::string folder = write_long_context().string();
  EngineConfig config = on_cuda();
  config.cache.max_total_tokens = 40000;
  config.schedule.chunked_prefill_size = 20000;
  config.schedule.max_prefill_tokens = 20000;
  EngineConfig small = config;
  small.schedule.chunked_prefill_size = 512;
  const auto whole = load_insides(folder, config);
  const auto chunks = load_insides(folder, small);
  ASSERT_TRUE(whole && chunks);
  const auto got = whole->generate(hidden_request(prompt, 0, {0, -1}));
  const auto want = chunks->generate(hidden_request(prompt, 0, {0, -1}));
  ASSERT_TRUE(got && want) << got.error().to_string();
  ASSERT_EQ(got->hidden_states.size(), prompt.size() * 2 * 64);
  EXPECT_LE(spread_error(got->hidden_states, want->hidden_states), 1e-3f);
}

class VectorsOnCuda : public testing::TestWithParam<const char*> {};

TEST_P(VectorsOnCuda, AreThoseOfTransformersInAnyCompany) {
  ESPALIER_REQUIRE_DEVICE();
  const golden::PooledGolden golden =
      golden::read_pooled(std::filesystem::path("tests/golden/pooled") / GetParam());
  for (const int32_t chunk : {-1, 5}) {
    EngineConfig config = on_cuda();
    config.model = {.model_path = golden.folder, .dtype = "float32", .skip_tokenizer_init = true};
    config.cache.max_total_tokens = 512;
    config.schedule.chunked_prefill_size = chunk;
    config.check_invariants = true;
    const auto engine = Engine::create(config);
    ASSERT_TRUE(engine) << engine.error().to_string();
    for (int round = 0; round < 2; ++round) {  // the second from the cache
      std::vector<GenerateRequest> requests;
      for (const golden::Pooled& text : golden.texts) {
        requests.push_back({.input_ids = text.tokens});
        requests.back().embed = true;
      }
      const std::vector<GenerateResult> got = results_in_a_crowd(**engine, requests);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].embedding.size(), golden.texts[i].vector.size());
        for (size_t k = 0; k < got[i].embedding.size(); ++k)
          ASSERT_NEAR(got[i].embedding[k], golden.texts[i].vector[k], 4e-4)
              << "text " << i << ", chunks of " << chunk;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, VectorsOnCuda, testing::Values("qwen3_embedding", "mistral_mean"));

// Prints how fast texts of 512 tokens become vectors, and how fast the same prompts are computed
// without, for the model that ESPALIER_LARGE_MODEL names (as in released_cuda_engine_test.cc).
TEST(VectorsOnCuda, OfManyTextsTakeShort) {
  ESPALIER_REQUIRE_DEVICE();
  const char* const path = std::getenv("ESPALIER_LARGE_MODEL");
  if (path == nullptr) GTEST_SKIP() << "SKIPPED: ESPALIER_LARGE_MODEL names no model";
  for (const bool embeds : {true, false}) {
    EngineConfig config = on_cuda();
    config.model.model_path = path;
    if (std::getenv("ESPALIER_LARGE_MODEL_FORMAT") != nullptr)
      config.model.load_format = LoadFormat::kDummy;
    config.model.skip_tokenizer_init = true;
    config.model.is_embedding = embeds;
    config.model.context_length = 8192;
    config.cache.disable_radix_cache = true;
    config.schedule.max_queued_requests = 2000;
    config.sampling.random_seed = 5;
    const auto engine = Engine::create(config);
    ASSERT_TRUE(engine) << engine.error().to_string();
    std::vector<GenerateRequest> requests;
    for (int i = 0; i < 512; ++i) {
      GenerateRequest request;
      for (int k = 0; k < 512; ++k)
        request.input_ids.push_back(static_cast<TokenId>((i * 7919 + k * 104729) % 100000));
      request.embed = embeds;
      if (!embeds) request.sampling = {.max_new_tokens = 0};
      requests.push_back(std::move(request));
    }
    for (int round = 0; round < 3; ++round) {
      const SteadyClock clock;
      const TimePoint start = clock.now();
      for (const GenerateResult& result : results_in_a_crowd(**engine, requests))
        EXPECT_TRUE(result.finish.status.ok()) << result.finish.status.to_string();
      const double seconds = to_seconds(clock.now() - start);
      std::printf("%s: 512 texts of 512 tokens in %.3f s, %.0f tokens/s\n",
                  embeds ? "vectors" : "prompts", seconds, 512.0 * 512 / seconds);
    }
  }
}

TEST(HistoryRulesOnCuda, AnswersAreThoseOfTransformers) {
  ESPALIER_REQUIRE_DEVICE();
  for (const char* name : kInsidesModels) {
    const auto engine = load_insides(name, on_cuda());
    ASSERT_TRUE(engine);
    for (const int32_t size : {2, 3}) {
      GenerateRequest request = greedy_request(golden::read_hidden_states(name).prompt, 40);
      request.sampling.no_repeat_ngram_size = size;
      const auto answer = engine->generate(request);
      ASSERT_TRUE(answer) << answer.error().to_string();
      EXPECT_EQ(answer->output_ids, golden::read_answer_without_repeats(name, size)) << name;
    }
  }
}

// All rules at once, drawn and greedy, beside requests that the device draws for.
TEST(HistoryRulesOnCuda, AnswersAreThoseOfTheCpu) {
  ESPALIER_REQUIRE_DEVICE();
  std::vector<GenerateRequest> requests = history_requests();
  for (size_t i = 0; i < requests.size(); i += 4) requests[i].sampling.temperature = 0.0f;
  const std::vector<GenerateRequest> plain = make_requests();
  requests.insert(requests.end(), plain.begin(), plain.end());
  const auto cpu = load_golden(kInsidesModels[0], {.model = {.dtype = "float32"}});
  ASSERT_TRUE(cpu);
  std::vector<Answer> want;
  for (const GenerateResult& result : results_in_a_crowd(*cpu, requests))
    want.push_back(answer_of(result));
  for (const bool graphs : {true, false}) {
    EngineConfig config = on_cuda(graphs);
    config.model.dtype = "float32";
    config.cache.max_total_tokens = 300;
    config.schedule.chunked_prefill_size = 16;
    const auto gpu = load_golden(kInsidesModels[0], config);
    ASSERT_TRUE(gpu);
    std::vector<Answer> got;
    for (const GenerateResult& result : results_in_a_crowd(*gpu, requests))
      got.push_back(answer_of(result));
    expect_near_answers(got, want, graphs ? "graphs" : "no graphs");
  }
}

// A grammar's masks restrict what the host draws.
TEST(HistoryRulesOnCuda, GoWithGrammars) {
  ESPALIER_REQUIRE_DEVICE();
  const auto texts_on = [](const std::string& device) {
    EngineConfig config{.model = {.model_path = "share/default_model", .dtype = "float32"},
                        .compute = {.device = device}};
    config.cache.max_total_tokens = 4000;
    const auto engine = Engine::create(config);
    EXPECT_TRUE(engine) << engine.error().to_string();
    std::vector<GenerateRequest> requests;
    for (const char* regex : {"[0-9]{3}-[a-f]{2,6}", "(yes|no|maybe), [A-Z][a-z]+", ""}) {
      GenerateRequest request{.text = "Once upon a time"};
      request.sampling = {.max_new_tokens = 24, .temperature = 0.0f};
      request.sampling.no_repeat_ngram_size = 2;
      if (*regex != 0) request.sampling.regex = regex;
      requests.push_back(std::move(request));
    }
    std::vector<std::string> texts;
    for (const GenerateResult& result : results_in_a_crowd(**engine, requests)) {
      EXPECT_TRUE(result.finish.status.ok()) << result.finish.status.to_string();
      texts.push_back(result.text);
    }
    return texts;
  };
  const std::vector<std::string> texts = texts_on("cuda");
  EXPECT_EQ(texts, texts_on("cpu"));
  EXPECT_THAT(texts.at(0), testing::MatchesRegex("[0-9][0-9][0-9]-[a-f]+"));
}

TEST(LogitLibraryOnCuda, ProcessorsAreRunByName) {
  ESPALIER_REQUIRE_DEVICE();
  EngineConfig config = on_cuda();
  config.sampling.logit_processor_library = LOGIT_PROCESSORS;
  const auto engine = load_golden(kInsidesModels[0], config);
  ASSERT_TRUE(engine);
  GenerateRequest request = greedy_request({5, 6, 7}, 12);
  request.sampling.logit_processor = "only";
  request.sampling.logit_processor_params = "17";
  const auto answer = engine->generate(request);
  ASSERT_TRUE(answer) << answer.error().to_string();
  EXPECT_THAT(answer->output_ids, Each(17));
  request.sampling.logit_processor_params = "500000";
  EXPECT_THAT(engine->generate(request).error().message(), HasSubstr("500000 is no token"));
}

}  // namespace
}  // namespace espalier
