// Rules that are built before a text reaches them: the same masks, also beside threads that fill
// masks meanwhile.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

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
