// Compares what grammars say that they hold with the memory of the process.
#include <gtest/gtest.h>
#include <malloc.h>

#include <functional>

#include <memory>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/masks/test_vocabulary.h"

namespace espalier::grammar {
namespace {

// Bytes allocated from the heap or mapped by the allocator.
size_t allocated_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Compiles `count` grammars of a kind and follows a text with each. Expects the sum of what they
// report within a tenth of what the process has allocated.
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
  const size_t before = allocated_bytes();
  if (before == 0) GTEST_SKIP() << "this allocator does not say what it has allocated";
  size_t reported = 0;
  for (int i = 1; i <= count; ++i) {
    auto made = compiled(i);
    ASSERT_TRUE(made) << made.error().to_string();
    follow(*made);
    reported += (*made)->num_bytes();
    grammars.push_back(std::move(*made));
  }
  const size_t held = allocated_bytes() - before;
  EXPECT_GT(reported, held * 9 / 10) << held;
  EXPECT_LT(reported, held * 11 / 10) << held;
}

TEST(GrammarMemory, OfLargeExpressionsIsTrue) {
  expect_true_size(
      GrammarSpec::Kind::kRegex, [](int i) { return "\\p{L}{1," + std::to_string(200 + i) + "}x"; },
      "abc", 4);
}

}  // namespace
}  // namespace espalier::grammar
