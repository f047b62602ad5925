// Masks within a budget: random walks whose budget is at least the planned number of tokens end in
// valid instances, and the plan is what the grammar's shortest texts take.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/rng.h"
#include "grammar/grammar.h"
#include "grammar/masks/test_vocabulary.h"
#include "grammar/schema/json_text.h"
#include "grammar/schema/validator.h"

namespace espalier::grammar {
namespace {

const std::vector<std::string>& schemas() {
  static const std::vector<std::string> all = {
      R"({"type":"object","properties":{"name":{"type":"string","minLength":7},
          "id":{"type":"integer","minimum":100},"key":{"enum":["naname","id12","q"]},
          "a":{"type":"array","minItems":3,"items":{"type":"boolean"}},"b":{"type":"null"},
          "z":{"type":"string","maxLength":5}},
          "required":["name","id","key","a","b"],"additionalProperties":false})",
      R"({"type":"array","minItems":2,"items":{"type":"array","minItems":2,
          "items":{"type":"array","items":{"type":"number"}}}})",
      R"({"type":"string","minLength":40,"maxLength":60})",
      R"({"type":"string","pattern":"^([a-c]{3}-){4}[0-9]+$"})",
      R"({"enum":["a","banana",{"key":[1,2,3]},12345678]})",
      R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{
          "id":{"type":"string"},"key":{"type":"array","items":{"$ref":"#/$defs/tree"}}},
          "required":["id","key"],"additionalProperties":false}}})",
      R"({"type":"object","properties":{"a":{"type":"object","properties":{
          "name":{"type":"string","minLength":30},"q":{"enum":["nanananana","meme"]}},
          "required":["name","q"]}}})",
      R"({"type":"object","minProperties":3,"additionalProperties":{"type":"integer"}})",
      R"({})",
      R"({"anyOf":[{"type":"string","format":"date-time"},{"type":"array","minItems":30}]})",
  };
  return all;
}

std::shared_ptr<CompiledGrammar> compiled(const std::string& schema,
                                          const std::shared_ptr<const TokenTrie>& trie) {
  auto made = compile_grammar({.kind = GrammarSpec::Kind::kJsonSchema,
                               .source = schema,
                               .choices = {},
                               .whitespace = Whitespace::kBounded},
                              trie);
  EXPECT_TRUE(made) << schema << ": " << made.error().to_string();
  const Status ready = (*made)->prepare_budget();
  EXPECT_TRUE(ready.ok()) << ready.to_string();
  return *made;
}

bool is_valid(const std::string& schema, const std::string& text) {
  const auto document = SchemaDocument::parse(schema, {}).value();
  SchemaValidator validator(*document);
  const auto value = parse_exact_json_text(text, "the instance");
  return value && validator.valid(*value, &document->root(), kNoScope).value();
}

// Draws allowed tokens within the budget, without ending before it is spent where that is possible.
std::string walk(const std::shared_ptr<CompiledGrammar>& grammar, uint32_t budget, Rng& rng) {
  Matcher matcher(grammar);
  const auto num_words = static_cast<size_t>(matcher.words_per_mask());
  std::vector<uint32_t> words(num_words), whole(num_words);
  std::string text;
  for (uint32_t left = budget; left > 0; --left) {
    const bool any = matcher.fill_mask_within(words, left);
    EXPECT_EQ(any, matcher.fill_mask(whole));
    std::vector<TokenId> allowed;
    for (TokenId token = 0; token < grammar->trie().vocab_size(); ++token) {
      const auto word = static_cast<size_t>(token) / 32;
      if ((words[word] >> (token % 32) & 1) == 0) continue;
      EXPECT_NE(whole[word] >> (token % 32) & 1, 0u) << "not of the grammar's mask: " << token;
      if (!grammar->trie().is_eos(token)) allowed.push_back(token);
    }
    if (allowed.empty()) {
      EXPECT_TRUE(matcher.can_end()) << "an empty mask behind " << text;
      return text;
    }
    const TokenId token = allowed[rng.below(allowed.size())];
    EXPECT_TRUE(matcher.accept_token(token));
    text += grammar->trie().bytes(token);
  }
  EXPECT_TRUE(matcher.can_end()) << "budget " << budget << ": " << text;
  return text;
}

TEST(BudgetMasks, WalksEndWithinAnySufficientBudget) {
  const auto trie = made_up_vocabulary(7);
  Rng rng(2026);
  for (const std::string& schema : schemas()) {
    const auto grammar = compiled(schema, trie);
    const uint32_t least = Matcher(grammar).tokens_to_end();
    ASSERT_GT(least, 0u);
    for (uint32_t extra = 0; extra < 24; ++extra) {
      const std::string text = walk(grammar, least + extra * (extra > 12 ? 5 : 1), rng);
      ASSERT_TRUE(is_valid(schema, text)) << schema << "\n" << text;
    }
  }
}

// A byte a token: the plan is the shortest text itself.
TEST(BudgetMasks, ThePlanIsTheShortestText) {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  VocabView view;
  const std::vector<std::string_view> views(bytes.begin(), bytes.end());
  view.token_bytes = views;
  const auto trie = std::make_shared<const TokenTrie>(view);
  const std::pair<std::string, size_t> cases[] = {
      {R"({"type":"string","minLength":12})", 14},
      {R"({"type":"array","minItems":4,"items":{"type":"boolean"}})", 1 + 4 * 4 + 3 + 1},
      {R"({"enum":["abc",1234567]})", 5},
      {R"({"type":"object","properties":{"a":{"type":"string"},"b":{}},"required":["b"],
          "additionalProperties":false})",
       std::string_view(R"({"b":0})").size()}};
  for (const auto& [schema, size] : cases)
    EXPECT_EQ(Matcher(compiled(schema, trie)).tokens_to_end(), size) << schema;
}

TEST(BudgetMasks, ATightBudgetLeavesTheShortestWay) {
  const auto trie = made_up_vocabulary(7);
  const std::string schema = R"({"type":"array","items":{"type":"array"}})";
  const auto grammar = compiled(schema, trie);
  Matcher matcher(grammar);
  std::vector<uint32_t> words(static_cast<size_t>(matcher.words_per_mask()));
  ASSERT_TRUE(matcher.accept_bytes("["));
  ASSERT_EQ(matcher.tokens_to_end(), 1u);
  ASSERT_TRUE(matcher.fill_mask_within(words, 1));
  EXPECT_NE(words[']' / 32] >> (']' % 32) & 1, 0u);
  EXPECT_EQ(words['[' / 32] >> ('[' % 32) & 1, 0u);
  ASSERT_TRUE(matcher.fill_mask_within(words, 3));
  EXPECT_NE(words['[' / 32] >> ('[' % 32) & 1, 0u);
}

}  // namespace
}  // namespace espalier::grammar
