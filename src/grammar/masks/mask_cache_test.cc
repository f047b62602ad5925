// Compares masks over real vocabularies with trying every token, at random positions of random
// texts.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "grammar/grammar.h"
#include "grammar/masks/test_vocabulary.h"

namespace espalier::grammar {
namespace {

enum class Making : uint8_t { kWhenReached, kAhead };

// Follows random allowed tokens and compares each mask with trying all tokens.
void expect_exact_masks(const char* schema, bool any_order,
                        const std::shared_ptr<const TokenTrie>& trie, uint64_t seed, int texts,
                        Making making) {
  SCOPED_TRACE(fmt::format("seed {} schema {}", seed, schema));
  const auto grammar = compile_grammar({.kind = GrammarSpec::Kind::kJsonSchema,
                                        .source = schema,
                                        .choices = {},
                                        .json = {.any_order = any_order}},
                                       trie);
  ASSERT_TRUE(grammar) << grammar.error().to_string();
  if (making == Making::kAhead) {
    (*grammar)->build_ahead([] { return false; });
    (*grammar)->make_masks_ahead([] { return false; });
  }
  Rng rng(seed);
  std::vector<uint32_t> words(static_cast<size_t>(trie->words_per_mask()));
  for (int text = 0; text < texts; ++text) {
    Matcher matcher(*grammar);
    for (int step = 0; step < 12 && !matcher.ended(); ++step) {
      matcher.fill_mask(words);
      std::vector<TokenId> allowed;
      for (TokenId t = 0; t < trie->vocab_size(); ++t) {
        const bool bit = words[static_cast<size_t>(t) / 32] >> (t % 32) & 1;
        const bool accepted = matcher.accept_token(t);
        if (accepted) matcher.rollback(1);
        ASSERT_EQ(bit, accepted) << "token " << t << " '" << trie->bytes(t) << "' after " << step;
        if (bit) allowed.push_back(t);
      }
      ASSERT_TRUE(!allowed.empty() || !(*grammar)->network().checks.empty()) << "stuck at " << step;
      if (allowed.empty()) break;  // only a check may leave no token
      ASSERT_TRUE(matcher.accept_token(allowed[rng.below(allowed.size())]));
    }
  }
}

constexpr const char* kSchemas[] = {
    R"({"type":"string"})",
    R"({"type":"string","minLength":2,"maxLength":5})",
    R"({"type":"string","minLength":40,"maxLength":100000})",
    R"({"type":"string","pattern":"^[a-z]+[0-9]*$","maxLength":9})",
    R"({"type":"string","pattern":"^([a-z/]|[a-z][a-z/]*[a-z])$","maxLength":9})",
    R"({"type":"string","pattern":"^([a-z/]|[a-z][a-z/]*[a-z])$","maxLength":30})",
    R"({"type":"string","pattern":"^[a-z]*(, [a-z]+;)*$","maxLength":12})",
    R"({"type":"array","items":{"type":"boolean"},"oneOf":[{"contains":{"const":true}},{"minItems":2}]})",
    R"({"type":"object","oneOf":[{"properties":{"a":{"type":"null"}}},{"properties":{"a":{"enum":[1]}}}]})",
    R"({"type":"string","pattern":"na","minLength":3})",
    R"({"type":"string","pattern":"na"})",
    R"({"type":"string","pattern":"^[a-zA-Z0-9_]+$"})",
    R"({"type":"object","properties":{"a":{"type":"string","pattern":"^[a-zA-Z0-9_]+$"}}})",
    R"({"type":"array","items":{"type":"string","pattern":"^na:[a-z_.]+/[0-9]+-[0-9]+$"}})",
    R"({"type":"array","items":{"type":"string","format":"email"}})",
    R"({"type":"string","pattern":"^[^/]*$","minLength":1})",
    R"({"type":"array","items":{"type":"string","pattern":"^\\S+@\\S+$"}})",
    R"({"type":"array","items":{"type":"string","pattern":"^[\\w:+-]{3,9}$"}})",
    R"({"type":"array","items":{"type":"string","pattern":"^(na|me|a\\.id)[\\w-]*x1$"}})",
    R"({"type":"object","properties":{"a":{"type":"string","pattern":"[a-zA-Z0-9_-]{12}"}}})",
    R"({"type":"object","properties":{"a":{"type":"string","pattern":"^(\\.na)?\\..+$"}}})",
    R"({"type":"array","items":{"type":"string","pattern":"^[^\"a]+\"[b\\\\]*$"}})",
    R"({"type":"array","items":{"type":"string","format":"uri"}})",
    R"({"type":"array","items":{"type":"string","format":"hostname"},"maxItems":3})",
    R"({"type":"string","pattern":"^.{0,40}$"})",
    R"({"type":"string","pattern":"^[a-z0-9]{1,300}$"})",
    R"({"type":"string","pattern":"^na[a-z]{0,70}x?$","minLength":3})",
    R"({"type":"array","items":{"type":"string","pattern":"^\\S+[a-z]{2}$"}})",
    R"({"type":"array","items":{"type":"string","pattern":"[na-z ]{3}"}})",
    R"({"type":"string","pattern":"[a-z]{9}"})",
    R"({"type":"object","patternProperties":{"[^x]{4}":{"type":"null"}},"additionalProperties":false})",
    R"({"type":"string","pattern":"[0-9]{4,4}","minLength":4,"maxLength":4})",
    R"({"type":"object","properties":{"name":{"type":"string"},"id":{"type":"integer"}},
        "required":["id"]})",
    R"({"type":"object","properties":{"key":{"type":"string","maxLength":3}},
        "additionalProperties":{"type":"array","items":{"type":"string"},"maxItems":9}})",
    R"({"type":"array","items":{"type":["integer","null"]},"minItems":6,"maxItems":8})",
    R"({"type":"array","items":{"enum":["a","b",7]},"uniqueItems":true})",
    R"({"type":"object","patternProperties":{"^[a-z]+$":{"type":"string"}},
        "additionalProperties":false,"minProperties":2})",
    R"({"type":"array","items":{"type":"string","not":{"pattern":"na$"},"minLength":2},
        "uniqueItems":true})",
    R"({"oneOf":[{"type":"object","propertyNames":{"maxLength":2}},
        {"type":"object","patternProperties":{"^x":{"type":"string"}},"required":["x1"]}]})"};

TEST(Mask, EqualsTryingEveryToken) {
  const auto trie = made_up_vocabulary(1);
  uint64_t seed = 100;
  for (const char* schema : kSchemas) {
    for (bool any_order : {false, true}) {
      expect_exact_masks(schema, any_order, trie, ++seed, 6, Making::kWhenReached);
      expect_exact_masks(schema, any_order, trie, ++seed, 6, Making::kAhead);
    }
    if (HasFailure()) return;
  }
}

// Two vocabularies of the same tokens, of which one keeps no more masks of character classes.
TEST(Mask, IsTheSameWhereMasksOfClassesAreKeptNoMore) {
  constexpr size_t kTokens = 2 * TokenTrie::kClassMasksBytesMax * 8 / (kAllCharClasses + 1);
  std::vector<std::string> tokens = {"a", "/", "na/", "\"", "/\""};
  for (size_t i = tokens.size(); i < kTokens; ++i)
    tokens.push_back("na/" + std::to_string(i) + "aB /\""[i % 5]);
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  VocabView view;
  view.token_bytes = views;
  const auto fresh = std::make_shared<const TokenTrie>(view);
  const auto full = std::make_shared<const TokenTrie>(view);
  for (CharClassSet kinds = kAllCharClasses; kinds > 0; --kinds) full->of_char_classes(kinds);
  ASSERT_EQ(full->of_char_classes(1), nullptr);
  for (const char* pattern :
       {"[a-z/]+\"", "(\\w+/)*[0-9]+", "\"[a-z /]*\"", "([a-z]+/[0-9]+ ?)+"}) {
    const GrammarSpec spec = {.kind = GrammarSpec::Kind::kRegex, .source = pattern, .choices = {}};
    Matcher one(compile_grammar(spec, fresh).value()), other(compile_grammar(spec, full).value());
    std::vector<uint32_t> expected(static_cast<size_t>(fresh->words_per_mask())), words = expected;
    for (const char byte : std::string_view("na/a")) {
      one.fill_mask(expected);
      other.fill_mask(words);
      EXPECT_EQ(words, expected) << pattern << " before " << byte;
      if (one.accept_bytes({&byte, 1}) != other.accept_bytes({&byte, 1})) FAIL() << pattern;
    }
  }
}

}  // namespace
}  // namespace espalier::grammar
