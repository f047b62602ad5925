// Pools and caches: who owns which page, after each of many random events.
#include "cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>

#include "base/rng.h"
#include "cache/kv_pool.h"

namespace espalier {
namespace {

using Tokens = std::vector<TokenId>;

TEST(PagePool, HandsOutEachPageOnce) {
  PagePool pool(100);
  std::vector<PageId> pages;
  EXPECT_TRUE(pool.allocate(60, pages));
  EXPECT_FALSE(pool.allocate(41, pages));
  EXPECT_EQ(pages.size(), 60u);
  EXPECT_TRUE(pool.allocate(40, pages));
  EXPECT_EQ(pool.num_free(), 0);
  std::vector<PageId> sorted = pages;
  std::sort(sorted.begin(), sorted.end());
  for (PageId i = 0; i < 100; ++i) EXPECT_EQ(sorted[static_cast<size_t>(i)], i);
  pool.free(pages);
  EXPECT_EQ(pool.num_free(), 100);
  pool.check_invariants();
}

TEST(PagePoolDeathTest, FreeingTwiceAborts) {
  PagePool pool(4);
  std::vector<PageId> pages;
  ASSERT_TRUE(pool.allocate(1, pages));
  pool.free(pages);
  EXPECT_DEATH(pool.free(pages), "freed twice");
}

TEST(PrefixCache, RefusesAnEmptyPool) {
  EXPECT_EQ(make_prefix_cache({.num_pages = 0}).error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(make_prefix_cache({.num_pages = 1, .page_size = 0}).error().code(),
            StatusCode::kInvalidArgument);
}

TEST(PrefixCache, SecondSequenceFindsTheFirstWhileItRuns) {
  auto cache = make_prefix_cache({.num_pages = 16, .page_size = 2}).value();
  const Tokens tokens = {1, 2, 3, 4, 5};
  SequencePages a = cache->begin("", tokens);
  ASSERT_TRUE(cache->grow(a, 5));
  EXPECT_EQ(a.num_pages(), 3);
  DetachedPages replaced;
  cache->share(a, tokens, replaced);
  EXPECT_TRUE(replaced.empty());
  EXPECT_EQ(a.num_shared_pages(), 2);  // the page of the fifth token is not whole

  EXPECT_EQ(cache->match("", tokens), 4);
  EXPECT_EQ(cache->match("other", tokens), 0);
  SequencePages b = cache->begin("", tokens);
  EXPECT_EQ(b.num_shared_pages(), 2);
  EXPECT_TRUE(std::equal(b.table().begin(), b.table().end(), a.table().begin()));
  EXPECT_EQ(cache->evict(100), 0);
  a.reset();
  EXPECT_EQ(cache->evict(100), 0);  // b still protects it
  b.reset();
  EXPECT_EQ(cache->sizes().evictable, 2);
  EXPECT_EQ(cache->flush(), 2);
  EXPECT_EQ(cache->sizes().free, 16);
}

TEST(PrefixCache, DuplicatesOfARunningSequenceAreDetached) {
  auto cache = make_prefix_cache({.num_pages = 16}).value();
  const Tokens tokens = {1, 2, 3, 4};
  SequencePages a = cache->begin("", tokens), b = cache->begin("", tokens);
  ASSERT_TRUE(cache->grow(a, 4) && cache->grow(b, 4));
  DetachedPages none, replaced;
  cache->share(a, std::span(tokens).first(3), none);
  cache->share(b, tokens, replaced);
  EXPECT_EQ(replaced.pages().size(), 3u);
  EXPECT_TRUE(std::equal(a.table().begin(), a.table().begin() + 3, b.table().begin()));
  EXPECT_EQ(cache->sizes().free, 8);  // a step in flight may read them still
  replaced.reset();
  EXPECT_EQ(cache->sizes().free, 11);
}

TEST(PrefixCache, ChunkCacheKeepsNothing) {
  auto cache = make_prefix_cache({.num_pages = 4, .disable_radix_cache = true}).value();
  const Tokens tokens = {1, 2, 3};
  SequencePages a = cache->begin("", tokens);
  ASSERT_TRUE(cache->grow(a, 3));
  EXPECT_FALSE(cache->grow(a, 5));
  EXPECT_EQ(a.num_pages(), 3);
  DetachedPages replaced;
  cache->share(a, tokens, replaced);
  const SequencePages* live[] = {&a};
  cache->check_invariants(live, {});
  EXPECT_EQ(cache->match("", tokens), 0);
  cache->finish(std::move(a), tokens);
  EXPECT_EQ(cache->match("", tokens), 0);
  EXPECT_EQ(cache->sizes().free, 4);
}

// Sequences come, grow, share, and end in a small pool; what each page holds is written down, and
// every table must read back its sequence's own tokens.
void fuzz(uint64_t seed, int32_t page_size, bool disable_radix_cache) {
  SCOPED_TRACE(testing::Message() << "seed " << seed << " page_size " << page_size);
  constexpr int32_t kPages = 24;
  auto cache =
      make_prefix_cache(
          {.num_pages = kPages, .page_size = page_size, .disable_radix_cache = disable_radix_cache})
          .value();
  Rng rng(seed);
  struct Live {
    std::string name_space;
    Tokens tokens;
    size_t num_written = 0;
    SequencePages pages;
  };
  std::deque<Live> live;
  std::deque<DetachedPages> detached;
  std::map<std::pair<PageId, size_t>, std::pair<std::string, Tokens>> memory;  // what a row holds

  const auto row_of = [&](const Live& s, size_t position) {
    return std::pair(s.pages.table()[position / static_cast<size_t>(page_size)],
                     position % static_cast<size_t>(page_size));
  };
  const auto history = [](const Live& s, size_t position) {
    return std::pair(s.name_space,
                     Tokens(s.tokens.begin(), s.tokens.begin() + static_cast<long>(position) + 1));
  };
  for (int event = 0; event < 600; ++event) {
    const uint64_t kind = rng.below(8);
    if (kind < 2 && live.size() < 5) {
      Live s{.name_space = rng.below(3) == 0 ? "x" : ""};
      const auto length = static_cast<size_t>(rng.between(1, 6 * page_size));
      for (size_t i = 0; i < length; ++i)
        s.tokens.push_back(static_cast<TokenId>(rng.below(8) == 0 ? 1 : 0));
      const int32_t matched = cache->match(s.name_space, s.tokens);
      s.pages = cache->begin(s.name_space, s.tokens);
      s.num_written = static_cast<size_t>(s.pages.num_pages() * page_size);
      ASSERT_EQ(static_cast<int32_t>(s.num_written), matched);
      live.push_back(std::move(s));
    } else if (!live.empty()) {
      const size_t index = rng.below(live.size());
      Live& s = live[index];
      const std::span<const TokenId> written = std::span(s.tokens).first(s.num_written);
      if (kind < 5) {
        const auto want = std::min(s.tokens.size(), s.num_written + rng.below(20));
        const PrefixCacheSizes before = cache->sizes();
        const bool grown = cache->grow(s.pages, static_cast<int32_t>(want));
        ASSERT_EQ(grown,
                  cache->sizes().available() < before.available() ||
                      cache->num_pages_for(static_cast<int32_t>(want)) <= s.pages.num_pages());
        for (; grown && s.num_written < want; ++s.num_written)
          memory[row_of(s, s.num_written)] = history(s, s.num_written);
      } else if (kind == 5) {
        detached.emplace_back();
        cache->share(s.pages, written, detached.back());
      } else {
        kind == 6 ? cache->finish(std::move(s.pages), written) : s.pages.reset();
        live.erase(live.begin() + static_cast<long>(index));
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
      for (size_t i = 0; i < s.num_written; ++i)
        ASSERT_EQ(memory.at(row_of(s, i)), history(s, i)) << "position " << i;
  }
  live.clear();
  detached.clear();
  cache->flush();
  EXPECT_EQ(cache->sizes().free, kPages);
}

TEST(PrefixCache, RandomSequencesReadTheirOwnTokens) {
  const char* scale = std::getenv("ESPALIER_FUZZ_SCALE");
  const uint64_t num_seeds = 30 * (scale == nullptr ? 1 : std::strtoull(scale, nullptr, 10));
  for (uint64_t seed = 1; seed <= num_seeds; ++seed) {
    fuzz(seed, std::array{1, 4, 16}[seed % 3], seed % 10 == 0);
    if (testing::Test::HasFailure()) return;
  }
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * 4096;
}

TEST(KvPool, MemoryIsBackedAsItIsWritten) {
  const KvPoolConfig config = {.num_layers = 4,
                               .num_kv_heads = 2,
                               .head_dim = 64,
                               .type = KvType::kFloat32,
                               .num_pages = 1 << 16,
                               .page_size = 4};
  EXPECT_EQ(config.bytes_per_page(), 2 * 4 * 4 * 2 * 64 * 4);
  const int64_t before = resident_bytes();
  const Result<KvPool> pool = KvPool::create(config);
  ASSERT_TRUE(pool);
  EXPECT_GE(pool->bytes(), config.bytes_per_page() * config.num_pages);  // 1 GiB
  EXPECT_LT(resident_bytes() - before, 16 << 20);

  // No two planes overlap: mark the first and the last element of each.
  const KvView& view = pool->view();
  ASSERT_EQ(view.layers.size(), 4u);
  EXPECT_EQ(view.layer(0).page_stride, 4 * 2 * 64);
  const int64_t last = view.layer(0).page_stride * view.layer(0).num_pages - 1;
  float mark = 1;
  for (const KvView::Layer& layer : view.layers) {
    for (void* plane : {layer.k, layer.v}) {
      float* values = static_cast<float*>(plane);
      EXPECT_EQ(values[0], 0.0f);
      EXPECT_EQ(values[last], 0.0f);
      values[0] = values[last] = mark++;
    }
  }
  mark = 1;
  for (const KvView::Layer& layer : view.layers) {
    for (void* plane : {layer.k, layer.v}) {
      EXPECT_EQ(static_cast<float*>(plane)[0], mark);
      EXPECT_EQ(static_cast<float*>(plane)[last], mark++);
    }
  }
}

TEST(KvPool, BadNumbersAndTooMuchMemoryAreErrors) {
  KvPoolConfig config = {.num_layers = 1, .num_kv_heads = 1, .head_dim = 64, .num_pages = 0};
  EXPECT_EQ(KvPool::create(config).error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(KvPool::create(config).error().message().find("num_pages"), std::string::npos);
  config.num_pages = 1 << 30;
  config.num_layers = 1 << 12;
  EXPECT_EQ(KvPool::create(config).error().code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace espalier
