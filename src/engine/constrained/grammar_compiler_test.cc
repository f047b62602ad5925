#include "engine/constrained/grammar_compiler.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <future>
#include <string>
#include <string_view>
#include <thread>

namespace espalier {
namespace {

using grammar::GrammarSpec;

GrammarSpec regex(std::string source) {
  return {.kind = GrammarSpec::Kind::kRegex, .source = std::move(source)};
}

// A vocabulary of the 256 bytes, and a compiler of one thread over it.
class GrammarCompilerTest : public ::testing::Test {
 protected:
  GrammarCompilerTest() {
    for (size_t i = 0; i < 256; ++i) {
      bytes_[i] = static_cast<char>(i);
      tokens_[i] = std::string_view(&bytes_[i], 1);
    }
    vocab_.token_bytes = tokens_;
  }

  std::array<char, 256> bytes_{};
  std::array<std::string_view, 256> tokens_;
  VocabView vocab_;
};

TEST_F(GrammarCompilerTest, WhatNobodyWaitsForIsDroppedFromTheQueue) {
  GrammarCompiler compiler(vocab_, 1, {.compile_seconds_max = 60});
  // The thread is kept by the end of the first, so that the others surely wait.
  std::promise<void> begun, let_go;
  compiler.compile(regex("a"), 1, [&](GrammarCompiler::Compiled made) {
    EXPECT_TRUE(made);
    begun.set_value();
    let_go.get_future().wait();
  });
  begun.get_future().wait();
  const auto unwanted = [](GrammarCompiler::Compiled) { ADD_FAILURE() << "was cancelled"; };
  for (GrammarCompiler::Ticket ticket = 2; ticket < 6; ++ticket)
    compiler.compile(regex("a{" + std::to_string(ticket) + "}"), ticket, unwanted);
  // Two wait for this one: the first that goes does not end it.
  std::promise<bool> wanted;
  compiler.compile(regex("b"), 6, unwanted);
  compiler.compile(regex("b"), 7,
                   [&](GrammarCompiler::Compiled made) { wanted.set_value(made.has_value()); });
  EXPECT_EQ(compiler.stats().waiting, 5);
  for (GrammarCompiler::Ticket ticket = 2; ticket < 7; ++ticket) compiler.cancel(ticket);
  EXPECT_EQ(compiler.stats().cancelled, 4);
  EXPECT_EQ(compiler.stats().waiting, 1);
  let_go.set_value();
  EXPECT_TRUE(wanted.get_future().get());
  EXPECT_EQ(compiler.stats().compiled, 2);
}

// What no text has reached is built once nothing is to be compiled.
TEST_F(GrammarCompilerTest, RulesAreBuiltBeforeATextReachesThem) {
  GrammarCompiler compiler(vocab_, 1, {});
  const GrammarSpec spec = {
      .kind = GrammarSpec::Kind::kJsonSchema,
      .source = R"({"type":"object","properties":{"a":{"type":"object","properties":{
                    "b":{"type":"string","pattern":"^[a-f]{2,9}$"}}}}})"};
  std::promise<GrammarCompiler::Compiled> made;
  compiler.compile(spec, 1, [&](GrammarCompiler::Compiled one) { made.set_value(std::move(one)); });
  const auto grammar = *made.get_future().get();
  const auto trie = std::make_shared<const grammar::TokenTrie>(vocab_);
  const auto lazy = *grammar::compile_grammar(spec, trie);
  const size_t lazily = lazy->size().num_nodes, whole = lazy->whole_network().nodes.size();
  ASSERT_LT(lazily, whole);
  while (grammar->size().num_nodes < whole) std::this_thread::yield();
}

TEST_F(GrammarCompilerTest, AGrammarWhoseStatesAreUsedUpIsMadeAnew) {
  GrammarCompiler compiler(vocab_, 1, {.earley_sets_max = 100});
  const auto grammar = [&] {
    std::promise<GrammarCompiler::Compiled> made;
    compiler.compile(regex("[ab]{1,200}!"), 1,
                     [&](GrammarCompiler::Compiled one) { made.set_value(std::move(one)); });
    return *made.get_future().get();
  };
  const auto first = grammar();
  EXPECT_EQ(grammar(), first);
  grammar::Matcher longer(first);
  EXPECT_FALSE(longer.accept_bytes(std::string(150, 'a')));
  EXPECT_TRUE(longer.exhausted());
  const auto second = grammar();
  EXPECT_NE(second, first);
  EXPECT_TRUE(grammar::Matcher(second).accept_bytes(std::string(50, 'a')));
  EXPECT_EQ(grammar(), second);
  EXPECT_EQ(compiler.stats().compiled, 2);
  EXPECT_EQ(compiler.stats().cache_hits, 2);
}

TEST_F(GrammarCompilerTest, GrammarsThatHaveGrownAreKeptWithinABound) {
  const auto compiled = [](GrammarCompiler& compiler, const char* source) {
    std::promise<GrammarCompiler::Compiled> made;
    compiler.compile(regex(source), 1,
                     [&](GrammarCompiler::Compiled one) { made.set_value(std::move(one)); });
    return *made.get_future().get();
  };
  const auto trie = std::make_shared<const grammar::TokenTrie>(vocab_);
  const auto alone = *grammar::compile_grammar(regex("[ab]{1,200}!"), trie);  // nothing ahead
  const size_t fresh_bytes = alone->num_bytes();
  grammar::Matcher(alone).accept_bytes(std::string(150, 'a'));
  const size_t grown_bytes = alone->num_bytes();
  EXPECT_GT(grown_bytes, fresh_bytes + 8'000);
  GrammarCompiler other(vocab_, 1, {});
  const auto alike = compiled(other, "[ab]{1,200}!");
  grammar::Matcher(alike).accept_bytes(std::string(150, 'a'));
  EXPECT_EQ(other.stats().kept, 1);
  EXPECT_GE(other.stats().kept_bytes, static_cast<int64_t>(grown_bytes));  // its masks are made ahead
  GrammarCompiler compiler(vocab_, 1, {}, static_cast<int64_t>(5 * grown_bytes / 2));
  const auto grammar = [&](const char* source) { return compiled(compiler, source); };
  const char* const sources[] = {"[ab]{1,200}!", "[ab]{1,200}x", "[ab]{1,200}y", "[ab]{1,200}z"};
  std::vector<std::weak_ptr<grammar::CompiledGrammar>> grown;
  for (const char* source : sources) {
    const auto one = grammar(source);
    grammar::Matcher(one).accept_bytes(std::string(150, 'a'));
    grown.push_back(one);
  }
  EXPECT_NE(grammar("small"), nullptr);
  EXPECT_NE(grammar("smaller"), nullptr);  // the thread is through with the one before
  // The small ones and those used last are kept, as many as fit; the others are gone.
  for (int i = 0; i < 5000 && !grown[0].expired(); ++i)  // masks may still be made for it
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(grown[0].expired());
  EXPECT_FALSE(grown[3].expired());
  EXPECT_NE(grammar("small"), nullptr);
  EXPECT_EQ(compiler.stats().cache_hits, 1);
}

TEST_F(GrammarCompilerTest, WhatIsBeingCompiledForNobodyEndsEarly) {
  GrammarCompiler compiler(vocab_, 1, {.compile_seconds_max = 60});
  // Half a second of work each. The thread may begin or end one before or after it is cancelled, so
  // it is tried until one was cancelled while it ran: that one counts as failed.
  for (int i = 0; i < 40 && compiler.stats().failed == 0; ++i) {
    compiler.compile(regex("((a?){1000}b?){" + std::to_string(860 + i) + "}"), 1,
                     [](const GrammarCompiler::Compiled&) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(1 + i));
    compiler.cancel(1);
    while (compiler.stats().waiting > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(compiler.stats().failed, 1);
  EXPECT_GE(compiler.stats().cancelled, 1);
}

}  // namespace
}  // namespace espalier
