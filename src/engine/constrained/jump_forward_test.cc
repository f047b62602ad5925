// Jump-forward: what it forces is what the tokenizer makes of the whole text, and what an engine
// answers does not depend on it.
#include "engine/constrained/jump_forward.h"

#include <gtest/gtest.h>

#include <bit>
#include <list>
#include <regex>

#include "base/rng.h"
#include "engine/testing/test_engine.h"

namespace espalier {
namespace {

using grammar::GrammarSpec;
using Type = FinishReason::Type;

struct Case {
  GrammarSpec spec;
  std::vector<std::string> texts;
};

std::vector<Case> cases() {
  const auto schema = [](std::string source, std::vector<std::string> texts) {
    return Case{{.kind = GrammarSpec::Kind::kJsonSchema,
                 .source = std::move(source),
                 .choices = {},
                 .whitespace = grammar::Whitespace::kCompact},
                std::move(texts)};
  };
  return {
      schema(R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},
                 "favourite_colour":{"enum":["red","green","greenish"]},"on":{"type":"boolean"}},
                 "required":["name","age","favourite_colour","on"],"additionalProperties":false})",
             {R"({"name":"Ada","age":36,"favourite_colour":"green","on":true})",
              R"({"name":"","age":-1,"favourite_colour":"greenish","on":false})",
              R"({"name":"a\"b ü","age":0,"favourite_colour":"red","on":true})"}),
      schema(R"({"type":"array","items":{"type":"object","properties":{"x":{"const":"abc def"},
                 "y":{"type":"array","items":{"type":"null"}}},"required":["x","y"],
                 "additionalProperties":false}})",
             {R"([{"x":"abc def","y":[]},{"x":"abc def","y":[null,null]}])", "[]"}),
      {{.kind = GrammarSpec::Kind::kRegex,
        .source = "The answer is (yes|no|maybe), and that is certain(!|\\.|\\.\\.\\.)"},
       {"The answer is yes, and that is certain!", "The answer is maybe, and that is certain..."}},
      {{.kind = GrammarSpec::Kind::kEbnf,
        .source = "root ::= \"SELECT \" col (\", \" col)* \" FROM table\" [0-9] \" WHERE id = \" "
                  "[0-9]+ \";\"\ncol ::= \"id\" | \"identifier\" | \"name\""},
       {"SELECT id FROM table1 WHERE id = 12345;",
        "SELECT identifier, name, id FROM table9 WHERE id = 7;"}},
      // " name" is a token, " id" is not: behind a token " " there is no canonical name.
      {{.kind = GrammarSpec::Kind::kEbnf,
        .source = "root ::= \"ORDER BY \" (\"id\" | \"name\" | \"price\" | \"created_at\" | "
                  "\"customer_id\") (\" ASC\" | \" DESC\" | \" = \" [0-9]+) \" LIMIT \" [1-9]"},
       {"ORDER BY id ASC LIMIT 3", "ORDER BY name DESC LIMIT 4",
        "ORDER BY customer_id = 77 LIMIT 9", "ORDER BY price = 2 LIMIT 1",
        "ORDER BY created_at ASC LIMIT 8"}},
  };
}

TEST(JumpForward, ForcesWhatTheWholeTextIsTokenisedTo) {
  const auto tokenizer = load_tokenizer("share/default_model");
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  const auto trie = std::make_shared<const grammar::TokenTrie>((*tokenizer)->vocab());
  const TokensByBytes tokens(**tokenizer);
  JumpForward jump(**tokenizer, tokens);
  size_t num_forced = 0, num_tokens = 0;
  for (const Case& one : cases()) {
    const auto grammar = compile_grammar(one.spec, trie);
    ASSERT_TRUE(grammar) << grammar.error().to_string();
    for (const std::string& text : one.texts) {
      const std::vector<TokenId> ids = (*tokenizer)->encode(text, {.add_special_tokens = false});
      grammar::Matcher matcher(*grammar);
      for (size_t i = 0; i < ids.size(); ++i) {
        ASSERT_TRUE(matcher.accept_token(ids[i])) << text;
        std::vector<TokenId> forced;
        const size_t steps = matcher.steps();
        jump.append_forced(matcher, std::span(ids).first(i + 1), forced);
        ASSERT_EQ(matcher.steps(), steps);
        ASSERT_LE(forced.size(), ids.size() - i - 1) << text;
        const auto next = ids.begin() + static_cast<std::ptrdiff_t>(i) + 1;
        EXPECT_TRUE(std::equal(forced.begin(), forced.end(), next)) << text << " after token " << i;
        num_forced += forced.size();
        // Go on behind them, as an engine does.
        for (const TokenId token : forced) ASSERT_TRUE(matcher.accept_token(token));
        i += forced.size();
      }
      num_tokens += ids.size();
      EXPECT_TRUE(matcher.can_end()) << text;
    }
  }
  EXPECT_GT(num_forced, num_tokens / 4);
}

// Along a canonical text its next token is always among the choices, where there are some; and the
// choices are few where the grammar's ways are.
TEST(JumpForward, ChoicesAreTheTokensThatACanonicalTextGoesOnWith) {
  const auto tokenizer = load_tokenizer("share/default_model");
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  const auto trie = std::make_shared<const grammar::TokenTrie>((*tokenizer)->vocab());
  const TokensByBytes tokens(**tokenizer);
  JumpForward jump(**tokenizer, tokens);
  size_t num_choices = 0, num_places = 0, num_narrowed = 0;
  std::vector<uint32_t> words(static_cast<size_t>(trie->words_per_mask()));
  for (const Case& one : cases()) {
    const auto grammar = compile_grammar(one.spec, trie);
    ASSERT_TRUE(grammar) << grammar.error().to_string();
    for (const std::string& text : one.texts) {
      const std::vector<TokenId> ids = (*tokenizer)->encode(text, {.add_special_tokens = false});
      grammar::Matcher matcher(*grammar);
      for (size_t i = 0; i < ids.size(); ++i) {
        std::vector<TokenId> choices;
        const size_t steps = matcher.steps();
        jump.append_choices(matcher, std::span(ids).first(i), choices);
        ASSERT_EQ(matcher.steps(), steps);
        if (!choices.empty()) {
          EXPECT_TRUE(std::ranges::binary_search(choices, ids[i])) << text << " token " << i;
          matcher.fill_mask(words);
          size_t allowed = 0;
          for (const uint32_t word : words) allowed += static_cast<size_t>(std::popcount(word));
          for (const TokenId id : choices)
            EXPECT_TRUE(words[static_cast<size_t>(id) / 32] >> (id % 32) & 1);
          EXPECT_LE(choices.size(), allowed);
          num_narrowed += choices.size() < allowed ? 1 : 0;
          num_choices += choices.size();
          ++num_places;
        }
        ASSERT_TRUE(matcher.accept_token(ids[i])) << text;
      }
    }
  }
  EXPECT_GT(num_places, 200u);
  EXPECT_GT(num_narrowed, num_places / 3);
  EXPECT_LT(num_choices, 3 * num_places);
}

// Behind texts of every kind, by steps that are refused at random: the same tokens in the same
// order as by trying each, with no step left that was not taken back.
TEST(TokensByBytes, WalkFindsWhatTryingEachTokenFinds) {
  const auto tokenizer = load_tokenizer("share/default_model");
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  const TokensByBytes tokens(**tokenizer);
  Rng rng(11);
  size_t num_found = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto id =
        static_cast<TokenId>(rng.below(static_cast<uint64_t>((*tokenizer)->vocab_size())));
    const std::string_view bytes = tokens.bytes_of(id);
    const std::string text(bytes.substr(0, rng.below(bytes.size() + 1)));
    const uint64_t seed = rng();
    const auto refused = [&](std::string_view path) {
      return mix64(seed ^ std::hash<std::string_view>()(path)) % 4 == 0;
    };
    const auto goes = [&](std::string_view rest) {
      for (size_t n = 1; n <= rest.size(); ++n)
        if (refused(rest.substr(0, n))) return false;
      return true;
    };
    const size_t most = rng.below(2) == 0 ? rng.below(20) : 100000;
    std::vector<TokenId> expected, found;
    for (const TokenId longer : tokens.longer(text)) {
      if (!goes(tokens.bytes_of(longer).substr(text.size()))) continue;
      expected.push_back(longer);
      if (expected.size() == most + 1) break;
    }
    std::string path;
    tokens.walk_longer(
        text,
        [&](char byte) {
          path.push_back(byte);
          if (!refused(path)) return true;
          path.pop_back();
          return false;
        },
        [&](size_t count) { path.resize(path.size() - count); },
        [&](TokenId at) {
          EXPECT_EQ(text + path, tokens.bytes_of(at));
          found.push_back(at);
          return found.size() <= most;
        });
    ASSERT_EQ(found, expected) << "behind '" << text << "', seed " << seed;
    EXPECT_EQ(path, "");
    num_found += found.size();
  }
  EXPECT_GT(num_found, 10000u);
}

TEST(JumpForward, NothingBehindTokensThatAreNotCanonical) {
  const auto tokenizer = load_tokenizer("share/default_model");
  ASSERT_TRUE(tokenizer);
  const auto trie = std::make_shared<const grammar::TokenTrie>((*tokenizer)->vocab());
  const auto grammar = compile_grammar(
      {.kind = GrammarSpec::Kind::kRegex, .source = "there once was a king(s|dom)"}, trie);
  ASSERT_TRUE(grammar);
  const TokensByBytes tokens(**tokenizer);
  JumpForward jump(**tokenizer, tokens);
  grammar::Matcher matcher(*grammar);
  std::vector<TokenId> letters;
  for (const char* letter : {"t", "h", "e"}) {
    letters.push_back((*tokenizer)->token_to_id(letter).value());
    ASSERT_TRUE(matcher.accept_token(letters.back()));
  }
  std::vector<TokenId> forced;
  jump.append_forced(matcher, letters, forced);
  EXPECT_TRUE(forced.empty());
}

constexpr const char* kPerson =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":6},
        "description":{"enum":["unknown","unseen"]},"list":{"type":"array","maxItems":2,
        "items":{"type":"boolean"}}},"required":["name","description","list"],
        "additionalProperties":false})";

// The null device's answers come from a hash of the history: whatever is computed wrongly shows.
TEST(JumpForward, AnswersAreTheSameWithAndWithout) {
  std::map<std::string, std::vector<std::vector<TokenId>>> answers;
  for (const bool overlap : {true, false}) {
    for (const bool jump : {true, false}) {
      for (const int32_t pool : {20000, 500}) {
        EngineConfig config;
        config.compute.disable_overlap_schedule = !overlap;
        config.grammar.disable_jump_forward = !jump;
        config.cache.max_total_tokens = pool;
        config.schedule.chunked_prefill_size = pool == 500 ? 5 : 0;
        auto [engine, device] = make_test_engine({.config = config});
        std::list<Collector> collectors;
        for (int i = 0; i < 24; ++i) {
          GenerateRequest request{.text = "person " + std::to_string(i % 5),
                                  .sampling = {.max_new_tokens = 90 + i, .n = 1 + i % 2}};
          request.sampling.json_schema = kPerson;
          request.sampling.json_whitespace = "compact";
          if (i % 4 == 0) request.sampling.stop = {"\"list"};
          if (i % 3 == 0) request.sampling.presence_penalty = 0.5f;
          ASSERT_TRUE(
              engine->submit(std::move(request), collectors.emplace_back(1 + i % 2).sink()));
        }
        std::vector<std::vector<TokenId>> all;
        for (Collector& c : collectors) {
          ASSERT_TRUE(c.wait_end());
          ASSERT_NE(c.finish_type(), Type::kError) << c.result().finish.status.to_string();
          all.push_back(c.result().output_ids);
          if (jump) {
            EXPECT_GT(c.result().stats.forced_tokens, 20);
          } else {
            EXPECT_EQ(c.result().stats.forced_tokens, 0);
          }
        }
        const auto [it, added] = answers.try_emplace("all", all);
        EXPECT_EQ(it->second, all) << "overlap " << overlap << " jump " << jump;
        EXPECT_EQ(engine->stats().speculation.forwards_saved > 300, jump);
      }
    }
  }
}

TEST(JumpForward, FewerStepsAndASwitchForEachRequest) {
  int64_t steps[2];
  for (const bool jump : {true, false}) {
    auto [engine, device] = make_test_engine();
    const auto answer = engine->generate({.text = "x",
                                          .sampling = {.max_new_tokens = 200,
                                                       .regex = "abcdefghijklmnop[0-9]qrstuvwxyz!",
                                                       .jump_forward = jump}});
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->finish.type, Type::kStop);
    EXPECT_EQ(answer->output_ids.size(), 28u);
    EXPECT_EQ(answer->stats.completion_tokens, 28);
    EXPECT_EQ(answer->stats.forced_tokens, jump ? 27 : 0);
    steps[jump ? 0 : 1] = engine->stats().steps.num_steps;
  }
  EXPECT_LT(steps[0], 8);
  EXPECT_GE(steps[1], 28);
  {
    // All of it is forced: nothing runs at all.
    auto [engine, device] = make_test_engine();
    for (const int32_t most : {200, 2}) {
      const auto answer = engine->generate(
          {.text = "x", .sampling = {.max_new_tokens = most, .n = 2, .regex = "abcd"}});
      ASSERT_TRUE(answer);
      EXPECT_EQ(answer->text, most == 2 ? "ab" : "abcd");
      EXPECT_EQ(answer->finish.type, most == 2 ? Type::kLength : Type::kStop);
    }
    EXPECT_EQ(engine->stats().steps.num_steps, 0);
  }
}

// Raw log-probabilities come with the forward behind them: the last token is sampled.
TEST(JumpForward, RawLogProbabilitiesAreComputed) {
  EngineConfig config;
  config.sampling.logprobs_mode = "raw";
  auto [engine, device] = make_test_engine({.config = config});
  for (const auto& [regex, forced] : {std::pair("abcd[0-9]ef", 5), std::pair("abcd", 3)}) {
    const auto answer = engine->generate(
        {.text = "x", .sampling = {.max_new_tokens = 200, .regex = regex}, .return_logprob = true});
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->output_logprobs.size(), answer->output_ids.size());
    EXPECT_EQ(answer->stats.forced_tokens, forced);
  }
  const auto stopping =
      engine->generate({.text = "x",
                        .sampling = {.max_new_tokens = 200, .stop = {"cd"}, .regex = "abcd[0-9]ef"},
                        .return_logprob = true});
  ASSERT_TRUE(stopping);
  EXPECT_EQ(stopping->output_logprobs.size(), 4u);
  EXPECT_EQ(stopping->stats.forced_tokens, 0);
}

// A forced token is certain: its log-probability is 0 and needs no forward, and a stop string may
// end the answer within forced tokens.
TEST(JumpForward, ForcedTokensAreCertain) {
  auto [engine, device] = make_test_engine();
  const auto all_forced = engine->generate({.text = "x",
                                            .sampling = {.max_new_tokens = 200, .regex = "abcd"},
                                            .return_logprob = true,
                                            .top_logprobs_num = 2,
                                            .token_ids_logprob = {'a'}});
  ASSERT_TRUE(all_forced);
  EXPECT_EQ(engine->stats().steps.num_steps, 0);
  ASSERT_EQ(all_forced->output_logprobs.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const TokenLogprobs& at = all_forced->output_logprobs[i];
    EXPECT_EQ(at.logprob, 0);
    ASSERT_EQ(at.top.size(), 2u);
    EXPECT_EQ(at.top[0], std::pair(all_forced->output_ids[i], 0.0f));
    EXPECT_LT(at.top[1].second, -1e38f);
    EXPECT_EQ(at.wanted[0].second == 0, i == 0);
  }
  const auto stopping =
      engine->generate({.text = "x",
                        .sampling = {.max_new_tokens = 200, .stop = {"cd"}, .regex = "abcd[0-9]ef"},
                        .return_logprob = true});
  ASSERT_TRUE(stopping);
  EXPECT_EQ(stopping->output_logprobs.size(), 4u);
  EXPECT_EQ(stopping->stats.forced_tokens, 4);
}

// Whatever the first sample is, the entry behind it would be stale: there is none. With free text
// behind the choice there is one, as ever.
TEST(JumpForward, NoEntryBehindAChoiceThatForcesWhatFollows) {
  const auto entries_of = [](const char* regex, size_t num_tokens) {
    auto [engine, device] = make_test_engine();
    const auto answer =
        engine->generate({.text = "x", .sampling = {.max_new_tokens = 200, .regex = regex}});
    EXPECT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->output_ids.size(), num_tokens) << answer->text;
    EXPECT_EQ(answer->stats.forwards_saved, answer->stats.forced_tokens);
    return engine->stats().steps.num_entries;
  };
  EXPECT_EQ(entries_of("(red|tan) and (cat|dog)\\.", 12), 2);
  EXPECT_EQ(entries_of("(red|tan) or (cat|bat|dog) or (yes|not)", 17), 3);
  EXPECT_EQ(entries_of("(a|b)[0-9]{9}", 10), 11);
}

// The model that ships, in its own words and in words it has never seen: where its tokens are
// canonical jump-forward changes none of them, and where the continuations are few they always are.
TEST(JumpForward, TokensAreCanonicalAndThoseOfARunWithoutIt) {
  constexpr const char* kSql =
      "root ::= \"SELECT \" col (\", \" col){0,2} \" FROM orders\" (\" ORDER BY \" col (\" ASC\" | "
      "\" DESC\"))? \" LIMIT \" [1-9] [0-9]{0,2} \";\"\ncol ::= \"id\" | \"name\" | \"price\" | "
      "\"created_at\" | \"customer_id\"";
  constexpr const char* kFields =
      R"re( \{"winner": "[A-Za-z]{2,16}", "loser": "[A-Za-z]{2,16}", )re"
      R"re("sport": "(tennis|football|chess|judo)", "city": "[A-Za-z ]{2,20}"\})re";
  for (const bool overlap : {true, false}) {
    EngineConfig config{.model = {.model_path = "share/default_model"},
                        .cache = {.max_total_tokens = 4096}};
    config.compute.disable_overlap_schedule = !overlap;
    auto engine = Engine::create(config);
    ASSERT_TRUE(engine) << engine.error().to_string();
    const auto answer = [&](std::string text, SamplingParams params, bool jump) {
      params.max_new_tokens = 100;
      params.jump_forward = jump;
      auto got = (*engine)->generate({.text = std::move(text), .sampling = std::move(params)});
      EXPECT_TRUE(got) << got.error().to_string();
      return std::move(*got);
    };
    const auto canonical = [&](const GenerateResult& got) {
      return (*engine)->tokenizer()->encode(got.text, {.add_special_tokens = false}) ==
             got.output_ids;
    };
    int num_plain = 0;
    for (const auto& [winner, city] : {std::pair("Tamsin", "Oslo"), std::pair("Piers", "Lisbon"),
                                       std::pair("Greta", "Turin"), std::pair("Yusuf", "Riga")}) {
      const std::string text = fmt::format(
          "Sentence: {} beat Odette at chess in {}.\nFields: winner, loser, sport, city\nJSON:",
          winner, city);
      const SamplingParams params{.temperature = 0.0f, .regex = kFields};
      const GenerateResult plain = answer(text, params, false), jump = answer(text, params, true);
      EXPECT_GT(jump.stats.forced_tokens, 10);
      if (!canonical(plain)) continue;
      ++num_plain;
      EXPECT_EQ(jump.output_ids, plain.output_ids) << plain.text;
      EXPECT_EQ(jump.finish.type, plain.finish.type);
    }
    EXPECT_GE(num_plain, 3);
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      const GenerateResult sql =
          answer("A query:", {.temperature = 1.0f, .sampling_seed = seed, .ebnf = kSql}, true);
      if (sql.finish.type == Type::kStop) {
        EXPECT_TRUE(canonical(sql)) << sql.text;
      }
      EXPECT_GT(sql.stats.forced_tokens, 5);
    }
  }
}

// Draft tokens come from earlier answers: the second time the tokens of the first answers are
// verified at once. Greedy or drawn, one after the other or together, every answer is the same as
// without draft tokens.
TEST(JumpForward, DraftTokensSaveForwardsAndChangeNoAnswer) {
  constexpr const char* kCode =
      "root ::= (\"let \" name \" = \" value \";\\n\"){2,4}\nname ::= [a-d] [a-d]?\n"
      "value ::= name (\" + \" name)? | \"call(\" name \", \" name \")\"";
  std::map<std::string, std::vector<TokenId>> answers;
  int64_t entries[2] = {}, num_accepted = 0;
  for (const bool speculates : {true, false}) {
    EngineConfig config{.model = {.model_path = "share/default_model"},
                        .cache = {.max_total_tokens = 8192}};
    config.grammar.disable_draft_tokens = !speculates;
    auto engine = Engine::create(config);
    ASSERT_TRUE(engine) << engine.error().to_string();
    for (int round = 0; round < 5; ++round) {
      std::list<std::pair<std::string, Collector>> asked;
      for (int i = 0; i < 4; ++i) {
        for (const bool greedy : {true, false}) {
          GenerateRequest request{.text = fmt::format("Line {}:", i % 2),
                                  .sampling = {.max_new_tokens = 40 + i,
                                               .temperature = greedy ? 0.0f : 0.8f,
                                               .sampling_seed = static_cast<uint64_t>(i / 2)}};
          if (i % 2 == 0)
            request.sampling.ebnf = kCode;
          else
            request.sampling.json_schema = kPerson;
          const std::string name = fmt::format("{} {}", i, greedy);
          auto& [key, collector] = asked.emplace_back(
              std::piecewise_construct, std::forward_as_tuple(name), std::forward_as_tuple(1));
          ASSERT_TRUE((*engine)->submit(std::move(request), collector.sink()));
          if (round % 2 == 0) {
            ASSERT_TRUE(collector.wait_end());
          }
        }
      }
      for (auto& [name, collector] : asked) {
        ASSERT_TRUE(collector.wait_end());
        const GenerateResult& got = collector.result();
        ASSERT_NE(got.finish.type, Type::kError) << got.finish.status.to_string();
        const auto [it, added] = answers.try_emplace(name, got.output_ids);
        EXPECT_EQ(it->second, got.output_ids)
            << name << " speculates " << speculates << ": " << got.text;
        num_accepted += got.stats.accepted_draft_tokens;
        EXPECT_TRUE(speculates || got.stats.drafted_tokens == 0);
      }
    }
    entries[speculates ? 0 : 1] = (*engine)->stats().steps.num_entries;
  }
  EXPECT_GT(num_accepted, 200);
  EXPECT_LT(entries[0], entries[1] * 3 / 4);
}

// Real logits: each log-probability is what the whole text has when it is read as a prompt, to the
// last bit.
TEST(JumpForward, LogProbabilitiesAreThoseOfEachTokensForward) {
  const auto same = [](const TokenLogprobs& a, const TokenLogprobs& b) {
    return a.logprob == b.logprob && a.top == b.top && a.wanted == b.wanted;
  };
  for (const bool overlap : {true, false}) {
    EngineConfig config{.model = {.model_path = "share/default_model"}};
    config.cache.max_total_tokens = 2048;
    config.sampling.logprobs_mode = "raw";
    config.schedule.chunked_prefill_size = overlap ? 0 : 7;
    config.compute.disable_overlap_schedule = !overlap;
    auto engine = Engine::create(config);
    ASSERT_TRUE(engine) << engine.error().to_string();
    const auto request_of = [](std::vector<TokenId> ids, int32_t start) {
      return GenerateRequest{.input_ids = std::move(ids),
                             .return_logprob = true,
                             .logprob_start_len = start,
                             .top_logprobs_num = 3,
                             .token_ids_logprob = {7, 300}};
    };
    std::list<Collector> collectors;
    std::vector<std::vector<TokenId>> prompts;
    for (int i = 0; i < 4; ++i) {
      prompts.push_back({50 + i, 400, 1200 + i, 77});
      GenerateRequest request = request_of(prompts.back(), i % 2 == 0 ? 0 : -1);
      request.sampling = {.max_new_tokens = 40 + 5 * i, .temperature = 0.0f};
      request.sampling.json_schema = kPerson;
      request.sampling.json_whitespace = "compact";
      ASSERT_TRUE((*engine)->submit(std::move(request), collectors.emplace_back().sink()));
    }
    auto prompt = prompts.begin();
    for (Collector& c : collectors) {
      ASSERT_TRUE(c.wait_end());
      const GenerateResult& got = c.result();
      EXPECT_GE(got.stats.forced_tokens, 8);  // however short the model answers
      const auto length = static_cast<int32_t>(prompt->size());
      std::vector<TokenId> whole = *prompt++;
      whole.insert(whole.end(), got.output_ids.begin(), got.output_ids.end());
      GenerateRequest reading = request_of(whole, length);
      reading.sampling.max_new_tokens = 0;
      const auto read = (*engine)->generate(reading);
      ASSERT_TRUE(read) << read.error().to_string();
      ASSERT_EQ(read->input_logprobs.size(), got.output_logprobs.size());
      for (size_t i = 0; i < got.output_logprobs.size(); ++i)
        EXPECT_TRUE(same(got.output_logprobs[i], read->input_logprobs[i]))
            << "token " << i << " of " << got.text << ": " << got.output_logprobs[i].logprob
            << ", read as " << read->input_logprobs[i].logprob;
    }
  }
}

}  // namespace
}  // namespace espalier
