// The window's map of pages: against a model that says for each cached page whether its window page
// is there, and through the cache.
#include "cache/window_pages.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <list>
#include <map>

#include "base/rng.h"
#include "cache/prefix_cache.h"

namespace espalier {
namespace {

using Tokens = std::vector<TokenId>;

Tokens numbers(int32_t count) {
  Tokens tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(i);
  return tokens;
}

std::unique_ptr<PrefixCache> make(int32_t num_pages, int32_t num_window_pages, int32_t window,
                                  int32_t page_size = 1) {
  return make_prefix_cache({.num_pages = num_pages,
                            .page_size = page_size,
                            .sliding_window = window,
                            .num_window_pages = num_window_pages})
      .value();
}

TEST(WindowPages, TooFewForOneWindowIsRefused) {
  const auto refused =
      make_prefix_cache({.num_pages = 100, .sliding_window = 10, .num_window_pages = 12});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("at least 13"), std::string::npos)
      << refused.error().message();
}

// A sequence of a hundred tokens in a window of eight: it never holds more than the window, and the
// other layers keep everything.
TEST(WindowPages, WhatTheWindowHasPassedIsGivenBack) {
  auto cache = make(100, 11, 8);
  SequencePages pages = cache->begin("", {});
  for (int32_t n = 1; n <= 100; ++n) {
    ASSERT_TRUE(cache->grow(pages, n)) << n;
    cache->advance(pages, n);
    EXPECT_EQ(pages.num_pages(), n);
    EXPECT_EQ(pages.num_window_pages(), std::min(n, 7));  // what the next token reads
    const SequencePages* live[] = {&pages};
    cache->check_invariants(live, {});
  }
  EXPECT_EQ(cache->sizes().free, 0);
  EXPECT_EQ(cache->sizes().window_available, 11 - 7);
}

TEST(WindowPages, AMatchEndsWhereTheWindowsTailIsThere) {
  auto cache = make(100, 30, 4);
  const Tokens first = numbers(20);
  SequencePages a = cache->begin("", first);
  ASSERT_TRUE(cache->grow(a, 20));
  DetachedPages none;
  cache->share(a, first, none);
  cache->advance(a, 20);
  EXPECT_EQ(a.num_window_pages(), 3);
  EXPECT_EQ(cache->sizes().window_available, 30 - 3);
  // All of it is cached still, so any prefix can be continued.
  EXPECT_EQ(cache->match("", std::span(first).first(10)), 10);
  const uint64_t version = cache->version();
  // Another one takes the window's pages: the oldest go first, and `a` keeps its own.
  Tokens other = numbers(60);
  other[0] = 99;
  SequencePages b = cache->begin("", other);
  ASSERT_TRUE(cache->grow(b, 15));  // 10 were free
  EXPECT_NE(cache->version(), version);
  EXPECT_EQ(cache->match("", first), 20);
  // 0 to 4 are gone: what reads them cannot be continued, and nor can what ends below.
  EXPECT_EQ(cache->match("", std::span(first).first(8)), 8);  // reads 5, 6 and 7
  EXPECT_EQ(cache->match("", std::span(first).first(7)), 0);
  ASSERT_TRUE(cache->grow(b, 27));
  EXPECT_EQ(cache->match("", std::span(first).first(19)), 0);
  EXPECT_EQ(cache->match("", first), 20);  // the tail of `a`, protected
  EXPECT_FALSE(cache->grow(b, 28));        // nothing is left
  EXPECT_EQ(cache->sizes().available_now(), 0);
  const SequencePages* live[] = {&a, &b};
  cache->check_invariants(live, {});
  // Computed anew, the cache has it again.
  b.reset();
  SequencePages c = cache->begin("", std::span(first).first(19));
  EXPECT_EQ(c.num_pages(), 0);
  ASSERT_TRUE(cache->grow(c, 19));
  cache->finish(std::move(c), std::span(first).first(19));
  EXPECT_EQ(cache->match("", std::span(first).first(19)), 19);
  EXPECT_EQ(cache->match("", std::span(first).first(10)), 10);
  a.reset();
  cache->check_invariants({}, {});
  cache->flush();
  EXPECT_EQ(cache->sizes().window_available, 30);
  EXPECT_EQ(cache->sizes().free, 100);
}

// Random sequences in small pools. Each row of either map is written down: a sequence must read
// back its own tokens in the pool's map, and its window's in the window's. The longest match is
// compared with a search over all prefixes that asks the rows themselves.
void fuzz(uint64_t seed) {
  Rng rng(seed);
  const int32_t page_size = std::array{1, 2, 4}[seed % 3];
  const auto window = static_cast<int32_t>(rng.between(1, 12));
  constexpr int32_t kPages = 24;
  const int32_t least = std::min(kPages, (window + page_size - 1) / page_size + 3);
  const auto num_window = static_cast<int32_t>(rng.between(least, kPages));
  SCOPED_TRACE(testing::Message() << "seed " << seed << " page_size " << page_size << " window "
                                  << window << " window pages " << num_window);
  auto cache = make_prefix_cache({.num_pages = kPages,
                                  .page_size = page_size,
                                  .disable_radix_cache = seed % 7 == 0,
                                  .sliding_window = window,
                                  .num_window_pages = num_window})
                   .value();
  struct Live {
    Tokens tokens;
    int32_t num_written = 0;
    SequencePages pages;
  };
  std::list<Live> live;
  std::deque<DetachedPages> detached;
  using Row = std::pair<PageId, int32_t>;
  std::map<Row, Tokens> memory, window_memory;
  const auto row = [&](std::span<const PageId> table, int32_t position) {
    return Row{table[static_cast<size_t>(position / page_size)], position % page_size};
  };
  const auto history = [](const Live& s, int32_t position) {
    return Tokens(s.tokens.begin(), s.tokens.begin() + position + 1);
  };
  for (int event = 0; event < 500; ++event) {
    const uint64_t kind = rng.below(8);
    if (kind < 2 && live.size() < 4) {
      Live& s = live.emplace_back();
      for (auto n = rng.between(1, 8 * page_size); n > 0; --n)
        s.tokens.push_back(static_cast<TokenId>(rng.below(8) == 0 ? 1 : 0));
      const int32_t matched = cache->match("", s.tokens);
      s.pages = cache->begin("", s.tokens);
      s.num_written = s.pages.num_pages() * page_size;
      ASSERT_EQ(s.num_written, matched);
    } else if (!live.empty()) {
      const auto it = std::next(live.begin(), static_cast<long>(rng.below(live.size())));
      Live& s = *it;
      const auto written = std::span(s.tokens).first(static_cast<size_t>(s.num_written));
      if (kind < 5) {
        const auto want = static_cast<int32_t>(std::min<uint64_t>(
            s.tokens.size(), static_cast<uint64_t>(s.num_written) + rng.below(9)));
        const int32_t missing = cache->num_pages_for(want) - s.pages.num_pages();
        const bool fits = missing <= cache->sizes().available_now();
        ASSERT_EQ(cache->grow(s.pages, want), fits || missing <= 0);
        for (; (fits || missing <= 0) && s.num_written < want; ++s.num_written) {
          memory[row(s.pages.table(), s.num_written)] = history(s, s.num_written);
          window_memory[row(s.pages.window_table(), s.num_written)] = history(s, s.num_written);
        }
      } else if (kind == 5) {
        detached.emplace_back();
        cache->share(s.pages, written, detached.back());
      } else if (kind == 6) {
        cache->advance(s.pages, s.num_written);
      } else {
        rng.below(2) == 0 ? cache->finish(std::move(s.pages), written) : s.pages.reset();
        live.erase(it);
      }
    }
    if (detached.size() > 3) detached.pop_front();
    std::vector<const SequencePages*> pages;
    std::vector<PageId> pages_detached;
    for (const Live& s : live) pages.push_back(&s.pages);
    for (const DetachedPages& d : detached)
      pages_detached.insert(pages_detached.end(), d.pages().begin(), d.pages().end());
    cache->check_invariants(pages, pages_detached);
    for (const Live& s : live)
      for (int32_t i = 0; i < s.num_written; ++i) {
        ASSERT_EQ(memory.at(row(s.pages.table(), i)), history(s, i)) << "position " << i;
        if (i <= s.num_written - window) continue;
        ASSERT_EQ(window_memory.at(row(s.pages.window_table(), i)), history(s, i))
            << "window position " << i;
      }
  }
  live.clear();
  detached.clear();
  cache->flush();
  EXPECT_EQ(cache->sizes().free, kPages);
  EXPECT_EQ(cache->sizes().window_available, num_window);
}

TEST(WindowPages, RandomSequencesReadTheirOwnTokens) {
  const char* scale = std::getenv("ESPALIER_FUZZ_SCALE");
  const uint64_t num_seeds = 60 * (scale == nullptr ? 1 : std::strtoull(scale, nullptr, 10));
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    fuzz(seed);
    if (testing::Test::HasFailure()) return;
  }
}

// usable() against its definition, for random sets of pages that are there.
TEST(WindowPages, UsableIsTheLongestPrefixWhoseTailIsThere) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    const auto page_size = static_cast<int32_t>(rng.between(1, 4));
    const auto window = static_cast<int32_t>(rng.between(1, 20));
    const auto count = static_cast<int32_t>(rng.between(0, 12));
    WindowPages pages(12, 12, window, page_size);
    std::vector<PageId> run;
    for (PageId i = 0; i < count; ++i) {
      run.push_back(i);
      if (rng.below(4) > 0) pages.take(i);
    }
    int32_t longest = 0;
    for (int32_t n = 1; n <= count; ++n) {
      bool all = true;
      for (int32_t p = std::max(0, n * page_size - window + 1); p < n * page_size; ++p)
        all = all && pages.has(p / page_size);
      if (all) longest = n;
    }
    ASSERT_EQ(pages.usable(run), longest) << "seed " << seed;
  }
}

}  // namespace
}  // namespace espalier
