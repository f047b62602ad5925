// Rules that are built before a text reaches them: the same masks, also beside threads that fill
// masks meanwhile.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "grammar/conformance.h"
#include "grammar/grammar.h"
#include "grammar/masks/test_vocabulary.h"

namespace espalier::grammar {
namespace {

// An object of so many properties, each with a pattern and an object of its own, of which a text
// seldom reaches more than the first.
std::string wide_schema(int num_properties) {
  std::string out = R"({"type":"object","properties":{)";
  for (int i = 0; i < num_properties; ++i) {
    out += fmt::format(
        R"({}"name{}":{{"type":"object","properties":{{
            "id":{{"type":"string","pattern":"^[a-f]{{{}}}[0-9]{{{},}}$"}},
            "in":{{"type":"array","items":{{"enum":["a","b{}"]}}}}}},"required":["id"]}})",
        i == 0 ? "" : ",", i, i % 40 + 1, i / 40, i);
  }
  return out + "}}";
}

std::shared_ptr<CompiledGrammar> compiled(const std::string& schema) {
  return compile_grammar({.kind = GrammarSpec::Kind::kJsonSchema, .source = schema, .choices = {}},
                         byte_trie())
      .value();
}

constexpr std::string_view kText = R"({"name2": {"id": "abc012", "in": ["a", "b2"]}})";

// The masks before each byte of the text.
std::vector<std::vector<uint32_t>> masks_along(const std::shared_ptr<CompiledGrammar>& grammar) {
  std::vector<std::vector<uint32_t>> out;
  Matcher matcher(grammar);
  for (const char& c : kText) {
    out.emplace_back(static_cast<size_t>(matcher.words_per_mask()));
    matcher.fill_mask(out.back());
    EXPECT_TRUE(matcher.accept_bytes({&c, 1}));
  }
  EXPECT_TRUE(matcher.can_end());
  return out;
}

TEST(BuildAhead, BuildsEveryRuleAndChangesNoMask) {
  const std::string schema = wide_schema(12);
  const auto lazy = compiled(schema), ahead = compiled(schema), whole = compiled(schema);
  const size_t num_nodes = whole->whole_network().nodes.size();
  ahead->build_ahead([] { return false; });
  EXPECT_EQ(ahead->size().num_nodes, num_nodes);
  EXPECT_GE(ahead->num_bytes(), lazy->num_bytes());
  EXPECT_EQ(masks_along(ahead), masks_along(lazy));
  EXPECT_LT(lazy->size().num_nodes, num_nodes);
  EXPECT_EQ(ahead->size().num_nodes, num_nodes);
}

TEST(BuildAhead, StopsOnRequest) {
  const std::string schema = wide_schema(12);
  const auto grammar = compiled(schema);
  const size_t before = grammar->size().num_nodes;
  grammar->build_ahead([] { return true; });
  EXPECT_EQ(grammar->size().num_nodes, before);
  int left = 4;
  grammar->build_ahead([&] { return left-- == 0; });
  EXPECT_GT(grammar->size().num_nodes, before);
  EXPECT_LT(grammar->size().num_nodes, compiled(schema)->whole_network().nodes.size());
}

TEST(BuildAhead, StopsAtItsBoundOfBytes) {
  const std::string schema = wide_schema(1000);
  const auto grammar = compiled(schema);
  const size_t before = grammar->num_bytes();
  grammar->build_ahead([] { return false; });
  EXPECT_GE(grammar->num_bytes(), before + CompiledGrammar::kBuiltAheadBytesMax);
  EXPECT_LT(grammar->num_bytes(), before + 2 * CompiledGrammar::kBuiltAheadBytesMax);
}

TEST(BuildAhead, MasksAreTheSameWhileRulesAreBuilt) {
  const std::string schema = wide_schema(60);
  const auto expected = masks_along(compiled(schema));
  for (int round = 0; round < 10; ++round) {
    const auto grammar = compiled(schema);
    std::atomic<bool> stop = false;
    std::thread builder([&] { grammar->build_ahead([&] { return stop.load(); }); });
    std::thread other([&] { EXPECT_EQ(masks_along(grammar), expected); });
    EXPECT_EQ(masks_along(grammar), expected);
    other.join();
    stop = round % 2 == 1;
    builder.join();
  }
}

// Strings with patterns and formats, of which masks are made ahead.
constexpr const char* kPatterns =
    R"({"type":"object","properties":{"a":{"type":"string","pattern":"[a-z]{70}"},
        "b":{"type":"array","items":{"type":"string","format":"date-time"}},
        "c":{"type":"string","pattern":"^\\S+@\\S+$"}},"additionalProperties":false})";
constexpr std::string_view kPatternText =
    R"({"a":"abc-)"
    "abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqr"
    R"(","b":["2024-02-29T23:59:59Z"],"c":"x@y.zz"})";

std::vector<std::vector<uint32_t>> masks_along_patterns(
    const std::shared_ptr<CompiledGrammar>& grammar) {
  std::vector<std::vector<uint32_t>> out;
  Matcher matcher(grammar);
  for (const char& c : kPatternText) {
    out.emplace_back(static_cast<size_t>(matcher.words_per_mask()));
    matcher.fill_mask(out.back());
    EXPECT_TRUE(matcher.accept_bytes({&c, 1})) << c;
  }
  EXPECT_TRUE(matcher.can_end());
  return out;
}

std::shared_ptr<CompiledGrammar> compiled_patterns(const std::shared_ptr<const TokenTrie>& trie) {
  return compile_grammar({.kind = GrammarSpec::Kind::kJsonSchema,
                          .source = kPatterns,
                          .choices = {},
                          .whitespace = Whitespace::kAny},
                         trie)
      .value();
}

TEST(MasksAhead, AreMadeInsidePatternsAndChangeNoMask) {
  const auto trie = made_up_vocabulary(7);
  const auto lazy = compiled_patterns(trie), ahead = compiled_patterns(trie);
  ahead->build_ahead([] { return false; });
  const size_t num_bytes = ahead->num_bytes();
  ahead->make_masks_ahead([] { return false; });
  // Each of the positions of the first pattern has a mask of its own.
  EXPECT_GT(ahead->size().num_masks, 15u);
  EXPECT_LE(ahead->size().num_masks, CompiledGrammar::kMasksAheadMax);
  EXPECT_GT(ahead->num_bytes(), num_bytes);
  EXPECT_EQ(masks_along_patterns(ahead), masks_along_patterns(lazy));
}

// Strings of any length, keys, constants, numbers and arrays: what texts are likely to reach.
constexpr const char* kLikely =
    R"({"type":"object","properties":{"name":{"type":"string"},"id":{"type":"integer","maximum":127},
        "key":{"enum":["name","me na",true]},"more":{"type":"array","items":{"enum":[7]}}},
        "required":["name","id","key"],"additionalProperties":false})";
constexpr std::string_view kLikelyText =
    R"({"name": "a na12", "id": 120, "key": "me na", "more": [7, 7]})";

// The tokens of a text, the longest first.
std::vector<TokenId> longest_tokens(const TokenTrie& trie, std::string_view text) {
  std::vector<TokenId> out;
  while (!text.empty()) {
    TokenId best = -1;
    for (TokenId t = 0; t < trie.vocab_size(); ++t) {
      const std::string_view bytes = trie.bytes(t);
      if (!bytes.empty() && text.starts_with(bytes) &&
          (best < 0 || bytes.size() > trie.bytes(best).size()))
        best = t;
    }
    out.push_back(best);
    text.remove_prefix(trie.bytes(best).size());
  }
  return out;
}

TEST(MasksAhead, AreMadeWhereTextsGo) {
  const auto trie = made_up_vocabulary(7);
  const auto grammar = compile_grammar({.kind = GrammarSpec::Kind::kJsonSchema,
                                        .source = kLikely,
                                        .choices = {},
                                        .whitespace = Whitespace::kAny},
                                       trie)
                           .value();
  grammar->build_ahead([] { return false; });
  grammar->make_masks_ahead([] { return false; });
  const size_t num_masks = grammar->size().num_masks;
  std::vector<uint32_t> words(static_cast<size_t>(trie->words_per_mask()));
  Matcher matcher(grammar);
  for (const TokenId token : longest_tokens(*trie, kLikelyText)) {
    matcher.fill_mask(words);
    EXPECT_EQ(grammar->size().num_masks, num_masks) << "before '" << trie->bytes(token) << "'";
    ASSERT_TRUE(matcher.accept_token(token)) << trie->bytes(token);
  }
  EXPECT_TRUE(matcher.can_end());
}

// Each "a" of a text adds an item to its sets, so the work of masks ahead soon exceeds what a trial
// may take, while that of the text stays far below what a text may take.
TEST(MasksAhead, ThatTakeTooMuchWorkEndWithoutATrace) {
  const auto trie = made_up_vocabulary(7);
  const auto compiled_expression = [&] {
    return compile_grammar(
               {.kind = GrammarSpec::Kind::kRegex, .source = "[ab]*a[ab]{3000}|z", .choices = {}},
               trie)
        .value();
  };
  const auto lazy = compiled_expression(), ahead = compiled_expression();
  ahead->make_masks_ahead([] { return false; });
  EXPECT_FALSE(ahead->exhausted());
  EXPECT_LT(ahead->size().num_masks, CompiledGrammar::kMasksAheadMax);
  std::vector<uint32_t> expected(static_cast<size_t>(trie->words_per_mask())), words = expected;
  Matcher one(lazy), other(ahead);
  Rng rng(3);
  for (int i = 0; i < 300; ++i) {
    ASSERT_TRUE(one.fill_mask(expected));
    ASSERT_TRUE(other.fill_mask(words));
    ASSERT_EQ(words, expected) << i;
    const char byte = rng.below(2) == 0 ? 'a' : 'b';
    ASSERT_TRUE(one.accept_bytes({&byte, 1}));
    ASSERT_TRUE(other.accept_bytes({&byte, 1}));
  }
}

TEST(MasksAhead, StopOnRequestAndNeedNoBuiltRules) {
  const auto trie = made_up_vocabulary(7);
  const auto grammar = compiled_patterns(trie);
  grammar->make_masks_ahead([] { return true; });
  EXPECT_EQ(grammar->size().num_masks, 0u);
  grammar->build_ahead([] { return false; });
  size_t asked = 0;
  grammar->make_masks_ahead([&] { return asked++ == 16; });
  const size_t half = grammar->size().num_masks;
  grammar->make_masks_ahead([] { return false; });
  EXPECT_GT(half, 0u);
  EXPECT_GT(grammar->size().num_masks, half);
}

TEST(MasksAhead, AreTheSameWhileTextsAreFollowed) {
  const auto trie = made_up_vocabulary(7);
  const auto expected = masks_along_patterns(compiled_patterns(trie));
  for (int round = 0; round < 5; ++round) {
    const auto grammar = compiled_patterns(trie);
    std::thread maker([&] {
      grammar->build_ahead([] { return false; });
      grammar->make_masks_ahead([] { return false; });
    });
    EXPECT_EQ(masks_along_patterns(grammar), expected);
    maker.join();
  }
}

}  // namespace
}  // namespace espalier::grammar
