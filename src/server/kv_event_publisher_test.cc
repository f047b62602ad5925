#include "server/kv_event_publisher.h"

#include <gtest/gtest.h>

#include <array>

#include "base/msgpack.h"
#include "engine/testing/test_engine.h"

namespace espalier::server {
namespace {

PageName page(uint8_t first) {
  PageName name;
  name.bytes[7] = first;
  return name;
}

// As vLLM's: the ports of an address in TCP follow each other, other addresses get a name.
TEST(KvEventPublisher, EachReplicaHasAddressesOfItsOwn) {
  const auto endpoint = [](const std::string& stated, int32_t dp_rank) {
    return kv_events_of_rank({.endpoint = stated, .replay_endpoint = stated}, dp_rank);
  };
  EXPECT_EQ(endpoint("tcp://*:5557", 0).endpoint, "tcp://*:5557");
  EXPECT_EQ(endpoint("tcp://*:5557", 2).endpoint, "tcp://*:5559");
  EXPECT_EQ(endpoint("tcp://10.0.0.1:5557", 1).replay_endpoint, "tcp://10.0.0.1:5558");
  EXPECT_EQ(endpoint("tcp://127.0.0.1:*", 1).endpoint, "tcp://127.0.0.1:*");
  EXPECT_EQ(endpoint("ipc:///tmp/events", 1).endpoint, "ipc:///tmp/events_dp1");
  EXPECT_EQ(endpoint("", 1).endpoint, "");
}

TEST(KvEventPublisher, EventsAreArraysAsVllmHasThem) {
  std::vector<CacheEvent> events(4);
  events[0] = {.type = CacheEvent::Type::kStored,
               .number = 1,
               .pages = {page(5)},
               .parent = page(4),
               .tokens = {300, 1},
               .cache_namespace = "a"};
  events[1] = {.type = CacheEvent::Type::kRemoved, .number = 2, .pages = {page(5), page(6)}};
  events[3] = {.type = CacheEvent::Type::kStored,
               .number = 4,
               .pages = {page(7), page(8)},
               .tokens = {1, 2, 3, 4},
               .cache_namespace = "a"};
  std::string expected("\x93\xcb\x40\x00\x00\x00\x00\x00\x00\x00\x94", 11);
  expected +=
      "\x98\xab"
      "BlockStored\x91\x05\x04\x92\xcd\x01\x2c\x01\x02\xc0\xa3"
      "GPU\xc0";
  expected +=
      "\x93\xac"
      "BlockRemoved\x92\x05\x06\xa3"
      "GPU";
  expected +=
      "\x91\xb0"
      "AllBlocksCleared";
  expected +=
      "\x99\xab"
      "BlockStored\x92\x07\x08\xc0\x94\x01\x02\x03\x04\x02\xc0\xa3"
      "GPU\xc0\x92\x91\xa1"
      "a\xc0";
  expected += std::string("\x00", 1);
  EXPECT_EQ(encode_kv_events(events, 2, 2.0), expected);
}

// Copies in the host's memory are stated by name; an adapter by its name.
TEST(KvEventPublisher, CopiesAndAdaptersAreStatedAsVllmHasThem) {
  std::vector<CacheEvent> events(3);
  events[0] = {
      .type = CacheEvent::Type::kStored, .medium = CacheEvent::Medium::kHost, .pages = {page(5)}};
  events[1] = {
      .type = CacheEvent::Type::kRemoved, .medium = CacheEvent::Medium::kHost, .pages = {page(5)}};
  events[2] = {
      .type = CacheEvent::Type::kStored, .pages = {page(7)}, .tokens = {1, 2}, .adapter = "poet"};
  std::string expected("\x93\xcb\x40\x00\x00\x00\x00\x00\x00\x00\x93", 11);
  expected +=
      "\x98\xab"
      "BlockStored\x91\x05\xc0\x90\x02\xc0\xa3"
      "CPU\xc0";
  expected +=
      "\x93\xac"
      "BlockRemoved\x91\x05\xa3"
      "CPU";
  expected +=
      "\x98\xab"
      "BlockStored\x91\x07\xc0\x92\x01\x02\x02\xc0\xa3"
      "GPU\xa4"
      "poet";
  expected += std::string("\x00", 1);
  EXPECT_EQ(encode_kv_events(events, 2, 2.0), expected);
}

class Publishing : public testing::Test {
 protected:
  void SetUp() override {
    parts_ = make_test_engine({.config = {.cache = {.num_cache_events = 3}}});
    auto started = KvEventPublisher::start(
        {.endpoint = "tcp://127.0.0.1:*", .replay_endpoint = "tcp://127.0.0.1:*", .topic = "kv"},
        *parts_.engine);
    if (!started && started.error().code() == StatusCode::kUnavailable)
      GTEST_SKIP() << started.error().message();
    ASSERT_TRUE(started) << started.error().to_string();
    publisher_ = std::move(*started);
  }
  // A prompt of eight letters is stored: one event, in a batch of its own.
  void publish(char letter) {
    const int64_t before = publisher_->num_batches();
    ASSERT_TRUE(parts_.engine->generate(
        {.text = std::string(8, letter), .sampling = {.max_new_tokens = 0}}));
    for (int i = 0; publisher_->num_batches() == before && i < 10000; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ASSERT_EQ(publisher_->num_batches(), before + 1);
  }
  // A letter's token is its byte, which is how MessagePack writes so small a number.
  static bool is_of(const std::string& batch, char letter) {
    return batch.find("BlockStored") != std::string::npos &&
           batch.find(std::string(8, letter)) != std::string::npos;
  }
  static std::vector<std::string> next_message(net::ZmqSocket& socket) {
    const std::array<const net::ZmqSocket*, 1> sockets = {&socket};
    if (!net::wait_readable(sockets, std::chrono::seconds(10))) return {};
    return socket.receive();
  }

  TestEngine parts_;
  std::unique_ptr<KvEventPublisher> publisher_;
};

TEST_F(Publishing, BatchesHaveATopicAndNumbers) {
  auto subscriber = net::ZmqSocket::open(net::ZmqKind::kSubscribe);
  ASSERT_TRUE(subscriber->connect(publisher_->config().endpoint).ok());
  // The subscription arrives some time later; the first batch that comes is of any number.
  std::vector<std::string> got;
  const std::array<const net::ZmqSocket*, 1> sockets = {&*subscriber};
  char letter = 'a';
  for (; letter < 'z' && !net::wait_readable(sockets, std::chrono::milliseconds(50)); ++letter)
    publish(letter);
  got = subscriber->receive();
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[0], "kv");
  ASSERT_EQ(got[1].size(), 8u);
  EXPECT_EQ(got[1].substr(0, 7), std::string(7, '\0'));
  EXPECT_TRUE(is_of(got[2], static_cast<char>('a' + got[1].back())));
}

TEST_F(Publishing, WhatWasMissedIsReplayed) {
  for (const char letter : {'a', 'b', 'c', 'd', 'e'}) publish(letter);
  auto asker = net::ZmqSocket::open(net::ZmqKind::kAsk);
  ASSERT_TRUE(asker->connect(publisher_->config().replay_endpoint).ok());
  const auto ask = [&](std::string_view from) {
    const std::array<std::string_view, 2> frames = {"", from};
    ASSERT_TRUE(asker->send(frames).ok());
  };
  ask(std::string(8, '\0'));  // three of the five are kept
  for (const char number : {2, 3, 4}) {
    const std::vector<std::string> got = next_message(*asker);
    ASSERT_EQ(got.size(), 3u);
    EXPECT_EQ(got[1].back(), number);
    EXPECT_TRUE(is_of(got[2], static_cast<char>('a' + number)));
  }
  const std::vector<std::string> end{"", std::string(8, '\xff'), ""};
  EXPECT_EQ(next_message(*asker), end);
  ask("no number");  // is not answered
  ask(std::string("\0\0\0\0\0\0\0\x04", 8));
  EXPECT_EQ(next_message(*asker)[1].back(), 4);
  EXPECT_EQ(next_message(*asker), end);
}

TEST_F(Publishing, ATakenAddressIsNamed) {
  const auto second = KvEventPublisher::start(publisher_->config(), *parts_.engine);
  // Its events' address is listened at or connected to, as it is written; its replay's is taken.
  ASSERT_FALSE(second);
  const std::string& why = second.error().message();
  EXPECT_TRUE(why.find(publisher_->config().endpoint) != std::string::npos ||
              why.find(publisher_->config().replay_endpoint) != std::string::npos)
      << why;
}

}  // namespace
}  // namespace espalier::server
