// A draft head or a draft model beside a real model: answers are those without it, bit for bit,
// whatever is cached, chunked, retracted or paused. The heads that are tested are random ones,
// whose draft tokens are never right, the one that ships, and layers of checkpoints, one of which
// is always right; the draft models are another one, and the model itself, which is always right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <list>
#include <string>

#include "engine/testing/grammar_answers.h"
#include "engine/testing/test_requests.h"

namespace espalier {
namespace {

const std::filesystem::path kRandomHead = "tests/golden/draft/llama_tied_llama3";
const std::filesystem::path kMtpModels = "tests/golden/mtp";

// A model, how its draft tokens are made, and where the head or draft model is; empty: in its own
// checkpoint.
struct Heads {
  const char *name, *algorithm;
  std::filesystem::path model, head;
};
const Heads kHeads[] = {
    {"random", "EAGLE3", kModels / "llama_tied_llama3", kRandomHead},
    {"shipped", "EAGLE3", "share/default_model", "share/default_model/draft"},
    {"mimo", "NEXTN", kMtpModels / "mimo", {}},
    {"mimo_right", "NEXTN", kMtpModels / "mimo_right", {}},
    {"glm4_moe", "NEXTN", kMtpModels / "glm4_moe", {}},
    {"deepseek_v3", "NEXTN", kMtpModels / "deepseek_v3", {}},
    {"another_model", "STANDALONE", kModels / "llama_tied_llama3", kModels / "qwen3_head_dim"},
    {"window_model", "STANDALONE", kModels / "mixtral", kModels / "gemma3"},
    {"model_itself", "STANDALONE", kModels / "llama_tied_llama3", kModels / "llama_tied_llama3"},
};

class DraftHeadEngine : public testing::TestWithParam<Heads> {
 protected:
  std::unique_ptr<Engine> load(EngineConfig config, bool with_head = true) {
    config.speculation.speculative_algorithm = with_head ? GetParam().algorithm : "none";
    if (with_head) config.speculation.speculative_draft_model_path = GetParam().head;
    return load_golden(std::filesystem::absolute(GetParam().model).string(), config);
  }
  void SetUp() override {
    auto engine = load({}, false);
    ASSERT_NE(engine, nullptr);
    alone_ = answers_alone(*engine);
  }
  void expect_same(const std::vector<Answer>& got, const std::string& how) {
    ASSERT_EQ(got.size(), alone_.size());
    for (size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i], alone_[i]) << how << ", request " << i;
  }
  // Cold and warm, so that prefixes are reused with the head's keys and values.
  void check(const std::string& how, const EngineConfig& config) {
    auto engine = load(config);
    ASSERT_NE(engine, nullptr);
    expect_same(answers_in_a_crowd(*engine), how + ", cold");
    expect_same(answers_in_a_crowd(*engine), how + ", warm");
    const EngineStats stats = engine->stats();
    EXPECT_GT(stats.speculation.drafted_tokens, 0) << how;
    drafted_ += stats.speculation.drafted_tokens;
    accepted_ += stats.speculation.accepted_tokens;
  }
  std::vector<Answer> alone_;
  int64_t drafted_ = 0, accepted_ = 0;
};

TEST_P(DraftHeadEngine, AnswersAreTheSame) {
  check("one thread", {});
  check("two threads", {.compute = {.num_threads = 2}});
  check("no overlap", {.compute = {.disable_overlap_schedule = true}});
  check("no radix cache", {.cache = {.disable_radix_cache = true}});
  check("chains of 1", {.speculation = {.speculative_num_steps = 1}});
  check("chains of 16",
        {.speculation = {.speculative_num_steps = 16, .speculative_num_draft_tokens = 16}});
  for (const int32_t page_size : {5, 16})
    check("pages", {.cache = {.page_size = page_size}, .schedule = {.chunked_prefill_size = 7}});
  check("a tiny pool",
        {.cache = {.max_total_tokens = 160},
         .schedule = {.chunked_prefill_size = 16, .schedule_conservativeness = 0.05}});
  std::printf("drafted %ld, accepted %ld\n", static_cast<long>(drafted_),
              static_cast<long>(accepted_));
}

// Each request alone finds as many cached tokens as without a head.
TEST_P(DraftHeadEngine, ReusesTheSamePrefixes) {
  auto with_head = load({}), plain = load({}, false);
  ASSERT_TRUE(with_head && plain);
  for (const GenerateRequest& request : make_requests()) {
    const auto got = with_head->generate(request), want = plain->generate(request);
    ASSERT_TRUE(got && want);
    EXPECT_EQ(got->stats.cached_tokens, want->stats.cached_tokens);
  }
  EXPECT_GT(with_head->stats().tokens.cached, 100);
}

TEST_P(DraftHeadEngine, PausesAndGoesOn) {
  auto engine = load({});
  ASSERT_NE(engine, nullptr);
  for (int round = 0; round < 3; ++round) {
    std::list<Collector> collectors;
    for (const GenerateRequest& request : make_requests())
      ASSERT_TRUE(engine->submit(request, collectors.emplace_back().sink()));
    ASSERT_TRUE(collectors.front().wait_events(2));
    const auto mode = round == 0 ? Engine::PauseMode::kInPlace : Engine::PauseMode::kRetract;
    ASSERT_TRUE(engine->pause_generation(mode).ok());
    if (round == 2) static_cast<void>(engine->flush_cache());
    ASSERT_TRUE(engine->continue_generation().ok());
    std::vector<Answer> answers;
    for (Collector& c : collectors) {
      ASSERT_TRUE(c.wait_end());
      answers.push_back(answer_of(c.result()));
    }
    expect_same(answers, "paused");
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, DraftHeadEngine, testing::ValuesIn(kHeads),
                         [](const auto& heads) { return std::string(heads.param.name); });

// A layer that makes what the model makes has its draft tokens accepted.
// How many tokens are drafted depends on what steps take, so requests go on until they are enough.
TEST(DraftHeadOfCheckpoint, ThatIsRightIsAccepted) {
  struct Right {
    const char* algorithm;
    std::filesystem::path model, draft;
    int32_t tp_size = 1, pp_size = 1;
  };
  const std::filesystem::path llama = kModels / "llama_tied_llama3";
  for (const Right& right : {Right{"NEXTN", kMtpModels / "mimo_right", {}},
                             {"NEXTN", kMtpModels / "mimo_right", {}, 2},
                             {"STANDALONE", llama, llama},
                             {"STANDALONE", llama, llama, 2},
                             {"STANDALONE", llama, llama, 1, 2}}) {
    SCOPED_TRACE(right.algorithm);
    const auto load = [&](bool with_draft) {
      EngineConfig config{.compute = {.tp_size = right.tp_size, .pp_size = right.pp_size}};
      if (with_draft)
        config.speculation = {.speculative_algorithm = right.algorithm,
                              .speculative_draft_model_path = right.draft};
      return load_golden(std::filesystem::absolute(right.model).string(), config);
    };
    const auto answer = [](Engine& engine) {
      GenerateRequest request{.input_ids = {5, 80, 17, 33}};
      request.sampling = {.max_new_tokens = 200, .temperature = 0.0f, .ignore_eos = true};
      const auto result = engine.generate(request);
      EXPECT_TRUE(result) << result.error().to_string();
      return result->output_ids;
    };
    const auto without = load(false), with_layer = load(true);
    ASSERT_TRUE(without && with_layer);
    const std::vector<TokenId> want = answer(*without);
    ASSERT_EQ(want.size(), 200u);
    EXPECT_EQ(without->stats().speculation.drafted_tokens, 0);
    for (int i = 0; i < 100 && with_layer->stats().speculation.drafted_tokens <= 50; ++i)
      ASSERT_EQ(answer(*with_layer), want);
    const EngineStats::Speculation stats = with_layer->stats().speculation;
    EXPECT_GT(stats.drafted_tokens, 50);
    EXPECT_GE(stats.accepted_tokens, stats.drafted_tokens * 9 / 10);
  }
}

// Requests under a grammar stand beside those without one, and have chains too.
TEST(DraftHeadGrammar, AnswersAreThoseWithoutAHead) {
  const auto answers = [](const char* algorithm) {
    return answers_under_grammars({.compute = {.device = "cpu", .num_threads = 1},
                                   .speculation = {.speculative_algorithm = algorithm}});
  };
  const GrammarAnswers got = answers("EAGLE3");
  EXPECT_EQ(got.texts, answers("none").texts);
  EXPECT_GT(got.drafted_tokens, 0);
}

// A chain ends where the grammar takes it no further, and penalties count its tokens. What is
// drafted depends on what steps take, so requests go on until it is enough.
TEST(DraftHeadGrammar, ChainsAreAcceptedUnderGrammarsAndPenalties) {
  const auto answer = [](const char* algorithm, bool has_grammar, bool has_penalties,
                         uint64_t most) {
    EngineConfig config{.model = {.model_path = "share/default_model"},
                        .compute = {.device = "cpu", .num_threads = 1},
                        .cache = {.max_total_tokens = 4000}};
    config.speculation.speculative_algorithm = algorithm;
    auto engine = Engine::create(config);
    EXPECT_TRUE(engine) << engine.error().to_string();
    std::vector<std::vector<TokenId>> ids;
    const auto by_head = [&] {
      const EngineStats stats = (*engine)->stats();
      return stats.speculation.by_drafter[static_cast<size_t>(Drafter::kHead)].accepted_tokens;
    };
    for (uint64_t i = 0; i < most; ++i) {
      GenerateRequest r{.text = i % 2 == 0 ? "Once upon a time" : "The old boat"};
      r.sampling = {
          .max_new_tokens = 60, .temperature = i % 3 == 0 ? 0.0f : 0.6f, .sampling_seed = i};
      if (has_grammar) r.sampling.regex = "[A-Za-z ,.]{20,400}";
      if (has_penalties) {
        r.sampling.frequency_penalty = 0.1f, r.sampling.presence_penalty = 0.1f;
        r.sampling.repetition_penalty = 1.1f, r.sampling.min_new_tokens = 30;
      }
      const auto result = (*engine)->generate(r);
      EXPECT_TRUE(result) << result.error().to_string();
      ids.push_back(result->output_ids);
      if (algorithm == std::string("EAGLE3") && by_head() > 30) break;
    }
    if (algorithm == std::string("EAGLE3")) {
      EXPECT_GT(by_head(), 30);
    }
    return ids;
  };
  for (const auto& [has_grammar, has_penalties] :
       {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
    const auto got = answer("EAGLE3", has_grammar, has_penalties, 100);
    EXPECT_EQ(got, answer("none", has_grammar, has_penalties, got.size()))
        << has_grammar << has_penalties;
  }
}

// Where nothing is set the model's folder decides, and what heads do not go with.
TEST(DraftHeadSettings, AutoTakesTheHeadInTheModelsFolder) {
  const auto algorithm_of = [](const std::filesystem::path& model, EngineConfig config) {
    config.speculation.speculative_algorithm = "auto";
    const auto engine = load_golden(std::filesystem::absolute(model).string(), config);
    return engine ? engine->config().speculation.speculative_algorithm : "";
  };
  EXPECT_EQ(algorithm_of("share/default_model", {}), "EAGLE3");
  EXPECT_EQ(algorithm_of("share/default_model", {.compute = {.tp_size = 2}}), "EAGLE3");
  EXPECT_EQ(algorithm_of("share/default_model", {.compute = {.pp_size = 2}}), "none");
  EXPECT_EQ(algorithm_of(kModels / "llama_tied_llama3", {}), "none");
}

TEST(DraftHeadSettings, NamesWhatDoesNotGoTogether) {
  const auto refused = [](EngineConfig config, const char* why) {
    config.model.model_path = kModels / "llama_tied_llama3";
    config.model.skip_tokenizer_init = true;
    config.compute.device = "cpu";
    config.cache.max_total_tokens = 1000;
    const auto made = Engine::create(config);
    ASSERT_FALSE(made);
    EXPECT_THAT(made.error().message(), testing::HasSubstr(why));
  };
  const SpeculationSettings eagle{.speculative_algorithm = "EAGLE3",
                                  .speculative_draft_model_path = kRandomHead};
  const SpeculationSettings standalone{.speculative_algorithm = "STANDALONE",
                                       .speculative_draft_model_path = kModels / "mistral_f16"};
  refused({.speculation = standalone}, "a vocabulary of 160 tokens, and the model one of 200");
  refused({.speculation = {.speculative_algorithm = "STANDALONE"}},
          "set speculative_draft_model_path to the folder of a small one");
  refused({.tiers = {.enable_hierarchical_cache = true}, .speculation = standalone},
          "enable_hierarchical_cache");
  SpeculationSettings latents = standalone;
  latents.speculative_draft_model_path = kModels / "deepseek_v3";
  refused({.speculation = latents}, "the draft model DeepseekV3ForCausalLM keeps latents");
  latents.speculative_draft_model_path = kRandomHead;
  refused({.speculation = latents}, "LlamaForCausalLMEagle3");
  refused({.speculation = {.speculative_draft_model_path = kRandomHead}},
          "set speculative_algorithm to EAGLE3");
  refused({.speculation = {.speculative_algorithm = "EAGLE3"}}, "the draft head");
  refused({.tiers = {.enable_hierarchical_cache = true}, .speculation = eagle},
          "enable_hierarchical_cache");
  const SpeculationSettings nextn{.speculative_algorithm = "NEXTN"};
  refused({.speculation = nextn}, "'LlamaForCausalLM' is not known");
  refused({.compute = {.pp_size = 2}, .speculation = nextn}, "--speculative-algorithm NEXTN");
  refused(
      {.tiers = {.enable_hierarchical_cache = true, .hicache_size_gb = 1}, .speculation = nextn},
      "speculative_algorithm NEXTN keeps keys");
  SpeculationSettings other = eagle;
  other.speculative_algorithm = "NEXTN";
  refused({.speculation = other}, "LlamaForCausalLMEagle3 is an EAGLE-3 head");
  other = {.speculative_algorithm = "EAGLE3", .speculative_draft_model_path = kMtpModels / "mimo"};
  refused({.speculation = other}, "MiMoForCausalLM is a model with a layer");
  SpeculationSettings long_chains = eagle;
  long_chains.speculative_num_steps = 17;
  refused({.speculation = long_chains}, "must be 1 to 16");
}

}  // namespace
}  // namespace espalier
