// RemotePageStore on a store of S3's objects.
#include <gtest/gtest.h>

#include "tiers/test_pages.h"
#include "tiers/test_redis.h"
#include "tiers/test_s3.h"

namespace espalier {
namespace {

constexpr int64_t kS3PageBytes = 5000;

TEST(S3PageStore, EqualsAMap) {
  TestS3 s3;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    RemotePageStoreConfig config =
        test_remote_config(seed % 2 == 0 ? 20'000 : 700, "scope " + std::to_string(seed));
    config.pages_in_exchange = 1 + seed % 5;
    config.num_connections = 1 + static_cast<int32_t>(seed % 3);
    config.known_pages_max = seed % 2 == 0 ? 16 : 1000;
    const auto open = [&] { return open_s3_store(config, s3.server()); };
    std::unique_ptr<PageStore> store = open();
    check_store_against_map(seed, store, [&] {
      store.reset();
      store = open();
    });
    const PageStoreStats stats = store->stats();
    EXPECT_EQ(stats.errors + stats.corrupt + stats.cut_offs, 0);
  }
}

TEST(S3PageStore, IsSharedByServersOfOneScope) {
  TestS3 s3;
  const auto one = open_s3_store(test_remote_config(kS3PageBytes), s3.server());
  const auto two = open_s3_store(test_remote_config(kS3PageBytes), s3.server());
  const auto other = open_s3_store(test_remote_config(kS3PageBytes, "other"), s3.server());
  const std::vector<PageName> names = test_page_names(0, 200);
  EXPECT_EQ(put_pages(*one, names), 200u);
  one->flush();
  EXPECT_EQ(two->num_leading(names), 0u) << "it has not asked";
  EXPECT_EQ(look_up_pages(*two, names), 200u);
  EXPECT_EQ(look_up_pages(*two, test_page_names(190, 20)), 10u);
  EXPECT_EQ(look_up_pages(*other, names), 0u);
  EXPECT_EQ(look_up_pages(*two, test_page_names(0, 10, 1)), 0u) << "another tenant's";
  EXPECT_EQ(count_right_pages(*two, names), 200u);
  EXPECT_EQ(count_right_pages(*other, names), 0u);
  two->clear();
  two->flush();
  EXPECT_EQ(count_right_pages(*one, names), 0u);
}

// Objects that are not the page asked for: damaged, of another page, model or layout, or no page.
TEST(S3PageStore, NeverGivesAWrongPage) {
  TestS3 s3;
  const RemotePageStoreConfig config = test_remote_config(kS3PageBytes);
  const auto store = open_s3_store(config, s3.server());
  const PageName name = test_page_name(7);
  put_pages(*store, {name});
  store->flush();
  ASSERT_EQ(s3.objects().size(), 1u);
  const auto [key, right] = *s3.objects().begin();
  const auto sealed = [&](const PageName& as, const std::string& scope) {
    std::vector<std::byte> slot(kSlotHeaderBytes);
    const std::vector<std::byte> page = test_page(name, kS3PageBytes);
    slot.insert(slot.end(), page.begin(), page.end());
    seal_slot(slot, kS3PageBytes, as, digest_of_scope(scope));
    return std::string(reinterpret_cast<const char*>(slot.data()), slot.size());
  };
  ASSERT_EQ(sealed(name, config.scope), right);
  int64_t num_wrong = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    std::string bytes = right;
    switch (rng.below(5)) {
      case 0:
        bytes = sealed(test_page_name(rng.below(1000), 1), config.scope);
        break;
      case 1:
        bytes = sealed(name, "model " + std::to_string(seed));
        break;
      case 2:
        bytes.resize(rng.below(bytes.size() * 2));
        break;
      default:
        bytes[rng.below(bytes.size())] ^= static_cast<char>(1 << rng.below(8));
        break;
    }
    if (bytes == right) continue;
    s3.set_object(key, bytes);
    ASSERT_EQ(count_right_pages(*store, {name}), 0u);
    ++num_wrong;
  }
  EXPECT_EQ(store->stats().corrupt, num_wrong);
  EXPECT_EQ(store->stats().cut_offs, 0);
  s3.set_object(key, right);
  EXPECT_EQ(count_right_pages(*store, {name}), 1u);
}

// A store that takes no pages is read; one that refuses reads is cut off until it gives them again.
TEST(S3PageStore, OutlivesRefusals) {
  TestS3 s3;
  const auto store = open_s3_store(test_remote_config(kS3PageBytes), s3.server());
  const std::vector<PageName> names = test_page_names(0, 20);
  put_pages(*store, names);
  store->flush();
  s3.refuse("PUT", 507, "QuotaExceeded");
  put_pages(*store, test_page_names(100, 3));
  store->flush();
  EXPECT_GT(store->stats().errors, 0);
  EXPECT_EQ(store->stats().cut_offs, 0);
  EXPECT_EQ(count_right_pages(*store, names), 20u);
  s3.refuse("GET", 503, "SlowDown");
  EXPECT_EQ(count_right_pages(*store, names), 0u);
  EXPECT_EQ(store->stats().cut_offs, 1);
  EXPECT_EQ(count_right_pages(*store, names), 0u);
  s3.refuse("", 0);
  wait_until_connected(*store);
  EXPECT_EQ(count_right_pages(*store, names), 20u);
}

// A store whose connections break, stall or lie at points from seeds: every call ends, what is read
// is right, and the store is used again afterwards.
TEST(S3PageStore, FaultsAtSeededPoints) {
  using Fault = FaultProxy::Fault;
  TestS3 s3;
  const auto direct = open_s3_store(test_remote_config(3000), s3.server());
  put_pages(*direct, test_page_names(0, 40));
  direct->flush();
  FaultProxy proxy(s3.port());
  S3Server server = s3.server();
  server.endpoint = "http://127.0.0.1:" + std::to_string(proxy.port());
  server.connect_timeout = std::chrono::milliseconds(200);
  RemotePageStoreConfig config = test_remote_config(3000);
  config.transfer_timeout = config.lookup_timeout = std::chrono::milliseconds(200);
  config.pages_in_exchange = 3;
  const auto store = open_s3_store(config, server);
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    wait_until_connected(*store);
    constexpr Fault kFaults[] = {Fault::kClose, Fault::kStall, Fault::kGarbage, Fault::kFlip,
                                 Fault::kOneByOne};
    proxy.set_fault(kFaults[rng.below(std::size(kFaults))], rng.below(10'000));
    for (int step = 0; step < 4; ++step) {
      const std::vector<PageName> names = test_page_names(rng.below(50), rng.between(1, 12));
      switch (rng.below(3)) {
        case 0:
          put_pages(*store, names);
          store->flush();
          break;
        case 1:
          look_up_pages(*store, names);
          break;
        default:
          count_right_pages(*store, names);
          break;
      }
    }
  }
  EXPECT_GT(proxy.num_faults(), 10);
  EXPECT_GT(store->stats().cut_offs, 2);
  proxy.set_fault(Fault::kNone, 0);
  size_t num_found = 0;
  while (num_found < 40) {
    wait_until_connected(*store);
    num_found = count_right_pages(*store, test_page_names(0, 40));
  }
}

TEST(S3PageStore, NothingListens) {
  S3Server server;
  {
    TestS3 s3;
    server = s3.server();
  }
  const auto store = open_s3_store(test_remote_config(kS3PageBytes), server);
  EXPECT_NE(store->problem().find("cannot connect"), std::string::npos) << store->problem();
  EXPECT_EQ(put_pages(*store, test_page_names(0, 3)), 0u);
  EXPECT_EQ(count_right_pages(*store, test_page_names(0, 3)), 0u);
  store->flush();
}

}  // namespace
}  // namespace espalier
