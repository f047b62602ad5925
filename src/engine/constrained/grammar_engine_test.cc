// Constrained generation through the whole engine: masks arrive in time, whatever the overlap, the
// number of requests and the memory; errors end the request that caused them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <list>
#include <regex>
#include <string>

#include "base/rng.h"
#include "engine/engine.h"
#include "engine/testing/test_engine.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using Type = FinishReason::Type;

TEST(GrammarEngine, OutputIsOfTheGrammarAndEndsWithIt) {
  for (bool overlap : {true, false}) {
    EngineConfig config;
    config.compute.disable_overlap_schedule = !overlap;
    auto [engine, device] = make_test_engine({.config = config});
    const auto answer = engine->generate(
        {.text = "number:", .sampling = {.max_new_tokens = 100, .regex = "[0-9]{3}-[a-z]{2}!"}});
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_TRUE(std::regex_match(answer->text, std::regex("[0-9]{3}-[a-z]{2}!"))) << answer->text;
    EXPECT_EQ(answer->finish.type, Type::kStop);
    EXPECT_EQ(answer->output_ids.size(), 7u);
  }
}

TEST(GrammarEngine, EbnfAndJsonSchema) {
  auto [engine, device] = make_test_engine();
  const auto list = engine->generate(
      {.text = "x",
       .sampling = {.max_new_tokens = 50, .ebnf = "root ::= \"<\" [ab] (\",\" [cd]){2} \">\""}});
  ASSERT_TRUE(list) << list.error().to_string();
  EXPECT_TRUE(std::regex_match(list->text, std::regex("<[ab],[cd],[cd]>"))) << list->text;

  const auto json = engine->generate(
      {.text = "y",
       .sampling = {.max_new_tokens = 400,
                    .json_schema = R"({"type":"object","properties":{"name":{"type":"string",
                        "maxLength":5},"age":{"type":"integer","minimum":0,"maximum":150}},
                        "required":["name","age"],"additionalProperties":false})"}});
  ASSERT_TRUE(json) << json.error().to_string();
  EXPECT_EQ(json->finish.type, Type::kStop);
  boost::system::error_code failed;
  const auto value = boost::json::parse(json->text, failed);
  ASSERT_FALSE(failed) << json->text;
  EXPECT_TRUE(value.at("name").is_string());
  EXPECT_LE(value.at("age").to_number<int>(), 150);
}

// Whatever the model wants to write, the answer is whole within its tokens.
TEST(GrammarEngine, AnswersEndWithinTheirBudget) {
  const std::string schema = R"({"type":"object","properties":{"name":{"type":"string"},
      "items":{"type":"array","items":{"type":"string","minLength":3}},"ok":{"type":"boolean"}},
      "required":["name","items","ok"],"additionalProperties":false})";
  for (bool overlap : {true, false}) {
    EngineConfig config;
    config.compute.disable_overlap_schedule = !overlap;
    auto [engine, device] = make_test_engine({.config = config});
    GenerateRequest request{
        .text = "x",
        .sampling = {.max_new_tokens = 5, .json_schema = schema, .complete_within_budget = true}};
    const auto refused = engine->generate(request);
    ASSERT_FALSE(refused);
    EXPECT_THAT(refused.error().message(), HasSubstr("needs 32 tokens"));
    for (int32_t tokens = 32; tokens < 80; tokens += 3) {
      request.text = "prompt " + std::to_string(tokens);
      request.sampling.max_new_tokens = tokens;
      const auto answer = engine->generate(request);
      ASSERT_TRUE(answer) << answer.error().to_string();
      EXPECT_LE(answer->output_ids.size(), static_cast<size_t>(tokens));
      boost::system::error_code failed;
      const auto value = boost::json::parse(answer->text, failed);
      ASSERT_FALSE(failed) << tokens << ": " << answer->text;
      EXPECT_TRUE(value.at("ok").is_bool());
    }
  }
  auto [engine, device] = make_test_engine();
  const auto without = engine->generate(
      {.text = "x", .sampling = {.max_new_tokens = 5, .complete_within_budget = true}});
  ASSERT_FALSE(without);
  EXPECT_THAT(without.error().message(), HasSubstr("the request has none"));
}

TEST(GrammarEngine, ACrowdWithAndWithoutGrammarsInLittleMemory) {
  EngineConfig config;
  config.cache.max_total_tokens = 400;  // far less than all need: retraction and waiting
  auto [engine, device] = make_test_engine({.config = config});
  std::list<Collector> collectors;
  constexpr int kRequests = 60;
  for (int i = 0; i < kRequests; ++i) {
    GenerateRequest request{.text = "prompt " + std::to_string(i % 7),
                            .sampling = {.max_new_tokens = 40, .n = 2}};
    if (i % 3 != 0) request.sampling.regex = i % 3 == 1 ? "(yes|no), [a-c]{10,20}\\." : "[0-9]+;";
    ASSERT_TRUE(engine->submit(std::move(request), collectors.emplace_back(2).sink()));
  }
  int i = 0;
  for (Collector& c : collectors) {
    ASSERT_TRUE(c.wait_end());
    for (size_t sample : {0u, 1u}) {
      const std::string& text = c.result(sample).text;
      const bool ended = c.finish_type(sample) == Type::kStop;
      if (i % 3 == 0) {
        EXPECT_EQ(c.result(sample).output_ids.size(), 40u);
      } else if (i % 3 == 1) {
        EXPECT_TRUE(std::regex_match(text, std::regex("(yes|no), [a-c]{10,20}\\."))) << text;
        EXPECT_TRUE(ended);
      } else {
        EXPECT_TRUE(std::regex_match(text, std::regex(ended ? "[0-9]+;" : "[0-9]{40}"))) << text;
      }
    }
    ++i;
  }
}

TEST(GrammarEngine, AnAnswerIsCompleteWithinItsBudget) {
  auto [engine, device] = make_test_engine();
  const std::string schema = R"({"type":"object","properties":{"name":{"type":"string"},
      "list":{"type":"array","minItems":2,"items":{"type":"boolean"}}},
      "required":["name","list"],"additionalProperties":false})";
  const auto ask = [&](int32_t tokens, uint64_t seed) {
    return engine->generate({.text = "x",
                             .sampling = {.max_new_tokens = tokens,
                                          .sampling_seed = seed,
                                          .json_schema = schema,
                                          .complete_within_budget = true}});
  };
  const auto refused = ask(1, 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("complete_within_budget needs"));
  int32_t least = 2;
  while (!ask(least, 0)) ASSERT_LT(++least, 100);
  for (int32_t extra = 0; extra < 12; ++extra) {
    const auto answer = ask(least + extra, static_cast<uint64_t>(extra));
    ASSERT_TRUE(answer) << answer.error().to_string();
    boost::system::error_code failed;
    const auto value = boost::json::parse(answer->text, failed);
    ASSERT_FALSE(failed) << answer->text;
    EXPECT_GE(value.at("list").as_array().size(), 2u) << answer->text;
  }
}

TEST(GrammarEngine, ABudgetNeedsAGrammarAndNoHealing) {
  auto [engine, device] = make_test_engine();
  const auto free = engine->generate({.text = "x", .sampling = {.complete_within_budget = true}});
  ASSERT_FALSE(free);
  EXPECT_THAT(free.error().message(), HasSubstr("complete_within_budget"));
  const auto healed = engine->generate(
      {.text = "x",
       .sampling = {.regex = "a+", .token_healing = true, .complete_within_budget = true}});
  ASSERT_FALSE(healed);
  EXPECT_THAT(healed.error().message(), HasSubstr("token_healing"));
}

TEST(GrammarEngine, WrongGrammarsEndTheirRequestAlone) {
  auto [engine, device] = make_test_engine();
  Collector good, bad;
  ASSERT_TRUE(
      engine->submit({.text = "a", .sampling = {.max_new_tokens = 5, .regex = "(a"}}, bad.sink()));
  ASSERT_TRUE(engine->submit({.text = "a", .sampling = {.max_new_tokens = 5}}, good.sink()));
  ASSERT_TRUE(bad.wait_end());
  ASSERT_TRUE(good.wait_end());
  EXPECT_EQ(bad.finish_type(), Type::kError);
  EXPECT_EQ(bad.result().finish.status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(bad.result().finish.status.message(), HasSubstr("does not end"));
  EXPECT_EQ(good.finish_type(), Type::kLength);

  const auto schema = engine->generate(
      {.text = "a", .sampling = {.json_schema = R"({"$ref":"http://elsewhere/x.json"})"}});
  ASSERT_FALSE(schema);
  EXPECT_EQ(schema.error().code(), StatusCode::kUnimplemented);
}

TEST(GrammarEngine, AbortWhileItIsCompiled) {
  auto [engine, device] = make_test_engine();
  std::list<Collector> collectors;
  for (int i = 0; i < 20; ++i) {
    GenerateRequest request{.rid = "g" + std::to_string(i),
                            .text = "a",
                            .sampling = {.max_new_tokens = 1000,
                                         .regex = "([a-z]{1," + std::to_string(50 + i) + "} )*"}};
    ASSERT_TRUE(engine->submit(std::move(request), collectors.emplace_back().sink()));
    engine->abort("g" + std::to_string(i), Engine::AbortScope::kExact);
  }
  for (Collector& c : collectors) ASSERT_TRUE(c.wait_end());
}

TEST(GrammarEngine, ChoicesTagsAndReasoning) {
  auto [engine, device] = make_test_engine();
  const auto choice = engine->generate(
      {.text = "x", .sampling = {.max_new_tokens = 50, .choices = {"red", "green", "greenish"}}});
  ASSERT_TRUE(choice) << choice.error().to_string();
  EXPECT_TRUE(choice->text == "red" || choice->text == "green" || choice->text == "greenish")
      << choice->text;

  SamplingParams tags{.max_new_tokens = 300};
  tags.structural_tag =
      R"({"format":{"type":"tag","begin":"<f>","content":{"type":"json_schema",
          "json_schema":{"type":"boolean"}},"end":"</f>"}})";
  const auto tag = engine->generate({.text = "x", .sampling = tags});
  ASSERT_TRUE(tag) << tag.error().to_string();
  EXPECT_TRUE(std::regex_match(tag->text, std::regex("<f>(true|false)</f>"))) << tag->text;

  // What stands before the mark is free.
  Script script;
  script.add("think:", "[1] no grammar here: {]]\n</think>");
  auto thinking = make_test_engine({.script = std::move(script)});
  SamplingParams after{.max_new_tokens = 300, .regex = "[0-9]{4}", .reasoning_end = "</think>"};
  const auto thought = thinking.engine->generate({.text = "think:", .sampling = after});
  ASSERT_TRUE(thought) << thought.error().to_string();
  EXPECT_TRUE(std::regex_match(
      thought->text, std::regex(R"(\[1\] no grammar here: \{\]\]\n</think>[ \n]{0,4}[0-9]{4})")))
      << thought->text;
}

TEST(GrammarEngine, AStopTokenEndsItWhereItMayEnd) {
  Script script;
  script.add(bytes_of("s"), {'1', '2', kByteUserId, '3'});
  auto [engine, device] = make_test_engine({.script = std::move(script)});
  const auto answer = engine->generate(
      {.text = "s",
       .sampling = {.max_new_tokens = 50, .stop_token_ids = {kByteUserId}, .regex = "[0-9]{2,9}"}});
  ASSERT_TRUE(answer) << answer.error().to_string();
  EXPECT_EQ(answer->text, "12");
  EXPECT_EQ(std::get<TokenId>(answer->finish.matched), kByteUserId);
}

TEST(GrammarEngine, CompilesForItselfAndReportsWhatItIs) {
  auto [engine, device] = make_test_engine();
  const auto made = engine->compile_grammar({.regex = "abc[0-9]"});
  ASSERT_TRUE(made) << made.error().to_string();
  EXPECT_EQ(made->forced, "abc");
  EXPECT_GT(made->num_states, 4u);
  EXPECT_EQ(engine->compile_grammar({.regex = "(a"}).error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(engine->compile_grammar({}).error().code(), StatusCode::kInvalidArgument);
  // A grammar that is too large is an error of the request: sent again it would be too large again.
  const auto large = engine->compile_grammar({.regex = "((a{1000}){1000}){1000}"});
  EXPECT_EQ(large.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(large.error().message(), HasSubstr("automaton states"));
  const auto drawn = engine->compile_grammar({.regex = "((a{1000}){1000}){1000}"}, 400);
  EXPECT_EQ(drawn.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(drawn.error().message(), HasSubstr("regex"));
  ASSERT_TRUE(engine->generate({.text = "x", .sampling = {.regex = "abc[0-9]"}}));
  EXPECT_EQ(engine->stats().grammars.num_cache_hits, 1);

  EngineConfig config;
  config.grammar.grammar_backend = "none";
  auto without = make_test_engine({.config = config});
  const auto refused = without.engine->generate({.text = "x", .sampling = {.regex = "a"}});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("grammar_backend none"));
}

TEST(GrammarEngine, AnAbortEndsTheCompilationThatNobodyWaitsFor) {
  EngineConfig config;
  config.grammar.grammar_threads = 1;
  config.grammar.grammar_compile_seconds = 60;
  auto [engine, device] = make_test_engine({.config = config});
  // Each takes half a second, one after the other: all but perhaps the first surely still wait when
  // they are aborted, the last first.
  std::list<Collector> collectors;
  for (int i = 0; i < 6; ++i) {
    const std::string regex = fmt::format("((a?){{1000}}b?){{{}}}", 880 + i);
    ASSERT_TRUE(
        engine->submit({.rid = fmt::format("g{}", i), .text = "a", .sampling = {.regex = regex}},
                       collectors.emplace_back().sink()));
  }
  for (int i = 5; i >= 0; --i) engine->abort(fmt::format("g{}", i), Engine::AbortScope::kExact);
  for (Collector& c : collectors) ASSERT_TRUE(c.wait_end());
  EXPECT_GE(engine->stats().grammars.num_cancelled, 5);
  ASSERT_TRUE(engine->generate({.text = "x", .sampling = {.regex = "ab"}}));
}

// What a request may ask besides its grammar, drawn from a seed.
struct Asked {
  GenerateRequest request;
  std::regex whole;  // what an answer that ends by itself matches
  bool reasons = false;
  size_t n = 1;
};

Asked drawn(Rng& rng) {
  static const char* const kRegexes[] = {"(red|green|blue) and (cat|dog|cow): [a-z]{4,9}\\.",
                                         "[0-9]{2,4}-(alpha|beta)-[0-9]{2};",
                                         "(yes|no)(, because [a-z ]{5,12})?!"};
  static const char* const kSchema =
      R"({"type":"object","properties":{"colour":{"enum":["red","green"]},"size":{"type":"integer",
          "minimum":1,"maximum":500},"tags":{"type":"array","items":{"type":"boolean"},"maxItems":3}},
          "required":["colour","size","tags"],"additionalProperties":false})";
  static const char* const kWritten =
      R"re(\{"colour":"(red|green)","size":[1-9][0-9]{0,2},"tags":)re"
      R"re(\[((true|false)(,(true|false)){0,2})?\]\})re";
  Asked asked;
  GenerateRequest& r = asked.request;
  const auto chance = [&](uint64_t of) { return rng.below(of) == 0; };
  r.text = "prompt " + std::to_string(rng.below(5)) + (chance(2) ? " http:" : "");
  r.sampling.max_new_tokens = chance(5) ? static_cast<int32_t>(rng.between(2, 12)) : 120;
  r.sampling.temperature = chance(2) ? 0.0f : 1.0f;
  r.sampling.sampling_seed = rng.below(1000);
  std::string matches;
  switch (rng.below(4)) {
    case 0:
      r.sampling.json_schema = kSchema;
      r.sampling.json_whitespace = "compact";
      matches = kWritten;
      break;
    case 1:
      r.sampling.ebnf = "root ::= (\"<a>\" | \"<b>\") [x-z]{3} \"</end>\" [0-9]?";
      matches = "(<a>|<b>)[x-z]{3}</end>[0-9]?";
      break;
    case 2:
      r.sampling.choices = {"first of all", "first of none", "second"};
      matches = "first of (all|none)|second";
      break;
    default:
      matches = kRegexes[rng.below(3)];
      r.sampling.regex = matches;
  }
  if (chance(3)) r.sampling.stop = {chance(2) ? "e" : "and", "</"};
  if (chance(5)) r.sampling.stop_regex = {"[0-9][0-9]"};
  if (chance(3)) r.sampling.presence_penalty = 0.7f;
  if (chance(4)) r.sampling.repetition_penalty = 1.3f;
  if (chance(4)) r.sampling.min_new_tokens = 2;
  if (chance(3)) {
    r.return_logprob = true;
    r.top_logprobs_num = static_cast<int32_t>(rng.below(3));
  }
  asked.n = chance(4) ? 2 : 1;
  r.sampling.n = static_cast<int32_t>(asked.n);
  asked.reasons = chance(5);
  if (asked.reasons) r.sampling.reasoning_end = "a";
  asked.whole = std::regex(asked.reasons ? "[^a]*a[ \\n]{0,4}(" + matches + ")" : matches);
  return asked;
}

void check_answer(const Asked& asked, const GenerateResult& answer) {
  const SamplingParams& s = asked.request.sampling;
  ASSERT_NE(answer.finish.type, Type::kError) << answer.finish.status.to_string();
  EXPECT_EQ(answer.output_logprobs.size(),
            asked.request.return_logprob ? answer.output_ids.size() : 0u);
  for (const TokenLogprobs& one : answer.output_logprobs) {
    EXPECT_LE(one.logprob, 0.0f);
    EXPECT_EQ(one.top.size(), static_cast<size_t>(asked.request.top_logprobs_num));
  }
  const bool stopped = std::holds_alternative<std::string>(answer.finish.matched);
  if (answer.finish.type == Type::kLength) {
    EXPECT_EQ(answer.output_ids.size(), static_cast<size_t>(*s.max_new_tokens));
  } else if (stopped) {
    EXPECT_FALSE(s.stop.empty() && s.stop_regex.empty());
    for (const std::string& stop : s.stop)
      EXPECT_EQ(answer.text.find(stop), std::string::npos) << answer.text;
  } else {
    EXPECT_TRUE(std::regex_match(answer.text, asked.whole)) << answer.text;
  }
}

using AskedOnes = std::list<std::pair<Asked, Collector>>;

// Submits `count` requests drawn from a seed; request i is at index i until it has ended.
AskedOnes ask_drawn(Engine& engine, uint64_t seed, int count, bool jump_forward) {
  Rng rng(seed);
  AskedOnes all;
  for (int i = 0; i < count; ++i) {
    Asked asked = drawn(rng);
    asked.request.sampling.jump_forward = jump_forward;
    const auto n = static_cast<int32_t>(asked.n);
    auto& [kept, collector] =
        all.emplace_back(std::piecewise_construct, std::forward_as_tuple(std::move(asked)),
                         std::forward_as_tuple(n));
    const auto submitted = engine.submit(kept.request, collector.sink());
    EXPECT_TRUE(submitted) << submitted.error().to_string();
  }
  return all;
}

// Every token is a byte, so all are canonical: with and without jump-forward, with and without
// overlap, with and without a draft head the same comes, whatever else is requested.
TEST(GrammarEngine, WhateverElseIsAskedJumpForwardAndOverlapChangeNothing) {
  std::map<int, std::vector<GenerateResult>> first;
  int64_t stops = 0, lengths = 0, forced = 0, num_accepted = 0, drafted = 0;
  for (const char* algorithm : {"none", "EAGLE3"})
    for (const bool overlap : {true, false}) {
      for (const bool jump : {true, false}) {
        EngineConfig config{.cache = {.max_total_tokens = 1500}};
        config.speculation.speculative_algorithm = algorithm;
        config.sampling.logprobs_mode =
            "raw";  // where a forced token is as likely as a sampled one
        config.compute.disable_overlap_schedule = !overlap;
        auto [engine, device] = make_test_engine({.config = config});
        AskedOnes all = ask_drawn(*engine, 20, 150, jump);
        int i = 0;
        for (auto& [asked, collector] : all) {
          SCOPED_TRACE(testing::Message()
                       << "request " << i << " overlap " << overlap << jump << " " << algorithm);
          ASSERT_TRUE(collector.wait_end());
          for (size_t k = 0; k < asked.n; ++k) {
            const GenerateResult& answer = collector.result(k);
            check_answer(asked, answer);
            std::vector<GenerateResult>& known = first[i];
            if (known.size() <= k) known.push_back(answer);
            EXPECT_EQ(answer.text, known[k].text);
            EXPECT_EQ(answer.output_ids, known[k].output_ids);
            EXPECT_EQ(answer.finish.type, known[k].finish.type);
            EXPECT_EQ(answer.finish.matched, known[k].finish.matched);
            for (size_t t = 0;
                 t < std::min(answer.output_logprobs.size(), known[k].output_logprobs.size()); ++t)
              EXPECT_EQ(answer.output_logprobs[t].logprob, known[k].output_logprobs[t].logprob);
            stops += std::holds_alternative<std::string>(answer.finish.matched) ? 1 : 0;
            lengths += answer.finish.type == Type::kLength ? 1 : 0;
            forced += answer.stats.forced_tokens;
            num_accepted += answer.stats.accepted_draft_tokens;
            drafted += answer.stats.drafted_tokens;
            EXPECT_TRUE(jump || answer.stats.forced_tokens == 0);
          }
          ++i;
        }
      }
    }
  EXPECT_GT(stops, 40);
  EXPECT_GT(lengths, 40);
  EXPECT_GT(forced, 2000);
  EXPECT_GT(num_accepted, 50);
  EXPECT_GT(drafted, num_accepted);  // some were wrong
}

// How often the threads that fill masks have gone to sleep: each once when it begins.
int64_t mask_threads_parked() {
  int64_t sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    bool fills_masks = false;
    for (std::string line; std::getline(status, line);) {
      if (line == "Name:\tmasks") fills_masks = true;
      if (fills_masks && line.starts_with("voluntary_ctxt_switches:"))
        sum += std::stoll(line.substr(line.find(':') + 1));
    }
  }
  return sum;
}

// 150 requests at once whose masks several threads fill get what they get of one.
TEST(GrammarEngine, WhoeverFillsTheMasksAnswersAreTheSame) {
  std::vector<GenerateResult> first;
  for (const int32_t threads : {1, 4}) {
    EngineConfig config;
    config.grammar.grammar_mask_threads = threads;
    auto [engine, device] = make_test_engine({.config = config});
    AskedOnes all = ask_drawn(*engine, 33, 150, true);
    size_t at = 0;
    for (auto& [asked, collector] : all) {
      ASSERT_TRUE(collector.wait_end());
      for (size_t k = 0; k < asked.n; ++k, ++at) {
        SCOPED_TRACE(testing::Message() << "answer " << at << ", " << threads << " threads");
        const GenerateResult& answer = collector.result(k);
        check_answer(asked, answer);
        if (threads == 1) first.push_back(answer);
        EXPECT_EQ(answer.output_ids, first[at].output_ids);
        EXPECT_EQ(answer.text, first[at].text);
        EXPECT_EQ(answer.finish.type, first[at].finish.type);
      }
    }
    if (threads == 1)
      EXPECT_EQ(mask_threads_parked(), 0);
    else
      EXPECT_GT(mask_threads_parked(), threads - 1) << "they were never woken";
  }
}

// The model that ships, whose tokens are longer: penalties, healing and draws are real. What runs
// beside a request, whether steps overlap, and where draft tokens come from changes nothing.
TEST(GrammarEngine, WhateverElseIsAskedTheModelThatShipsKeepsToIt) {
  std::vector<std::vector<TokenId>> first;
  const std::pair<bool, const char*> ways[] = {
      {true, "none"}, {false, "none"}, {true, "EAGLE3"}, {false, "EAGLE3"}, {true, "NGRAM"}};
  for (const auto& [overlap, algorithm] : ways) {
    EngineConfig config{.model = {.model_path = "share/default_model"},
                        .compute = {.device = "cpu"},
                        .cache = {.max_total_tokens = 4096},
                        .speculation = {.speculative_algorithm = algorithm}};
    config.compute.disable_overlap_schedule = !overlap;
    auto engine = Engine::create(config);
    ASSERT_TRUE(engine) << engine.error().to_string();
    Rng rng(21);
    std::list<std::pair<Asked, Collector>> all;
    for (int i = 0; i < 24; ++i) {
      Asked asked = drawn(rng);
      asked.request.sampling.token_healing = rng.below(3) == 0;
      const auto n = static_cast<int32_t>(asked.n);
      auto& [kept, collector] =
          all.emplace_back(std::piecewise_construct, std::forward_as_tuple(std::move(asked)),
                           std::forward_as_tuple(n));
      const auto submitted = (*engine)->submit(kept.request, collector.sink());
      ASSERT_TRUE(submitted) << submitted.error().to_string();
    }
    size_t at = 0;
    for (auto& [asked, collector] : all) {
      SCOPED_TRACE(testing::Message()
                   << "answer " << at << " overlap " << overlap << " " << algorithm);
      ASSERT_TRUE(collector.wait_end());
      for (size_t k = 0; k < asked.n; ++k, ++at) {
        check_answer(asked, collector.result(k));
        if (first.size() == at) first.push_back(collector.result(k).output_ids);
        EXPECT_EQ(collector.result(k).output_ids, first[at]);
      }
    }
    const auto by_drafter = (*engine)->stats().speculation.by_drafter;
    if (algorithm == std::string("EAGLE3")) {
      EXPECT_GT(by_drafter[static_cast<size_t>(Drafter::kHead)].accepted_tokens, 0);
    }
  }
}

TEST(GrammarEngine, WithoutATokenizerItIsRefused) {
  auto [engine, device] = make_test_engine({.tokenizer = false});
  const auto answer = engine->generate({.input_ids = {1}, .sampling = {.regex = "a"}});
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace espalier
