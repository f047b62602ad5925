// Random schemas whose items must differ, with jump-forward: what is forced and what is chosen is
// of the grammar and leads to an end.
//   ESPALIER_RANDOM_SCHEMAS   number of schemas (100)
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cstdlib>
#include <list>
#include <string>
#include <vector>

#include "base/rng.h"
#include "engine/constrained/jump_forward.h"
#include "engine/testing/test_engine.h"
#include "grammar/schema/random_schema.h"
#include "grammar/schema/validator.h"

namespace espalier {
namespace {

int num_schemas() {
  const char* const wanted = std::getenv("ESPALIER_RANDOM_SCHEMAS");
  return wanted == nullptr ? 100 : std::atoi(wanted);
}

std::string draw_schema(uint64_t seed) {
  return boost::json::serialize(grammar::RandomSchema(seed).draw(3).schema);
}

bool valid(const std::string& schema, const std::string& text) {
  const auto document = grammar::SchemaDocument::parse(schema, {}).value();
  grammar::SchemaValidator validator(*document);
  boost::system::error_code problem;
  const boost::json::value value = boost::json::parse(text, problem);
  return !problem && validator.valid(value, &document->root(), grammar::kNoScope).value();
}

struct Outcomes {
  int64_t valid = 0, stuck = 0, endless = 0, forced = 0, choices = 0;
};

// What an engine does with one sample: choices, or else the mask, and then what is forced.
class Walk {
 public:
  Walk(const std::shared_ptr<grammar::CompiledGrammar>& grammar, const Tokenizer& tokenizer,
       JumpForward& jump, Rng& rng)
      : matcher_(grammar), tokenizer_(tokenizer), jump_(jump), rng_(rng) {}

  void run(const std::string& schema, Outcomes& outcomes) {
    constexpr int kStepsMax = 800;
    for (int step = 0; step < kStepsMax; ++step) {
      const std::vector<TokenId> allowed = allowed_now(outcomes);
      if (matcher_.can_end() && (allowed.empty() || rng_.below(4) == 0)) {
        const std::string text = tokenizer_.decode(output_, {});
        EXPECT_TRUE(valid(schema, text)) << schema << "\n" << text;
        ++outcomes.valid;
        return;
      }
      if (allowed.empty()) {
        ++outcomes.stuck;
        ADD_FAILURE() << "a dead end: " << schema << "\n" << tokenizer_.decode(output_, {});
        return;
      }
      output_.push_back(allowed[rng_.below(allowed.size())]);
      ASSERT_TRUE(matcher_.accept_token(output_.back())) << schema;
      std::vector<TokenId> forced;
      if (!matcher_.must_end()) jump_.append_forced(matcher_, output_, forced);
      for (const TokenId token : forced) ASSERT_TRUE(matcher_.accept_token(token)) << schema;
      output_.insert(output_.end(), forced.begin(), forced.end());
      outcomes.forced += std::ssize(forced);
    }
    ++outcomes.endless;
  }

 private:
  std::vector<TokenId> allowed_now(Outcomes& outcomes) {
    std::vector<uint32_t> words(static_cast<size_t>(matcher_.words_per_mask()));
    matcher_.fill_mask(words);
    std::vector<TokenId> allowed, choices;
    for (TokenId id = 0; id < tokenizer_.vocab_size(); ++id) {
      const bool bit = (words[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
      if (bit && !tokenizer_.vocab().token_bytes[static_cast<size_t>(id)].empty())
        allowed.push_back(id);
    }
    jump_.append_choices(matcher_, output_, choices);
    if (choices.empty()) return allowed;
    ++outcomes.choices;
    for (const TokenId id : choices) EXPECT_TRUE(std::ranges::binary_search(allowed, id));
    return choices;
  }

  grammar::Matcher matcher_;
  const Tokenizer& tokenizer_;
  JumpForward& jump_;
  Rng& rng_;
  std::vector<TokenId> output_;
};

TEST(RandomSchemas, WalksWithJumpForwardEndInValidInstances) {
  const auto tokenizer = load_tokenizer("share/default_model");
  ASSERT_TRUE(tokenizer) << tokenizer.error().to_string();
  const auto trie = std::make_shared<const grammar::TokenTrie>((*tokenizer)->vocab());
  const TokensByBytes tokens(**tokenizer);
  JumpForward jump(**tokenizer, tokens);
  Outcomes outcomes;
  for (int i = 0; i < num_schemas(); ++i) {
    const uint64_t seed = 1000 + static_cast<uint64_t>(i);
    SCOPED_TRACE(seed);
    const std::string schema = draw_schema(seed);
    const auto grammar = compile_grammar(
        {.kind = grammar::GrammarSpec::Kind::kJsonSchema, .source = schema, .choices = {}}, trie);
    ASSERT_TRUE(grammar) << grammar.error().to_string();
    Rng rng(seed);
    for (int walks = 0; walks < 3; ++walks)
      Walk(*grammar, **tokenizer, jump, rng).run(schema, outcomes);
  }
  fmt::print(
      "{} walks ended in valid instances, {} in dead ends, {} went on; {} tokens forced, "
      "{} choices\n",
      outcomes.valid, outcomes.stuck, outcomes.endless, outcomes.forced, outcomes.choices);
  EXPECT_GT(outcomes.forced, outcomes.valid / 2);
  EXPECT_GT(outcomes.choices, outcomes.valid / 2);
}

// Through an engine, with draft tokens from earlier answers of the same grammar: no answer ends in
// an error, those that end are valid, and a run without jump-forward gives the same.
TEST(RandomSchemas, AnswersOfAnEngineAreValidInstances) {
  std::vector<std::vector<TokenId>> expected;
  for (const bool jump : {false, true}) {
    EngineConfig config;
    config.grammar.disable_jump_forward = !jump;
    auto [engine, device] = make_test_engine({.config = config});
    std::list<Collector> collectors;
    for (int i = 0; i < num_schemas(); ++i) {
      GenerateRequest request{.text = "an instance", .sampling = {.max_new_tokens = 300, .n = 2}};
      request.sampling.json_schema = draw_schema(1000 + static_cast<uint64_t>(i));
      request.sampling.json_whitespace = "compact";
      ASSERT_TRUE(engine->submit(std::move(request), collectors.emplace_back(2).sink()));
    }
    std::vector<std::vector<TokenId>> answers;
    int num_valid = 0;
    for (Collector& each : collectors) {
      const std::string schema = draw_schema(1000 + answers.size() / 2);
      ASSERT_TRUE(each.wait_end());
      for (const size_t sample : {0, 1}) {
        const GenerateResult& answer = each.result(sample);
        ASSERT_NE(answer.finish.type, FinishReason::Type::kError)
            << schema << "\n"
            << answer.finish.status.to_string();
        answers.push_back(answer.output_ids);
        if (answer.finish.type != FinishReason::Type::kStop) continue;
        EXPECT_TRUE(valid(schema, answer.text)) << schema << "\n" << answer.text;
        ++num_valid;
      }
    }
    EXPECT_GT(num_valid, num_schemas());
    if (jump)
      EXPECT_EQ(answers, expected);
    else
      expected = std::move(answers);
  }
}

}  // namespace
}  // namespace espalier
