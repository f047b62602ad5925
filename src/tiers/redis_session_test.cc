#include "tiers/redis_session.h"

#include <gtest/gtest.h>

#include "tiers/test_redis.h"

namespace espalier {
namespace {

TimePoint soon() { return SteadyClock().now() + std::chrono::seconds(30); }

Status open_status(const RedisServer& server) {
  auto session = RedisSession::create(server, {});
  return session ? (*session)->open() : session.error();
}

TEST(RedisServerUrl, HasAllThatAConnectionNeeds) {
  RedisServer server;
  ASSERT_TRUE(server.set_url("rediss://me:p@ss:word@cache.example:7000/3").ok());
  EXPECT_TRUE(server.is_tls);
  EXPECT_EQ(server.user, "me");
  EXPECT_EQ(server.password, "p@ss:word");
  EXPECT_EQ(server.host, "cache.example");
  EXPECT_EQ(server.port, 7000);
  EXPECT_EQ(server.database, 3);
  EXPECT_EQ(server.shown_url(), "rediss://cache.example:7000/3");
  RedisServer plain;
  ASSERT_TRUE(plain.set_url("redis://:secret@[::1]").ok());
  EXPECT_FALSE(plain.is_tls);
  EXPECT_EQ(plain.user, "");
  EXPECT_EQ(plain.password, "secret");
  EXPECT_EQ(plain.shown_url(), "redis://[::1]:6379/0");
  for (const char* bad :
       {"", "cache", "http://a", "redis://", "redis://:1", "redis://a:0", "redis://a:65536",
        "redis://a:b", "redis://a/b", "redis://user@a", "redis://[::1", "redis://a:1:x/"}) {
    const Status status = RedisServer().set_url(bad);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(RedisServer().set_url("redis://u:secret@:1").message().find("secret"),
            std::string::npos);
}

TEST(RedisSession, SaysWhyItIsNotLetIn) {
  ESP_SKIP_WITHOUT_REDIS();
  const TestRedis redis({"--requirepass", "right", "--databases", "4"});
  RedisServer server = redis.server();
  EXPECT_NE(open_status(server).message().find("user and password"), std::string::npos);
  server.password = "wrong";
  EXPECT_NE(open_status(server).message().find("user and password"), std::string::npos);
  server.password = "right";
  EXPECT_TRUE(open_status(server).ok());
  server.user = "default";
  EXPECT_TRUE(open_status(server).ok());
  server.database = 3;
  EXPECT_TRUE(open_status(server).ok());
  server.database = 4;
  EXPECT_NE(open_status(server).message().find("SELECT"), std::string::npos);
  server.port = 1;
  EXPECT_EQ(open_status(server).code(), StatusCode::kUnavailable);
}

TEST(RedisSession, SpeaksTls) {
  ESP_SKIP_WITHOUT_REDIS();
  const net::Identity identity("IP:127.0.0.1"), other("IP:127.0.0.1");
  const TestRedis redis({}, &identity);
  ASSERT_TRUE(redis.runs());
  RedisServer server = redis.server();
  server.is_tls = true;
  server.port = redis.tls_port();
  server.tls_files.ca = other.file;
  EXPECT_FALSE(open_status(server).ok()) << "a server that is not the one";
  server.tls_files.ca = "/no/such/file";
  EXPECT_EQ(open_status(server).code(), StatusCode::kInvalidArgument);
  server.tls_files.ca = identity.file;
  EXPECT_TRUE(open_status(server).ok());
  server.port = redis.port();
  server.connect_timeout = std::chrono::milliseconds(200);
  EXPECT_FALSE(open_status(server).ok()) << "plain text on the other side";
}

// Many keys are removed by one scope, and none of another.
TEST(RedisSession, ClearsItsScopeAlone) {
  ESP_SKIP_WITHOUT_REDIS();
  const TestRedis redis;
  RedisServer server = redis.server();
  server.key_prefix = "a*b[c]?:";
  const auto ours = *RedisSession::create(server, digest_of_scope("ours"));
  const auto theirs = *RedisSession::create(server, digest_of_scope("theirs"));
  const std::vector<std::byte> bytes(100);
  std::vector<SealedPage> pages(2500);
  std::vector<PageName> names;
  for (size_t i = 0; i < pages.size(); ++i) {
    pages[i].name.bytes[0] = static_cast<uint8_t>(i);
    pages[i].name.bytes[1] = static_cast<uint8_t>(i / 256 + 1);
    pages[i].bytes = bytes;
    names.push_back(pages[i].name);
  }
  for (const auto& session : {ours.get(), theirs.get()}) {
    ASSERT_TRUE(session->open().ok());
    std::vector<bool> taken(pages.size());
    std::string refusal;
    ASSERT_TRUE(session->write(pages, soon(), taken, refusal).ok());
    EXPECT_EQ(std::ranges::count(taken, true), 2500);
    EXPECT_EQ(*session->look_up(names, soon()), 2500u);
  }
  ASSERT_TRUE(ours->erase(std::span(names).first(10), soon()).ok());
  EXPECT_EQ(*ours->look_up(names, soon()), 0u);
  EXPECT_EQ(*ours->look_up(std::span(names).subspan(10), soon()), 2490u);
  ASSERT_TRUE(ours->clear(soon()).ok());
  EXPECT_EQ(*ours->look_up(std::span(names).subspan(10), soon()), 0u);
  EXPECT_EQ(*theirs->look_up(names, soon()), 2500u);
  EXPECT_EQ(*theirs->look_up(std::span(names).subspan(7), soon()), 2493u);
}

}  // namespace
}  // namespace espalier
