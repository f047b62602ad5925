// The observer of a radix cache, against a map of what it has reported: names are those that any
// process computes, and every page that is stored is given up once.
#include "cache/page_observer.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/rng.h"
#include "cache/page_name.h"
#include "cache/prefix_cache.h"

namespace espalier {
namespace {

const PageNameScope kObservedScope{.model_fingerprint = "model", .kv_layout = "layout"};
constexpr int32_t kPageSize = 2;

class Recorder final : public PageObserver {
 public:
  void on_stored(std::span<const PageName> names, std::span<const PageId> pages) override {
    ASSERT_EQ(names.size(), pages.size());
    for (size_t i = 0; i < pages.size(); ++i)
      ASSERT_TRUE(stored.emplace(pages[i], names[i]).second) << "page " << pages[i] << " twice";
  }
  void on_reused(std::span<const PageId> pages) override {
    for (const PageId page : pages) ASSERT_TRUE(stored.contains(page));
    num_reused += pages.size();
  }
  void on_evicted(std::span<const PageId> pages, bool demote) override {
    for (const PageId page : pages) {
      if (stored.erase(page) == 0) ++num_unknown;
      num_demoted += demote ? 1 : 0;
    }
  }
  std::map<PageId, PageName> stored;
  size_t num_reused = 0, num_unknown = 0, num_demoted = 0;
};

// The names of a sequence's whole pages.
std::vector<PageName> names_of(std::string_view cache_namespace, std::span<const TokenId> tokens) {
  std::vector<PageName> names;
  PageName name = root_page_name(kObservedScope, "", cache_namespace);
  for (size_t i = 0; i + kPageSize <= tokens.size(); i += kPageSize)
    names.push_back(name = page_name(name, tokens.subspan(i, kPageSize)));
  return names;
}

TEST(PageObserver, HasTheNamesOfAllCachedPages) {
  Recorder recorder;
  const auto cache = make_prefix_cache({.num_pages = 24,
                                        .page_size = kPageSize,
                                        .observer = &recorder,
                                        .name_scope = kObservedScope})
                         .value();
  Rng rng(9);
  size_t num_checked = 0;
  for (int i = 0; i < 3000; ++i) {
    const std::string key = rng.below(3) == 0 ? "tenant" : "";
    std::vector<TokenId> tokens;
    for (uint64_t count = rng.below(20); count > 0; --count)
      tokens.push_back(static_cast<TokenId>(rng.below(2)));
    SequencePages pages = cache->begin(key, tokens);
    if (!cache->grow(pages, static_cast<int32_t>(tokens.size()))) continue;
    DetachedPages replaced;
    cache->share(pages, tokens, replaced);
    const std::vector<PageName> expected = names_of(key, tokens);
    for (size_t at = 0; at < expected.size(); ++at, ++num_checked)
      ASSERT_EQ(recorder.stored.at(pages.table()[at]), expected[at]) << "page " << at;
    cache->finish(std::move(pages), tokens);
    const PrefixCacheSizes sizes = cache->sizes();
    ASSERT_EQ(recorder.stored.size(), static_cast<size_t>(sizes.evictable + sizes.protected_));
  }
  EXPECT_GT(num_checked, 5000u);
  EXPECT_GT(recorder.num_reused, 1000u);
  EXPECT_GT(recorder.num_demoted, 1000u);
  EXPECT_EQ(recorder.num_unknown, 0u);
}

TEST(PageObserver, NoticesAUserWhoDropsAllThatIsCached) {
  Recorder recorder;
  const auto cache =
      make_prefix_cache({.num_pages = 8, .observer = &recorder, .name_scope = kObservedScope})
          .value();
  const std::vector<TokenId> tokens = {1, 2, 3};
  SequencePages pages = cache->begin("", tokens);
  ASSERT_TRUE(cache->grow(pages, 3));
  cache->finish(std::move(pages), tokens);
  EXPECT_EQ(recorder.stored.size(), 3u);
  EXPECT_EQ(cache->flush(), 3);
  EXPECT_TRUE(recorder.stored.empty());
  EXPECT_EQ(recorder.num_demoted, 0u);
}

TEST(PageObserver, SeesNothingOfKeysOfThisProcessAlone) {
  Recorder recorder;
  const auto cache =
      make_prefix_cache({.num_pages = 8, .observer = &recorder, .name_scope = kObservedScope})
          .value();
  const std::string key("\0001\0", 3);
  ASSERT_TRUE(is_process_local(key));
  const std::vector<TokenId> tokens = {1, 2, 3};
  SequencePages pages = cache->begin(key, tokens);
  ASSERT_TRUE(cache->grow(pages, 3));
  cache->finish(std::move(pages), tokens);
  EXPECT_TRUE(recorder.stored.empty());
  pages = cache->begin(key, tokens);
  EXPECT_EQ(pages.num_pages(), 3);
  EXPECT_EQ(recorder.num_reused, 0u);
  pages.reset();
  EXPECT_EQ(cache->flush(), 3);
}

}  // namespace
}  // namespace espalier
