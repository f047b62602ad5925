// Events: a mirror that reads them all knows exactly what the cache has.
#include "cache/cache_events.h"

#include <gtest/gtest.h>

#include <list>
#include <set>

#include "base/rng.h"
#include "cache/page_name.h"
#include "cache/prefix_cache.h"

namespace espalier {
namespace {

using Tokens = std::vector<TokenId>;
using Type = CacheEvent::Type;

const PageNameScope kScope{.model_fingerprint = "model", .kv_layout = "layout"};

PageName numbered(uint64_t i) { return {.bytes = {static_cast<uint8_t>(i)}}; }

TEST(CacheEventLog, ReadersComeAtTheirOwnPace) {
  CacheEventLog log(4);
  EXPECT_TRUE(log.read(0, 10).events.empty());
  EXPECT_EQ(log.read(0, 10).next, 1u);
  for (uint64_t i = 1; i <= 3; ++i) log.push({.type = Type::kStored, .pages = {numbered(i)}});
  const CacheEvents two = log.read(0, 2);
  ASSERT_EQ(two.events.size(), 2u);
  EXPECT_EQ(two.events[1].number, 2u);
  EXPECT_EQ(two.next, 3u);
  EXPECT_EQ(log.read(two.next, 10).events.size(), 1u);
  EXPECT_EQ(log.read(4, 10).events.size(), 0u);
  EXPECT_EQ(log.num_overwritten(), 0u);
}

TEST(CacheEventLog, AReaderThatMissesEventsStartsAnew) {
  CacheEventLog log(4);
  for (uint64_t i = 1; i <= 10; ++i) log.push({.type = Type::kStored, .pages = {numbered(i)}});
  EXPECT_EQ(log.num_events(), 10u);
  EXPECT_EQ(log.num_overwritten(), 6u);
  const CacheEvents late = log.read(3, 100);
  EXPECT_EQ(late.num_missed, 4u);  // 3, 4, 5 and 6
  ASSERT_EQ(late.events.size(), 5u);
  EXPECT_EQ(late.events[0].type, Type::kCleared);
  EXPECT_EQ(late.events[0].number, 6u);
  EXPECT_EQ(late.events[1].pages, std::vector<PageName>{numbered(7)});
  EXPECT_EQ(late.next, 11u);
  // Of another process's log.
  const CacheEvents other = log.read(50, 100);
  EXPECT_EQ(other.num_missed, 10u);
  EXPECT_EQ(other.events[0].type, Type::kCleared);
  EXPECT_EQ(other.next, 11u);
}

TEST(CacheEvents, OneSequenceIsStoredThenRemoved) {
  CacheEventLog log(100);
  auto cache =
      make_prefix_cache({.num_pages = 16, .page_size = 2, .events = &log, .name_scope = kScope})
          .value();
  const Tokens tokens = {1, 2, 3, 4, 5};
  SequencePages a = cache->begin("t", tokens);
  ASSERT_TRUE(cache->grow(a, 5));
  DetachedPages none;
  cache->share(a, std::span(tokens).first(3), none);
  cache->finish(std::move(a), tokens);
  SequencePages again = cache->begin("t", tokens);  // nothing new
  ASSERT_TRUE(cache->grow(again, 5));
  cache->finish(std::move(again), tokens);
  EXPECT_EQ(cache->evict(1), 1);
  cache->flush();
  const CacheEvents read = log.read(0, 100);
  ASSERT_EQ(read.events.size(), 4u);
  const PageName first = page_name(root_page_name(kScope, "", "t"), std::span(tokens).first(2));
  const PageName second = page_name(first, std::span(tokens).subspan(2, 2));
  EXPECT_EQ(read.events[0].type, Type::kStored);
  EXPECT_EQ(read.events[0].pages, std::vector<PageName>{first});
  EXPECT_EQ(read.events[0].parent, PageName());
  EXPECT_EQ(read.events[0].tokens, Tokens({1, 2}));
  EXPECT_EQ(read.events[0].cache_namespace, "t");
  EXPECT_EQ(read.events[1].pages, std::vector<PageName>{second});
  EXPECT_EQ(read.events[1].parent, first);
  EXPECT_EQ(read.events[2].type, Type::kRemoved);
  EXPECT_EQ(read.events[2].pages, std::vector<PageName>{second});
  EXPECT_EQ(read.events[3].type, Type::kCleared);
}

// Random sequences in a small pool; the mirror says of each prompt how much of it is cached.
TEST(CacheEvents, AMirrorKnowsWhatTheCacheHas) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const int32_t page_size = std::array{1, 2, 4}[seed % 3];
    CacheEventLog log(1 << 16);
    auto cache =
        make_prefix_cache(
            {.num_pages = 24, .page_size = page_size, .events = &log, .name_scope = kScope})
            .value();
    std::set<PageName> mirror;
    uint64_t next = 0;
    struct Live {
      std::string name_space;
      Tokens tokens;
      SequencePages pages;
    };
    std::list<Live> live;
    for (int event = 0; event < 400; ++event) {
      if (rng.below(2) == 0 && live.size() < 3) {
        Live& s = live.emplace_back();
        s.name_space = rng.below(3) == 0 ? "x" : "";
        for (auto n = rng.between(1, 6 * page_size); n > 0; --n)
          s.tokens.push_back(static_cast<TokenId>(rng.below(6) == 0 ? 1 : 0));
        s.pages = cache->begin(s.name_space, s.tokens);
        if (!cache->grow(s.pages, static_cast<int32_t>(s.tokens.size()))) live.pop_back();
      } else if (!live.empty()) {
        const auto it = std::next(live.begin(), static_cast<long>(rng.below(live.size())));
        DetachedPages replaced;
        if (rng.below(3) == 0) {
          cache->share(it->pages, it->tokens, replaced);
        } else {
          cache->finish(std::move(it->pages), it->tokens);
          live.erase(it);
        }
      } else if (rng.below(4) == 0) {
        cache->flush();
      }
      const CacheEvents read = log.read(next, 1000);
      ASSERT_EQ(read.num_missed, 0u);
      next = read.next;
      for (const CacheEvent& e : read.events) {
        if (e.type == Type::kCleared) mirror.clear();
        for (const PageName& page : e.pages) {
          if (e.type == Type::kStored) {
            ASSERT_TRUE(mirror.insert(page).second) << "stored twice";
          } else {
            ASSERT_EQ(mirror.erase(page), 1u) << "was not there";
          }
        }
      }
      const PrefixCacheSizes sizes = cache->sizes();
      ASSERT_EQ(static_cast<int32_t>(mirror.size()), sizes.evictable + sizes.protected_);
      for (const Live& s : live) {
        PageName name = root_page_name(kScope, "", s.name_space);
        int32_t matched = 0;
        const auto page = static_cast<size_t>(page_size);
        for (size_t i = 0; i + page <= s.tokens.size(); i += page, matched += page_size) {
          name = page_name(name, std::span(s.tokens).subspan(i, page));
          if (!mirror.contains(name)) break;
        }
        ASSERT_EQ(cache->match(s.name_space, s.tokens), matched);
      }
    }
  }
}

}  // namespace
}  // namespace espalier
