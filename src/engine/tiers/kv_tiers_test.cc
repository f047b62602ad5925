#include "engine/tiers/kv_tiers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "base/rng.h"
#include "cache/prefix_cache.h"
#include "engine/testing/asked_store.h"
#include "engine/testing/byte_device.h"
#include "engine/testing/flaky_store.h"
#include "engine/testing/remote_copier.h"
#include "tiers/host_page_store.h"

namespace espalier {
namespace {

constexpr int32_t kTierPageSize = 4;
constexpr int64_t kTierPageBytes = 24;
constexpr int32_t kTierPages = 32;

// A cache with tiers; each sequence's page p is written with the value of its first token.
class KvTiersTest : public testing::Test {
 protected:
  void make(TierWritePolicy policy, std::unique_ptr<PageStore> storage, bool with_host = true,
            std::unique_ptr<PageStore> remote = nullptr, CacheEventLog* events = nullptr) {
    KvTiers::Parts parts{.copier = copier_, .clock = &clock_};
    if (with_host)
      parts.host =
          HostPageStore::create({.size_bytes = 40 * kTierPageBytes, .page_bytes = kTierPageBytes})
              .value();
    parts.storage = std::move(storage);
    parts.remote = std::move(remote);
    tiers_ = std::make_unique<KvTiers>(KvTiersConfig{.policy = policy,
                                                     .prefetch = prefetch_,
                                                     .page_size = kTierPageSize,
                                                     .num_device_pages = kTierPages},
                                       std::move(parts));
    if (events != nullptr) report_host_pages(*tiers_, *events);
    cache_ = make_prefix_cache({.num_pages = kTierPages,
                                .page_size = kTierPageSize,
                                .events = events,
                                .observer = tiers_.get()})
                 .value();
  }
  static std::unique_ptr<FlakyStore> flaky(FlakyStore::Options options = {}) {
    options.page_bytes = kTierPageBytes;
    return std::make_unique<FlakyStore>(options);
  }

  // A sequence of whole pages that begins at token `first` has run.
  static std::vector<TokenId> tokens_from(TokenId first, int num_pages) {
    std::vector<TokenId> tokens;
    for (int i = 0; i < num_pages * kTierPageSize; ++i) tokens.push_back(first + i);
    return tokens;
  }
  void compute(const std::vector<TokenId>& tokens) {
    SequencePages pages = cache_->begin("", tokens);
    const int32_t num_cached = pages.num_pages();
    ASSERT_TRUE(cache_->grow(pages, static_cast<int32_t>(tokens.size())));
    for (int32_t i = num_cached; i < pages.num_pages(); ++i)
      device_.set(pages.table()[static_cast<size_t>(i)],
                  tokens[static_cast<size_t>(i * kTierPageSize)]);
    cache_->finish(std::move(pages), tokens);
    if (waits_for_saves_) tiers_->flush_saves();
  }

  int32_t num_available(const std::vector<TokenId>& tokens, std::string_view key = "") {
    return tiers_->num_available({.id = 7, .cache_namespace = key, .tokens = tokens});
  }
  // Loads all that is available; the pages that were loaded must be right.
  LoadResult load(const std::vector<TokenId>& tokens) {
    SequencePages pages = cache_->begin("", tokens);
    const int32_t num_cached = pages.num_pages() * kTierPageSize;
    LoadRequest request{
        .id = 7, .tokens = tokens, .num_cached = num_cached, .pages = pages.table()};
    const int32_t end = tiers_->num_available(request);
    if (end == num_cached) {  // the store has lost it meanwhile
      EXPECT_FALSE(waits_for_saves_);
      return {};
    }
    EXPECT_TRUE(cache_->grow(pages, end));
    request.tokens = std::span(tokens).first(static_cast<size_t>(end));
    request.pages = pages.table();
    tiers_->start(request);
    std::vector<LoadResult> ended;
    while (ended.empty()) {
      tiers_->poll(ended);
      std::this_thread::yield();
    }
    EXPECT_EQ(ended.size(), 1u);
    for (int32_t i = 0; i < ended[0].num_tokens / kTierPageSize; ++i)
      EXPECT_EQ(device_.get(pages.table()[static_cast<size_t>(i)]),
                tokens[static_cast<size_t>(i * kTierPageSize)] & 255);
    cache_->finish(std::move(pages),
                   std::span(tokens).first(static_cast<size_t>(ended[0].num_tokens)));
    return std::move(ended[0]);
  }

  ByteDevice device_{kTierPages, kTierPageBytes};
  PageCopier* copier_ = &device_;
  bool waits_for_saves_ = true;
  PrefetchPolicy prefetch_ = PrefetchPolicy::kTimeout;
  SteadyClock clock_;
  std::unique_ptr<KvTiers> tiers_;
  std::unique_ptr<PrefixCache> cache_;
};

TEST_F(KvTiersTest, LocatesNodesOfTheTreeAndPagesThatHaveLeftIt) {
  make(TierWritePolicy::kWriteThrough, nullptr);
  compute(tokens_from(10, 5));
  CacheNodes nodes = cache_->read_nodes({});
  tiers_->locate({}, nodes);
  EXPECT_TRUE(nodes.has_tiers);
  ASSERT_EQ(nodes.nodes.size(), 2u) << "the root and a node";
  EXPECT_EQ(nodes.nodes[0].tiers, 0) << "a root has no pages";
  const CacheNode& node = nodes.nodes[1];
  EXPECT_EQ(node.tiers, kHostTier);
  EXPECT_NE(node.first_name, node.last_name);
  EXPECT_EQ(cache_->evict(5), 5);
  CacheNodes later = cache_->read_nodes({});
  const std::vector<PageName> names = {node.first_name, node.last_name, PageName{{1}}};
  tiers_->locate(names, later);
  EXPECT_EQ(later.num_nodes, 0u);
  EXPECT_EQ(later.tiers_of_names, (std::vector<uint8_t>{kHostTier, kHostTier, 0}));
}

TEST_F(KvTiersTest, LoadsWhatTheDeviceHasGivenUp) {
  make(TierWritePolicy::kWriteThrough, nullptr);
  const std::vector<TokenId> tokens = tokens_from(10, 5);
  compute(tokens);
  EXPECT_EQ(num_available(tokens), 20);
  EXPECT_EQ(cache_->evict(3), 3);  // two are still on the device
  const LoadResult result = load(tokens);
  EXPECT_EQ(result.num_tokens, 20);
  EXPECT_EQ(result.num_from_host, 12);
  EXPECT_EQ(result.num_from_storage, 0);
  EXPECT_EQ(cache_->match("", tokens), 20);
  const KvTiersStats stats = tiers_->stats();
  EXPECT_EQ(stats.loads, 1);
  EXPECT_EQ(stats.host_tokens, 12);
  EXPECT_EQ(stats.stores.at(0).store.stored, 5) << "loaded pages were stored again";
}

// An observer learns of a page on the device first, of its copy in the host's memory next, and may
// then see it leave the device: it never has to know a name that no event has explained.
TEST_F(KvTiersTest, EventsStateWhereAPageIs) {
  for (const TierWritePolicy policy :
       {TierWritePolicy::kWriteThrough, TierWritePolicy::kWriteBack}) {
    CacheEventLog log(1000);
    make(policy, nullptr, true, nullptr, &log);
    for (TokenId first = 0; first < 300; first += 30) compute(tokens_from(first, 5));  // evicts
    cache_->evict(10);
    using Type = CacheEvent::Type;
    using Medium = CacheEvent::Medium;
    std::map<PageName, std::set<Medium>> where;
    bool only_in_host = false;
    for (const CacheEvent& event : log.read(0, 1000).events) {
      ASSERT_NE(event.type, Type::kCleared) << "copies are left";
      EXPECT_EQ(event.tokens.empty(),
                event.type == Type::kRemoved || event.medium == Medium::kHost);
      for (const PageName& page : event.pages) {
        if (event.type == Type::kRemoved) {
          EXPECT_EQ(where[page].erase(event.medium), 1u);
          only_in_host = only_in_host || where[page].contains(Medium::kHost);
        } else {
          EXPECT_TRUE(event.medium == Medium::kDevice || !where[page].empty());
          EXPECT_TRUE(where[page].insert(event.medium).second);
        }
      }
    }
    EXPECT_TRUE(only_in_host);
    int64_t num_in_host = 0;
    for (const auto& [page, media] : where) num_in_host += media.contains(Medium::kHost) ? 1 : 0;
    EXPECT_EQ(num_in_host, tiers_->stats().stores.at(0).store.num_pages);
    cache_.reset();
    tiers_.reset();  // before the log
  }
}

TEST_F(KvTiersTest, OtherPromptsAndKeysFindNothing) {
  make(TierWritePolicy::kWriteThrough, nullptr);
  compute(tokens_from(10, 2));
  EXPECT_EQ(num_available(tokens_from(11, 2)), 0);
  EXPECT_EQ(num_available(tokens_from(10, 2), "tenant"), 0);
  EXPECT_EQ(num_available(tokens_from(10, 2), std::string_view("\0001\0", 3)), 0);
  EXPECT_EQ(num_available(tokens_from(10, 3)), 8);
}

TEST_F(KvTiersTest, WritePoliciesSaveAtTheirTimes) {
  const std::vector<TokenId> tokens = tokens_from(10, 2);
  make(TierWritePolicy::kWriteBack, nullptr);
  compute(tokens);
  compute(tokens);
  EXPECT_EQ(num_available(tokens), 0);
  cache_->evict(1);
  EXPECT_EQ(num_available(tokens), 0) << "its first page is on the device, and saved nowhere";
  cache_->evict(1);
  EXPECT_EQ(num_available(tokens), 8);
  cache_.reset();
  make(TierWritePolicy::kWriteThroughSelective, nullptr);
  compute(tokens);
  EXPECT_EQ(num_available(tokens), 0);
  compute(tokens_from(10, 1));  // uses the first page again
  EXPECT_EQ(num_available(tokens), 4);
  cache_->evict(2);
  EXPECT_EQ(num_available(tokens), 4) << "the second page was used once";
}

TEST_F(KvTiersTest, AUserWhoDropsTheCacheDemotesNothing) {
  make(TierWritePolicy::kWriteBack, nullptr);
  compute(tokens_from(10, 2));
  EXPECT_EQ(cache_->flush(), 2);
  EXPECT_EQ(num_available(tokens_from(10, 2)), 0);
}

TEST_F(KvTiersTest, StorageServesWhatTheHostLacksAndFillsIt) {
  make(TierWritePolicy::kWriteThrough, flaky());
  const std::vector<TokenId> tokens = tokens_from(10, 6);
  compute(tokens);
  cache_->evict(6);
  tiers_->clear_host();
  LoadResult result = load(tokens);
  EXPECT_EQ(result.num_tokens, 24);
  EXPECT_EQ(result.num_from_storage, 24);
  cache_->evict(6);
  result = load(tokens);
  EXPECT_EQ(result.num_from_host, 24) << "loaded pages are kept in the host's memory";
}

TEST_F(KvTiersTest, APageThatIsMissingEndsTheLoadBeforeIt) {
  make(TierWritePolicy::kWriteThrough, flaky({.seed = 3, .lose_one_of = 4}), false);
  const std::vector<TokenId> tokens = tokens_from(10, 8);
  compute(tokens);
  int num_in_part = 0, num_whole = 0;
  for (int i = 0; i < 100; ++i) {
    cache_->evict(8);
    const int32_t num_tokens = load(tokens).num_tokens;
    ASSERT_EQ(num_tokens % kTierPageSize, 0);
    ++(num_tokens < 32 ? num_in_part : num_whole);
  }
  EXPECT_GT(num_in_part, 20);
  EXPECT_GT(num_whole, 2);
  EXPECT_EQ(tiers_->stats().loads_in_part, num_in_part);
}

TEST_F(KvTiersTest, RefusedPagesAreTriedAgain) {
  make(TierWritePolicy::kWriteThrough, flaky({.seed = 4, .refuse_one_of = 2}), false);
  int num_saved = 0;
  for (TokenId first = 0; first < 100; ++first) {
    compute(tokens_from(1000 * first, 1));
    compute(tokens_from(1000 * first, 1));  // tried again
    cache_->evict(1);                       // and again
    num_saved += num_available(tokens_from(1000 * first, 1)) > 0 ? 1 : 0;
  }
  EXPECT_GT(num_saved, 75);
  EXPECT_LT(num_saved, 100);
}

// A load that is given up writes no page afterwards, whatever the store does.
TEST_F(KvTiersTest, LateAndCancelledLoadsAreGivenUp) {
  for (const bool cancels : {false, true}) {
    KvTiers::Parts parts{.copier = &device_, .clock = &clock_};
    parts.storage = flaky({.seed = 5, .delay_max = std::chrono::milliseconds(300)});
    KvTiersConfig config{.page_size = kTierPageSize, .num_device_pages = kTierPages};
    if (!cancels) config.load_timeout = config.load_timeout_per_1024 = Duration(1);
    tiers_ = std::make_unique<KvTiers>(config, std::move(parts));
    cache_ = make_prefix_cache(
                 {.num_pages = kTierPages, .page_size = kTierPageSize, .observer = tiers_.get()})
                 .value();
    const std::vector<TokenId> tokens = tokens_from(10, 4);
    compute(tokens);
    cache_->evict(4);
    SequencePages pages = cache_->begin("", tokens);
    ASSERT_TRUE(cache_->grow(pages, 16));
    const LoadRequest request{.id = 7, .tokens = tokens, .pages = pages.table()};
    ASSERT_EQ(tiers_->num_available(request), 16);
    tiers_->start(request);
    if (cancels) tiers_->cancel(7);
    std::this_thread::sleep_for(std::chrono::microseconds(1));
    std::vector<LoadResult> ended;
    tiers_->poll(ended);
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_EQ(tiers_->stats().loads_late, cancels ? 0 : 1);
    const std::vector<PageId> table(pages.table().begin(), pages.table().end());
    for (const PageId page : table) device_.set(page, 99);  // as its next owner does
    pages.reset();
    cache_.reset();
    tiers_.reset();  // waits for the store
    for (const PageId page : table) EXPECT_EQ(device_.get(page), 99);
  }
}

// A device that is slow and fails now and then, and pages that are evicted, and written by others,
// while they are being saved or loaded: what is loaded is right.
TEST_F(KvTiersTest, ASlowDeviceCopiesTheRightBytes) {
  for (uint64_t seed = 1; seed <= 60 && !HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    RemoteCopier remote(device_, {.seed = seed,
                                  .delay_max = std::chrono::microseconds(rng.below(100)),
                                  .fail_one_of = rng.below(3) == 0 ? 10u : 0u});
    copier_ = &remote;
    waits_for_saves_ = false;
    make(static_cast<TierWritePolicy>(rng.below(3)),
         rng.below(2) == 0 ? flaky({.seed = seed, .lose_one_of = 9}) : nullptr);
    for (int step = 0; step < 60 && !HasFailure(); ++step) {
      const std::vector<TokenId> tokens = tokens_from(static_cast<TokenId>(1000 * rng.below(8)),
                                                      static_cast<int>(rng.between(1, 9)));
      if (cache_->sizes().free < 10 || rng.below(3) == 0)
        cache_->evict(static_cast<int32_t>(rng.between(10, 20)));
      SequencePages pages = cache_->begin("", tokens);
      const int32_t num_cached = pages.num_pages() * kTierPageSize;
      const bool loads =
          tiers_->num_available(
              {.id = 7, .tokens = tokens, .num_cached = num_cached, .pages = pages.table()}) >
          num_cached;
      pages.reset();
      loads ? static_cast<void>(load(tokens)) : compute(tokens);
    }
    cache_.reset();
    tiers_.reset();
  }
}

// Copies that have begun when a load is given up end before its pages are others'.
TEST_F(KvTiersTest, NoCopyOutlivesALoadThatIsGivenUp) {
  RemoteCopier remote(device_, {.seed = 1, .delay_max = std::chrono::milliseconds(5)});
  copier_ = &remote;
  make(TierWritePolicy::kWriteThrough, nullptr);
  const std::vector<TokenId> tokens = tokens_from(10, 8);
  compute(tokens);
  for (int round = 0; round < 10; ++round) {
    cache_->evict(8);
    SequencePages pages = cache_->begin("", tokens);
    ASSERT_TRUE(cache_->grow(pages, 32));
    const LoadRequest request{.id = 7, .tokens = tokens, .pages = pages.table()};
    ASSERT_EQ(tiers_->num_available(request), 32);
    const size_t num_writes = remote.num_writes();
    tiers_->start(request);
    while (remote.num_writes() == num_writes) std::this_thread::yield();
    tiers_->cancel(7);
    std::vector<LoadResult> ended;
    tiers_->poll(ended);
    ASSERT_EQ(ended.size(), 1u);
    const std::vector<PageId> table(pages.table().begin(), pages.table().end());
    for (const PageId page : table) device_.set(page, 99);  // as its next owner does
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    for (const PageId page : table) EXPECT_EQ(device_.get(page), 99);
  }
  cache_.reset();
  tiers_.reset();
}

// The second page's copy begins before the first one's has ended.
TEST_F(KvTiersTest, CopiesOfALoadOverlap) {
  RemoteCopier remote(device_, {.seed = 1, .delay_max = std::chrono::milliseconds(3)});
  copier_ = &remote;
  make(TierWritePolicy::kWriteThrough, nullptr);
  const std::vector<TokenId> tokens = tokens_from(10, 8);
  compute(tokens);
  cache_->evict(8);
  EXPECT_EQ(load(tokens).num_from_host, 32);
  EXPECT_GT(remote.num_begun_at_once(), 1u);
  cache_.reset();
  tiers_.reset();
}

// Nothing is on the device nor in the host's memory; then a request waits for its turn.
TEST_F(KvTiersTest, PagesComeNearerWhileARequestWaits) {
  for (const PrefetchPolicy policy :
       {PrefetchPolicy::kBestEffort, PrefetchPolicy::kWaitComplete, PrefetchPolicy::kTimeout}) {
    SCOPED_TRACE(static_cast<int>(policy));
    prefetch_ = policy;
    make(TierWritePolicy::kWriteThrough, flaky());
    const std::vector<TokenId> tokens = tokens_from(10, 20);
    compute(tokens);
    cache_->evict(20);
    tiers_->clear_host();
    const bool needs_host = policy == PrefetchPolicy::kBestEffort;
    EXPECT_EQ(num_available(tokens), needs_host ? 0 : 80);
    tiers_->prefetch({.id = 7, .tokens = tokens});
    while (tiers_->stats().prefetch.pages_fetched < 20) std::this_thread::yield();
    EXPECT_EQ(tiers_->stats().prefetch.pages_started, 20) << "before the request is admitted";
    EXPECT_EQ(tiers_->stats().loads, 0);
    EXPECT_EQ(load(tokens).num_from_host, 80);
    cache_.reset();
    tiers_.reset();
  }
}

// Half of the host's memory is for requests that wait, and one that is gone wants nothing.
TEST_F(KvTiersTest, PrefetchingHasBounds) {
  make(TierWritePolicy::kWriteThrough, flaky());
  for (TokenId first = 0; first < 3; ++first) {
    compute(tokens_from(first * 1000, 20));
    cache_->evict(20);
  }
  tiers_->clear_host();
  for (SequenceId id = 0; id < 3; ++id)
    tiers_->prefetch({.id = id, .tokens = tokens_from(static_cast<TokenId>(id) * 1000, 20)});
  while (tiers_->stats().prefetch.requests < 3 || tiers_->stats().prefetch.pages_fetched < 20)
    std::this_thread::yield();
  EXPECT_LE(tiers_->stats().prefetch.pages_started, 20 + 16) << "a window beyond the bound at most";
  for (SequenceId id = 0; id < 3; ++id) tiers_->forget(id);
  tiers_->forget(99);
  const std::vector<TokenId> none = tokens_from(5000, 3);
  tiers_->prefetch({.id = 4, .tokens = none, .num_cached = 12});  // all is on the device
  EXPECT_EQ(tiers_->num_available({.id = 4, .tokens = none}), 0);
}

// A request that is admitted before the remote store has answered waits for it, however it ends.
TEST_F(KvTiersTest, AnAdmittedRequestWaitsForTheLookUp) {
  for (const bool has_host : {true, false})
    for (const bool is_there : {true, false}) {
      SCOPED_TRACE(testing::Message() << has_host << is_there);
      auto store = std::make_unique<AskedStore>(FlakyStore::Options{.page_bytes = kTierPageBytes});
      AskedStore& remote = *store;
      make(TierWritePolicy::kWriteThrough, nullptr, has_host, std::move(store));
      const std::vector<TokenId> tokens = tokens_from(10, 6);
      compute(tokens);
      cache_->evict(6);
      tiers_->clear_host();
      EXPECT_EQ(num_available(tokens), 0) << "nothing has asked the store";
      if (!is_there) remote.clear();
      tiers_->prefetch({.id = 7, .tokens = tokens});
      while (remote.num_waiting() == 0) std::this_thread::yield();
      SequencePages pages = cache_->begin("", tokens);
      ASSERT_TRUE(cache_->grow(pages, 24));
      const LoadRequest request{.id = 7, .tokens = tokens, .pages = pages.table()};
      ASSERT_EQ(tiers_->num_available(request), 24);
      tiers_->start(request);
      std::vector<LoadResult> ended;
      tiers_->poll(ended);
      ASSERT_TRUE(ended.empty());
      remote.answer();
      while (ended.empty()) tiers_->poll(ended);
      EXPECT_EQ(ended[0].num_tokens, is_there ? 24 : 0);
      EXPECT_EQ(ended[0].num_from_storage, is_there ? 24 : 0);
      for (size_t i = 0; is_there && i < 6; ++i)
        EXPECT_EQ(device_.get(pages.table()[i]), tokens[i * kTierPageSize] & 255);
      pages.reset();
      cache_.reset();
      tiers_.reset();
    }
}

// The store never answers: the request is given up, or cancelled, or runs at once by its policy.
TEST_F(KvTiersTest, ALookUpThatIsNotAnsweredHoldsNothingUp) {
  for (const bool cancels : {true, false}) {
    KvTiers::Parts parts{.copier = copier_, .clock = &clock_};
    auto store = std::make_unique<AskedStore>(FlakyStore::Options{.page_bytes = kTierPageBytes});
    AskedStore& remote = *store;
    parts.remote = std::move(store);
    KvTiersConfig config{.page_size = kTierPageSize, .num_device_pages = kTierPages};
    if (!cancels) config.load_timeout = config.load_timeout_per_1024 = Duration(1);
    tiers_ = std::make_unique<KvTiers>(config, std::move(parts));
    cache_ = make_prefix_cache(
                 {.num_pages = kTierPages, .page_size = kTierPageSize, .observer = tiers_.get()})
                 .value();
    const std::vector<TokenId> tokens = tokens_from(10, 4);
    tiers_->prefetch({.id = 7, .tokens = tokens});
    while (remote.num_waiting() == 0) std::this_thread::yield();
    SequencePages pages = cache_->begin("", tokens);
    ASSERT_TRUE(cache_->grow(pages, 16));
    const LoadRequest request{.id = 7, .tokens = tokens, .pages = pages.table()};
    ASSERT_EQ(tiers_->num_available(request), 16);
    tiers_->start(request);
    if (cancels) tiers_->cancel(7);
    std::vector<LoadResult> ended;
    while (ended.empty()) tiers_->poll(ended);
    EXPECT_EQ(ended[0].num_tokens, 0);
    pages.reset();
    cache_.reset();
    tiers_.reset();
  }
  prefetch_ = PrefetchPolicy::kBestEffort;
  make(TierWritePolicy::kWriteThrough, nullptr, true,
       std::make_unique<AskedStore>(FlakyStore::Options{.page_bytes = kTierPageBytes}));
  const std::vector<TokenId> tokens = tokens_from(10, 4);
  tiers_->prefetch({.id = 7, .tokens = tokens});
  EXPECT_EQ(num_available(tokens), 0);
}

TEST(TierWritePolicyNames, AreSglangs) {
  EXPECT_EQ(parse_tier_write_policy("write_through_selective").value(),
            TierWritePolicy::kWriteThroughSelective);
  const auto none = parse_tier_write_policy("write-through");
  ASSERT_FALSE(none.has_value());
  EXPECT_NE(none.error().message().find("write_back"), std::string::npos);
  EXPECT_EQ(parse_prefetch_policy("wait_complete").value(), PrefetchPolicy::kWaitComplete);
  EXPECT_FALSE(parse_prefetch_policy("").has_value());
}

}  // namespace
}  // namespace espalier
