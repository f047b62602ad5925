// Masks filled by several threads equal masks filled one by one, for one grammar and for many, cold
// and warm. The thread sanitizer runs these tests.
#include "grammar/masks/mask_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/rng.h"
#include "grammar/masks/test_vocabulary.h"

namespace espalier::grammar {
namespace {

using Grammars = std::vector<std::shared_ptr<CompiledGrammar>>;

GrammarSpec schema(std::string source) {
  return {.kind = GrammarSpec::Kind::kJsonSchema, .source = std::move(source), .choices = {}};
}

// Grammars with counters, checks, choices, all kinds of strings, and recursion.
std::vector<GrammarSpec> specs() {
  return {
      schema(R"({"type":"string","minLength":2,"maxLength":30})"),
      schema(R"({"type":"string","pattern":"^[a-z]+[0-9]*$","maxLength":9})"),
      schema(R"({"type":"object","properties":{"name":{"type":"string"},"id":{"type":"integer"}},
                 "required":["id"]})"),
      schema(R"({"type":"array","items":{"enum":["a","b",7]},"uniqueItems":true})"),
      schema(R"({"type":"array","items":{"type":["integer","null"]},"minItems":6,"maxItems":8})"),
      {.kind = GrammarSpec::Kind::kAnyJson},
      {.source = "(na|me|id){2,5}(key|x1)*z"},
      {.kind = GrammarSpec::Kind::kEbnf,
       .source =
           "root ::= \"{\" pair (\",\" pair)* \"}\"\npair ::= [a-z]+ \":\" (root | [0-9]{1,9})"},
  };
}

Grammars compiled(const std::vector<GrammarSpec>& from,
                  const std::shared_ptr<const TokenTrie>& trie) {
  Grammars out;
  for (const GrammarSpec& spec : from) {
    auto made = compile_grammar(spec, trie);
    EXPECT_TRUE(made) << made.error().to_string();
    if (made) out.push_back(*made);
  }
  return out;
}

// Draws one of the allowed tokens, or -1.
TokenId drawn(std::span<const uint32_t> mask, Rng& rng) {
  std::vector<TokenId> allowed;
  for (size_t t = 0; t < 32 * mask.size(); ++t)
    if (mask[t / 32] >> (t % 32) & 1) allowed.push_back(static_cast<TokenId>(t));
  return allowed.empty() ? -1 : allowed[rng.below(allowed.size())];
}

TEST(MaskPool, CallsEachItemOnceAndNoThreadTwiceAtATime) {
  for (const int32_t num_threads : {1, 2, 5}) {
    MaskPool pool(num_threads);
    ASSERT_EQ(pool.num_threads(), num_threads);
    for (const double worth_us : {0.0, 3.0}) {
      pool.set_worth_us(worth_us);
      for (size_t count = 0; count < 300; count = 2 * count + 1) {
        std::vector<std::atomic<int>> calls(count);
        std::vector<std::atomic<int>> busy(static_cast<size_t>(num_threads));
        std::atomic<int> wrong = 0;
        pool.run(count, [&](size_t i, int32_t thread) {
          wrong += busy[static_cast<size_t>(thread)].fetch_add(1) != 0;
          ++calls[i];
          busy[static_cast<size_t>(thread)].fetch_sub(1);
        });
        EXPECT_EQ(wrong, 0);
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(calls[i], 1) << i << " of " << count;
      }
    }
    EXPECT_EQ(pool.num_shared() > 0, num_threads > 1);
  }
}

// Items that wait for each other can only finish on as many threads as promised.
TEST(MaskPool, ThreadsWorkAtOnce) {
  constexpr int kThreads = 4;
  MaskPool pool(kThreads);
  pool.set_worth_us(0);
  std::atomic<int> inside = 0;
  pool.run(kThreads, [&](size_t, int32_t) {
    ++inside;
    while (inside < kThreads) std::this_thread::yield();
  });
  EXPECT_EQ(inside, kThreads);
}

TEST(MaskPool, WakesNobodyForLittleWork) {
  MaskPool pool(2);
  pool.set_worth_us(1e9);
  std::atomic<int> others = 0;
  for (int round = 0; round < 100; ++round)
    pool.run(50, [&](size_t, int32_t thread) { others += thread != 0; });
  EXPECT_EQ(others, 0);
  EXPECT_EQ(pool.num_shared(), 0);
}

TEST(MaskPool, IsParkedWhenIdle) {
  MaskPool pool(4);
  pool.set_worth_us(0);
  pool.run(100, [](size_t, int32_t) {});
  const auto cpu_seconds = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the woken threads park again
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(cpu_seconds() - before, 0.003);
}

// Sequences at random positions of random grammars, step after step: freshly compiled grammars give
// the same masks as filling them one by one.
TEST(MaskPool, EqualsFillingOneByOne) {
  const auto trie = made_up_vocabulary(3);
  const auto words = static_cast<size_t>(trie->words_per_mask());
  const std::vector<GrammarSpec> all = specs();
  MaskPool pool(4);
  pool.set_worth_us(0);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::vector<GrammarSpec> some;
    for (const GrammarSpec& spec : all)
      if (seed == 0 || rng.below(3) == 0) some.push_back(spec);
    if (some.empty()) some.push_back(all[seed % all.size()]);
    const Grammars shared = compiled(some, trie), alone = compiled(some, trie);
    ASSERT_EQ(shared.size(), some.size());
    constexpr size_t kSequences = 60;
    std::vector<Matcher> matchers, expected;
    std::vector<Matcher*> pointers;
    for (size_t s = 0; s < kSequences; ++s) {
      const size_t g = rng.below(some.size());
      matchers.emplace_back(shared[g]);
      expected.emplace_back(alone[g]);
    }
    for (Matcher& matcher : matchers) pointers.push_back(&matcher);
    std::vector<uint32_t> masks(kSequences * words), mask(words);
    for (int step = 0; step < 10; ++step) {
      fill_masks(pool, pointers, masks);
      for (size_t s = 0; s < kSequences; ++s) {
        expected[s].fill_mask(mask);
        const auto filled = std::span(masks).subspan(s * words, words);
        ASSERT_TRUE(std::ranges::equal(filled, mask)) << "sequence " << s << ", step " << step;
        const TokenId token = drawn(mask, rng);
        if (token < 0) continue;  // the sequence has ended
        ASSERT_TRUE(matchers[s].accept_token(token));
        ASSERT_TRUE(expected[s].accept_token(token));
      }
    }
  }
}

// Threads that follow texts of one grammar while it is being built query everything that a matcher
// offers, and take steps back. The answers equal those that one thread gets from another copy of
// the grammar.
TEST(MaskPool, ThreadsOfOneGrammarGetWhatOneGets) {
  const auto trie = made_up_vocabulary(4);
  const auto words = static_cast<size_t>(trie->words_per_mask());
  constexpr uint64_t kThreads = 4;
  const auto follow = [&](const std::shared_ptr<CompiledGrammar>& grammar, uint64_t seed) {
    Rng rng(seed);
    uint64_t answers = 0;
    const auto add = [&](uint64_t what) { answers = mix64(answers ^ what); };
    std::vector<uint32_t> mask(words);
    for (int text = 0; text < 12; ++text) {
      Matcher matcher(grammar);
      for (int step = 0; step < 14; ++step) {
        add(matcher.fill_mask(mask));
        for (const uint32_t word : mask) add(word);
        add(matcher.can_end());
        add(matcher.must_end());
        for (const char c : matcher.forced_bytes(20)) add(static_cast<uint8_t>(c));
        add(matcher.exhausted());
        if (step % 5 == 4) matcher.rollback(2);
        const TokenId token = drawn(mask, rng);
        if (token < 0 || step % 5 == 4) continue;
        add(matcher.accept_token(token));
        add(matcher.accept_bytes("\x01\x02"));
      }
    }
    return answers;
  };
  for (const GrammarSpec& spec : specs()) {
    SCOPED_TRACE(spec.source);
    const Grammars shared = compiled({spec}, trie), alone = compiled({spec}, trie);
    ASSERT_EQ(shared.size(), 1u);
    for (const uint64_t round : {0u, 1u}) {  // first cold, then mostly cached
      std::vector<uint64_t> answers(kThreads);
      std::vector<std::thread> threads;
      for (uint64_t t = 0; t < kThreads; ++t)
        threads.emplace_back(
            [&, t] { answers[t] = follow(shared[0], (round * kThreads + t) / 2); });
      for (std::thread& thread : threads) thread.join();
      for (uint64_t t = 0; t < kThreads; ++t)
        EXPECT_EQ(answers[t], follow(alone[0], (round * kThreads + t) / 2)) << "thread " << t;
    }
  }
}

// A grammar that exceeds its limit while masks are filled reports it; other grammars are
// unaffected.
TEST(MaskPool, AnExhaustedGrammarIsExhaustedAlone) {
  const auto trie = made_up_vocabulary(5);
  const auto words = static_cast<size_t>(trie->words_per_mask());
  GrammarLimits tight;
  tight.earley_sets_max = 20;
  const auto small = compile_grammar({.kind = GrammarSpec::Kind::kAnyJson}, trie, tight).value();
  const Grammars shared = compiled(specs(), trie), alone = compiled(specs(), trie);
  MaskPool pool(4);
  pool.set_worth_us(0);
  std::vector<Matcher> matchers, expected;
  for (size_t s = 0; s < 40; ++s) {
    const bool tightly = s % 4 == 3;
    matchers.emplace_back(tightly ? small : shared[s % shared.size()]);
    expected.emplace_back(alone[s % alone.size()]);
  }
  std::vector<Matcher*> pointers;
  for (Matcher& matcher : matchers) pointers.push_back(&matcher);
  std::vector<uint32_t> masks(matchers.size() * words), mask(words);
  Rng rng(1);
  for (int step = 0; step < 6; ++step) {
    fill_masks(pool, pointers, masks);
    for (size_t s = 0; s < matchers.size(); ++s) {
      if (s % 4 == 3) {
        matchers[s].accept_bytes("[");  // each depth needs a set, so some step exceeds the limit
        continue;
      }
      expected[s].fill_mask(mask);
      const auto filled = std::span(masks).subspan(s * words, words);
      ASSERT_TRUE(std::ranges::equal(filled, mask)) << "sequence " << s << ", step " << step;
      EXPECT_FALSE(matchers[s].exhausted());
      const TokenId token = drawn(mask, rng);
      if (token < 0) continue;
      ASSERT_TRUE(matchers[s].accept_token(token));
      ASSERT_TRUE(expected[s].accept_token(token));
    }
  }
  EXPECT_TRUE(matchers[3].exhausted());
}

}  // namespace
}  // namespace espalier::grammar
