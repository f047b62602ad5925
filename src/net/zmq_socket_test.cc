#include "net/zmq_socket.h"

#include <gtest/gtest.h>

#include <array>

namespace espalier::net {
namespace {

using std::chrono::seconds;

// Skips only where libzmq is not installed.
#define OPEN(name, kind)                                                          \
  auto opened_##name = ZmqSocket::open(kind);                                     \
  if (!opened_##name && opened_##name.error().code() == StatusCode::kUnavailable) \
    GTEST_SKIP() << opened_##name.error().message();                              \
  ASSERT_TRUE(opened_##name) << opened_##name.error().message();                  \
  ZmqSocket& name = *opened_##name

std::vector<std::string> next_message(ZmqSocket& socket) {
  const std::array<const ZmqSocket*, 1> sockets = {&socket};
  return wait_readable(sockets, seconds(10)) ? socket.receive() : std::vector<std::string>();
}

TEST(ZmqSocket, SubscribersGetWholeMessages) {
  OPEN(publisher, ZmqKind::kPublish);
  OPEN(subscriber, ZmqKind::kSubscribe);
  ASSERT_TRUE(publisher.bind("tcp://127.0.0.1:*").ok());
  ASSERT_TRUE(subscriber.connect(publisher.bound_endpoint()).ok());
  EXPECT_TRUE(subscriber.receive().empty());
  // What is published before the subscription has arrived is lost; so one is sent until one comes.
  const std::string large(1 << 20, 'x');
  const std::array<std::string_view, 3> frames = {"topic", std::string_view("\0\1", 2), large};
  const std::array<const ZmqSocket*, 1> sockets = {&subscriber};
  for (int i = 0; i < 1000 && !wait_readable(sockets, std::chrono::milliseconds(10)); ++i)
    ASSERT_TRUE(publisher.send(frames).ok());
  const std::vector<std::string> got = next_message(subscriber);
  EXPECT_EQ(got, (std::vector<std::string>{"topic", std::string("\0\1", 2), large}));
}

TEST(ZmqSocket, RoutersAnswerWhoAsked) {
  OPEN(router, ZmqKind::kRouter);
  OPEN(one, ZmqKind::kAsk);
  OPEN(two, ZmqKind::kAsk);
  ASSERT_TRUE(router.bind("tcp://127.0.0.1:*").ok());
  for (ZmqSocket* asker : {&one, &two}) ASSERT_TRUE(asker->connect(router.bound_endpoint()).ok());
  const std::array<std::string_view, 2> a = {"", "a"}, b = {"", "b"};
  ASSERT_TRUE(one.send(a).ok());
  ASSERT_TRUE(two.send(b).ok());
  for (int i = 0; i < 2; ++i) {
    const std::vector<std::string> asked = next_message(router);
    ASSERT_EQ(asked.size(), 3u);
    const std::string answer = asked[2] + "!";
    const std::array<std::string_view, 3> frames = {asked[0], "", answer};
    ASSERT_TRUE(router.send(frames).ok());
  }
  EXPECT_EQ(next_message(one), (std::vector<std::string>{"", "a!"}));
  EXPECT_EQ(next_message(two), (std::vector<std::string>{"", "b!"}));
}

TEST(ZmqSocket, ErrorsNameTheEndpoint) {
  OPEN(first, ZmqKind::kPublish);
  OPEN(second, ZmqKind::kPublish);
  ASSERT_TRUE(first.bind("tcp://127.0.0.1:*").ok());
  const Status taken = second.bind(first.bound_endpoint());
  EXPECT_EQ(taken.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(taken.message().find(first.bound_endpoint()), std::string::npos);
  EXPECT_EQ(second.bind("carrier-pigeon://x").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(second.connect("tcp://nowhere").code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier::net
