// RemotePageStore on a real Redis server.
#include <gtest/gtest.h>

#include "tiers/test_pages.h"
#include "tiers/test_redis.h"

namespace espalier {
namespace {

constexpr int64_t kRedisPageBytes = 5000;

TEST(RedisPageStore, EqualsAMap) {
  ESP_SKIP_WITHOUT_REDIS();
  const TestRedis redis;
  ASSERT_TRUE(redis.runs());
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    RemotePageStoreConfig config =
        test_remote_config(seed % 2 == 0 ? 20'000 : 700, "scope " + std::to_string(seed));
    config.pages_in_exchange = 1 + seed % 5;
    config.num_connections = 1 + static_cast<int32_t>(seed % 3);
    config.known_pages_max = seed % 2 == 0 ? 16 : 1000;
    const auto open = [&] { return open_redis_store(config, redis.server()); };
    std::unique_ptr<PageStore> store = open();
    check_store_against_map(seed, store, [&] {
      store.reset();
      store = open();
    });
    const PageStoreStats stats = store->stats();
    EXPECT_EQ(stats.errors + stats.corrupt + stats.cut_offs, 0);
  }
}

// A second server finds what the first has put, once it has asked, and no other scope does.
TEST(RedisPageStore, IsSharedByServersOfOneScope) {
  ESP_SKIP_WITHOUT_REDIS();
  const TestRedis redis;
  const auto one = open_redis_store(test_remote_config(kRedisPageBytes), redis.server());
  const auto two = open_redis_store(test_remote_config(kRedisPageBytes), redis.server());
  const auto other = open_redis_store(test_remote_config(kRedisPageBytes, "other"), redis.server());
  const std::vector<PageName> names = test_page_names(0, 300);
  EXPECT_EQ(put_pages(*one, names), 300u);
  one->flush();
  EXPECT_EQ(one->num_leading(names), 300u);
  EXPECT_EQ(two->num_leading(names), 0u) << "it has not asked";
  EXPECT_EQ(look_up_pages(*two, names), 300u);
  EXPECT_EQ(look_up_pages(*two, test_page_names(290, 20)), 10u);
  EXPECT_EQ(look_up_pages(*other, names), 0u);
  EXPECT_EQ(look_up_pages(*two, test_page_names(0, 10, 1)), 0u) << "another tenant's";
  EXPECT_EQ(count_right_pages(*two, names), 300u);
  EXPECT_EQ(count_right_pages(*other, names), 0u);
  two->erase(test_page_names(100, 1));
  two->flush();
  EXPECT_EQ(count_right_pages(*one, test_page_names(98, 10)), 9u);
  two->clear();
  two->flush();
  EXPECT_EQ(count_right_pages(*one, names), 0u);
  EXPECT_EQ(one->num_leading(names), 0u);
}

// Values that are not the page asked for: damaged, of another page, model or layout, or no page.
TEST(RedisPageStore, NeverGivesAWrongPage) {
  ESP_SKIP_WITHOUT_REDIS();
  const TestRedis redis;
  const RemotePageStoreConfig config = test_remote_config(kRedisPageBytes);
  const ScopeDigest scope = digest_of_scope(config.scope);
  const auto store = open_redis_store(config, redis.server());
  const auto session = *RedisSession::create(redis.server(), scope);
  ASSERT_TRUE(session->open().ok());
  const PageName name = test_page_name(7);
  const auto put_raw = [&](const std::vector<std::byte>& bytes) {
    const SealedPage page{name, bytes};
    std::vector<bool> taken(1);
    std::string refusal;
    ASSERT_TRUE(
        session->write({&page, 1}, SteadyClock().now() + std::chrono::seconds(30), taken, refusal)
            .ok());
  };
  const auto sealed = [&](const PageName& as, const ScopeDigest& of) {
    std::vector<std::byte> slot(kSlotHeaderBytes);
    const std::vector<std::byte> page = test_page(name, kRedisPageBytes);
    slot.insert(slot.end(), page.begin(), page.end());
    seal_slot(slot, kRedisPageBytes, as, of);
    return slot;
  };
  const std::vector<std::byte> right = sealed(name, scope);
  put_raw(right);
  EXPECT_EQ(count_right_pages(*store, {name}), 1u);
  int64_t num_wrong = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    std::vector<std::byte> bytes = right;
    switch (rng.below(5)) {
      case 0:
        bytes = sealed(test_page_name(rng.below(1000), 1), scope);
        break;
      case 1:
        bytes = sealed(name, digest_of_scope("model " + std::to_string(seed)));
        break;
      case 2:
        bytes.resize(rng.below(bytes.size()));
        break;
      default:
        bytes[rng.below(bytes.size())] ^= static_cast<std::byte>(1 << rng.below(8));
        break;
    }
    put_raw(bytes);
    ASSERT_EQ(count_right_pages(*store, {name}), 0u);
    ++num_wrong;
  }
  EXPECT_EQ(store->stats().corrupt, num_wrong);
  EXPECT_EQ(store->stats().cut_offs, 0);
  put_raw(std::vector<std::byte>(kRedisPageBytes * 3));  // too long to be read: the connection ends
  EXPECT_EQ(count_right_pages(*store, {name}), 0u);
  EXPECT_EQ(store->stats().cut_offs, 1);
  put_raw(right);
  wait_until_connected(*store);
  EXPECT_EQ(count_right_pages(*store, {name}), 1u);
}

// Takes the store's counts when a get() ends.
class CountsAtTheEnd final : public PageSink {
 public:
  explicit CountsAtTheEnd(const PageStore& store) : store_(store) {}
  void on_page(size_t, std::span<const std::byte>) override {}
  void on_done() override {
    stats_ = store_.stats();
    is_done_ = true;
    is_done_.notify_all();
  }
  const PageStoreStats& wait() {
    is_done_.wait(false);
    return stats_;
  }

 private:
  const PageStore& store_;
  PageStoreStats stats_;
  std::atomic<bool> is_done_ = false;
};

// A reader that is done finds its pages counted, whether they were found, wrong or absent.
TEST(RedisPageStore, CountsBeforeItAnswers) {
  ESP_SKIP_WITHOUT_REDIS();
  const TestRedis redis;
  const RemotePageStoreConfig config = test_remote_config(kRedisPageBytes);
  const auto store = open_redis_store(config, redis.server());
  const auto session = *RedisSession::create(redis.server(), digest_of_scope(config.scope));
  ASSERT_TRUE(session->open().ok());
  const std::vector<PageName> names = test_page_names(0, 3);
  ASSERT_EQ(put_pages(*store, {names[0]}), 1u);
  store->flush();
  const std::vector<std::byte> zeros(kSlotHeaderBytes + kRedisPageBytes);
  const SealedPage wrong{names[1], zeros};
  std::vector<bool> taken(1);
  std::string refusal;
  const TimePoint deadline = SteadyClock().now() + std::chrono::seconds(30);
  ASSERT_TRUE(session->write({&wrong, 1}, deadline, taken, refusal).ok());
  const auto counts_of = [&](const std::vector<PageName>& read) {
    const auto sink = std::make_shared<CountsAtTheEnd>(*store);
    store->get(read, sink);
    const PageStoreStats& stats = sink->wait();
    return std::vector<int64_t>{stats.found, stats.corrupt, stats.absent};
  };
  EXPECT_EQ(counts_of({names[1]}), (std::vector<int64_t>{0, 1, 1}));
  EXPECT_EQ(counts_of({names[2]}), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(counts_of(names), (std::vector<int64_t>{1, 2, 4}));
}

TEST(RedisPageStore, PagesExpire) {
  ESP_SKIP_WITHOUT_REDIS();
  const TestRedis redis;
  RedisServer server = redis.server();
  server.ttl_seconds = 1000;
  const auto store = open_redis_store(test_remote_config(kRedisPageBytes), server);
  put_pages(*store, test_page_names(0, 20));
  store->flush();
  const auto answer_to = [&](const std::string& command) {
    net::TestSocket socket(redis.port());
    socket.write(command + "\r\n");
    return socket.read_until([](const std::string& text) { return text.ends_with("\r\n"); });
  };
  EXPECT_EQ(answer_to("DBSIZE"), ":20\r\n");
  const std::string info = answer_to("INFO keyspace");
  EXPECT_NE(info.find("keys=20,expires=20"), std::string::npos) << info;
  const auto other = open_redis_store(test_remote_config(kRedisPageBytes), server);
  EXPECT_EQ(look_up_pages(*other, test_page_names(0, 25)), 20u);
}

// A server that is full refuses pages, and those that it has are read.
TEST(RedisPageStore, AFullServerIsRead) {
  ESP_SKIP_WITHOUT_REDIS();
  const TestRedis redis({"--maxmemory", "6mb", "--maxmemory-policy", "noeviction"});
  const auto store = open_redis_store(test_remote_config(100'000), redis.server());
  const std::vector<PageName> names = test_page_names(0, 200);
  put_pages(*store, names);
  store->flush();
  const PageStoreStats stats = store->stats();
  EXPECT_GT(stats.stored, 10);
  EXPECT_GT(stats.errors + stats.refused, 10);
  EXPECT_EQ(stats.cut_offs, 0);
  EXPECT_GT(count_right_pages(*store, names), 10u);
}

TEST(RedisPageStore, RefusesWhatItHasNoBufferFor) {
  ESP_SKIP_WITHOUT_REDIS();
  const TestRedis redis;
  RemotePageStoreConfig config = test_remote_config(kRedisPageBytes);
  config.write_buffer_bytes = 4 * kRedisPageBytes;
  config.num_reads_max = 5;
  const auto store = open_redis_store(config, redis.server());
  redis.send(SIGSTOP);
  EXPECT_LT(put_pages(*store, test_page_names(0, 20)), 20u);
  redis.send(SIGCONT);
  store->flush();
  EXPECT_EQ(count_right_pages(*store, test_page_names(0, 6)), 0u) << "more than may wait";
  EXPECT_GE(count_right_pages(*store, test_page_names(0, 3)), 3u);
  EXPECT_GT(store->stats().refused, 0);
  EXPECT_EQ(store->put(test_page_names(50, 3), [](size_t, std::span<std::byte>) { return false; }),
            0u);
}

}  // namespace
}  // namespace espalier
