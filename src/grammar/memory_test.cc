// Compares what grammars say that they hold with the resident memory of the process.
#include <gtest/gtest.h>
#include <malloc.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/masks/test_vocabulary.h"

namespace espalier::grammar {
namespace {

// Returns the resident bytes that belong to no file, after what is free has been given back to the
// system; 0 where the allocator is not glibc's.
size_t resident_bytes_now() {
  const struct mallinfo2 info = mallinfo2();
  if (info.uordblks + info.hblkhd == 0) return 0;
  malloc_trim(0);
  std::ifstream sizes("/proc/self/smaps_rollup");
  constexpr std::string_view kAnonymous = "Anonymous:";
  for (std::string line; std::getline(sizes, line);) {
    if (line.starts_with(kAnonymous)) return std::stoul(line.substr(kAnonymous.size())) * 1024;
  }
  return 0;
}

// Compiles `count` grammars of a kind and follows a text with each. Expects the sum of what they
// report within a tenth of what is resident for them.
void expect_true_size(GrammarSpec::Kind kind, const std::function<std::string(int)>& source_of,
                      const std::string& text, int count) {
  const auto trie = made_up_vocabulary(9);
  std::vector<uint32_t> words(static_cast<size_t>(trie->words_per_mask()));
  const auto follow = [&](const std::shared_ptr<CompiledGrammar>& grammar) {
    Matcher matcher(grammar);
    for (const char c : text) {
      matcher.fill_mask(words);
      ASSERT_TRUE(matcher.accept_bytes(std::string(1, c)));
    }
  };
  const auto compiled = [&](int i) {
    return compile_grammar({.kind = kind, .source = source_of(i), .choices = {}}, trie);
  };
  follow(compiled(0).value());  // what is made once for the process is made now
  std::vector<std::shared_ptr<CompiledGrammar>> grammars;
  const size_t before = resident_bytes_now();
  if (before == 0) GTEST_SKIP() << "the resident memory of this allocator is not known";
  size_t reported = 0;
  for (int i = 1; i <= count; ++i) {
    auto made = compiled(i);
    ASSERT_TRUE(made) << made.error().to_string();
    follow(*made);
    reported += (*made)->num_bytes();
    grammars.push_back(std::move(*made));
  }
  const size_t held = resident_bytes_now() - before;
  EXPECT_GT(reported, held * 9 / 10) << held;
  EXPECT_LT(reported, held * 11 / 10) << held;
}

TEST(GrammarMemory, OfLargeExpressionsIsTrue) {
  expect_true_size(
      GrammarSpec::Kind::kRegex, [](int i) { return "\\p{L}{1," + std::to_string(200 + i) + "}x"; },
      "abc", 4);
}

TEST(GrammarMemory, OfExpressionsWithManySetsIsTrue) {
  expect_true_size(
      GrammarSpec::Kind::kRegex,
      [](int i) { return "[a-z]{1," + std::to_string(400 + i) + "}y|(x|z)*x(x|z){300}"; },
      std::string(300, 'x'), 2);
}

TEST(GrammarMemory, OfSchemasIsTrue) {
  const auto source = [](int i) {
    std::string properties;
    for (int p = 0; p < 60; ++p) {
      properties += (p > 0 ? "," : "") + ("\"p" + std::to_string(p * 100 + i) + "\"") +
                    R"(:{"type":"string","pattern":"^[a-z]{1,40}[0-9]*$"})";
    }
    return R"({"type":"array","items":{"type":"object","properties":{)" + properties + "}}}";
  };
  expect_true_size(GrammarSpec::Kind::kJsonSchema, source, "[{}, {}", 24);
}

}  // namespace
}  // namespace espalier::grammar
