// A Redis server that dies, stalls, answers garbage or is none, at points from seeds: whatever is
// read is right, every call ends, and the store reconnects to to a server that works.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tiers/test_pages.h"
#include "tiers/test_redis.h"

namespace espalier {
namespace {

constexpr int64_t kFaultPageBytes = 3000;
using Fault = FaultProxy::Fault;

int num_seeds() {
  const char* const scale = std::getenv("ESPALIER_FUZZ_SCALE");
  return 40 * (scale == nullptr ? 1 : std::max(std::atoi(scale), 1));
}

// Random calls; each must end, and what is found is right.
void use(RemotePageStore& store, Rng& rng) {
  for (int step = 0; step < 6; ++step) {
    const std::vector<PageName> names = test_page_names(rng.below(50), rng.between(1, 20));
    switch (rng.below(4)) {
      case 0:
        put_pages(store, names);
        break;
      case 1:
        store.flush();
        break;
      case 2:
        look_up_pages(store, names);
        break;
      default:
        count_right_pages(store, names);
        break;
    }
  }
}

TEST(RemoteFaults, AtSeededPoints) {
  ESP_SKIP_WITHOUT_REDIS();
  const TestRedis redis;
  FaultProxy proxy(redis.port());
  RedisServer server = redis.server();
  server.port = proxy.port();
  RemotePageStoreConfig config = test_remote_config(kFaultPageBytes);
  config.transfer_timeout = config.lookup_timeout = std::chrono::milliseconds(60);
  config.pages_in_exchange = 3;  // so that threads share reads
  server.connect_timeout = std::chrono::milliseconds(60);
  const auto store = open_redis_store(config, server);
  const auto direct = open_redis_store(test_remote_config(kFaultPageBytes), redis.server());
  put_pages(*direct, test_page_names(0, 40));
  direct->flush();
  for (int seed = 1; seed <= num_seeds(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(static_cast<uint64_t>(seed));
    wait_until_connected(*store);
    constexpr Fault kFaults[] = {Fault::kClose, Fault::kStall, Fault::kGarbage, Fault::kFlip,
                                 Fault::kOneByOne};
    proxy.set_fault(kFaults[rng.below(std::size(kFaults))], rng.below(30'000));
    use(*store, rng);
  }
  EXPECT_GT(proxy.num_faults(), 10);
  EXPECT_GT(store->stats().cut_offs, 5);
  proxy.set_fault(Fault::kNone, 0);
  size_t num_found = 0;  // a connection that the last fault has stalled may still be open
  while (num_found < 40) {
    wait_until_connected(*store);
    num_found = count_right_pages(*store, test_page_names(0, 40));
  }
}

// While the server is stalled, one call waits for a timeout and the others for nothing.
TEST(RemoteFaults, AStalledServerIsCutOff) {
  ESP_SKIP_WITHOUT_REDIS();
  const TestRedis redis;
  RemotePageStoreConfig config = test_remote_config(kFaultPageBytes);
  config.lookup_timeout = std::chrono::milliseconds(20);
  config.retry_after = config.retry_after_max = std::chrono::hours(1);
  const auto store = open_redis_store(config, redis.server());
  ASSERT_EQ(store->problem(), "");
  put_pages(*store, test_page_names(0, 10));
  store->flush();
  redis.send(SIGSTOP);
  while (store->problem().empty())  // a look-up that waits too long for its turn is not sent
    EXPECT_EQ(look_up_pages(*store, test_page_names(20, 1)), 0u);
  EXPECT_NE(store->problem().find("timeout"), std::string::npos) << store->problem();
  EXPECT_EQ(store->stats().cut_offs, 1);
  EXPECT_FALSE(store->needs_look_up());
  EXPECT_EQ(store->num_leading(test_page_names(0, 10)), 0u);
  bool was_called = false;  // inside, as is each answer: nothing waits for the server
  store->look_up(test_page_names(0, 10), [&] { was_called = true; });
  EXPECT_TRUE(was_called);
  EXPECT_EQ(put_pages(*store, test_page_names(20, 10)), 0u);
  EXPECT_EQ(count_right_pages(*store, test_page_names(0, 10)), 0u);
  store->flush();
  EXPECT_EQ(store->stats().cut_offs, 1);
  redis.send(SIGCONT);
}

TEST(RemoteFaults, ARestartedServerIsFoundAgain) {
  ESP_SKIP_WITHOUT_REDIS();
  TestRedis redis;
  const auto store = open_redis_store(test_remote_config(kFaultPageBytes), redis.server());
  put_pages(*store, test_page_names(0, 10));
  store->flush();
  EXPECT_EQ(count_right_pages(*store, test_page_names(0, 10)), 10u);
  redis.stop();
  EXPECT_EQ(count_right_pages(*store, test_page_names(0, 10)), 0u);
  for (int tries = 0; tries < 100 && !redis.runs(); ++tries) redis.start();
  if (!redis.runs()) GTEST_SKIP() << "another process has taken the port, and keeps it";
  wait_until_connected(*store);
  while (count_right_pages(*store, test_page_names(0, 10)) < 10) {
    put_pages(*store, test_page_names(0, 10));
    store->flush();
  }
}

// What listens is no Redis server: nothing is found, and no call waits.
TEST(RemoteFaults, AnotherProgramListens) {
  const auto [listener, port] = net::listen_on_loopback();
  std::thread other([listener = listener] {
    for (int fd; (fd = ::accept(listener, nullptr, nullptr)) >= 0; ::close(fd)) {
      constexpr std::string_view kAnswer = "HTTP/1.1 400 Bad Request\r\n\r\n";
      (void)::send(fd, kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL);
      char bytes[256];
      (void)::recv(fd, bytes, sizeof bytes, 0);
    }
  });
  RedisServer server;
  server.port = port;
  {
    const auto store = open_redis_store(test_remote_config(kFaultPageBytes), server);
    EXPECT_NE(store->problem().find("not RESP"), std::string::npos) << store->problem();
    EXPECT_EQ(put_pages(*store, test_page_names(0, 3)), 0u);
    EXPECT_EQ(count_right_pages(*store, test_page_names(0, 3)), 0u);
    EXPECT_GT(store->stats().errors, 0);
  }
  ::shutdown(listener, SHUT_RDWR);
  other.join();
  ::close(listener);
}

TEST(RemoteFaults, NothingListens) {
  const auto [listener, port] = net::listen_on_loopback();
  ::close(listener);
  RedisServer server;
  server.port = port;
  const auto store = open_redis_store(test_remote_config(kFaultPageBytes), server);
  EXPECT_NE(store->problem().find("cannot connect"), std::string::npos) << store->problem();
  EXPECT_EQ(put_pages(*store, test_page_names(0, 3)), 0u);
  EXPECT_EQ(count_right_pages(*store, test_page_names(0, 3)), 0u);
  store->flush();
}

}  // namespace
}  // namespace espalier
