#include "nodes/node_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "base/rng.h"
#include "nodes/test_nodes.h"

namespace espalier::nodes {
namespace {

using testing::HasSubstr;

// The first failure of a node, as its owner learns it.
struct Failure {
  std::promise<Status> promise;
  std::future<Status> future = promise.get_future();
  std::function<void(const Status&)> callback() {
    return [this](const Status& why) { promise.set_value(why); };
  }
};

TEST(NodeGroup, CarriesMessagesBetweenTheLeaderAndEachFollower) {
  const auto nodes = join_nodes(3);
  for (int32_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(nodes[0]->link(i).send(MessageType::kPlan, "plan", std::chrono::seconds(9)).ok());
    Link& link = nodes[static_cast<size_t>(i) + 1]->link(0);
    EXPECT_EQ(link.receive_one(MessageType::kPlan, 4, std::chrono::seconds(9)).value(), "plan");
  }
}

TEST(NodeGroup, RefusesAnotherTokenAndWaitsOn) {
  const int port = free_port();
  NodeGroupConfig stranger = node_config(1, 2, port);
  stranger.token = "guessed";
  auto leader = std::async([&] { return NodeGroup::join(node_config(0, 2, port)); });
  const auto refused = NodeGroup::join(stranger);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("--dist-token"));
  EXPECT_TRUE(NodeGroup::join(node_config(1, 2, port)));
  EXPECT_TRUE(leader.get());
}

TEST(NodeGroup, NamesWhatDiffersOnBothSides) {
  const int port = free_port();
  NodeGroupConfig other = node_config(1, 2, port);
  other.agreement[0].second = "other";
  for (const auto& joined : join_all({node_config(0, 2, port), other})) {
    ASSERT_FALSE(joined);
    EXPECT_THAT(joined.error().message(), HasSubstr("the model of node 1 is \"other\""));
  }
  for (const auto& joined : join_all({node_config(0, 2, port), node_config(1, 3, port)})) {
    ASSERT_FALSE(joined);
    EXPECT_THAT(joined.error().message(), HasSubstr("--nnodes 3"));
  }
}

TEST(NodeGroup, RefusesASecondNodeOfTheSameRank) {
  const int port = free_port();
  auto leader = std::async([&] { return NodeGroup::join(node_config(0, 3, port)); });
  auto first = std::async([&] { return NodeGroup::join(node_config(1, 3, port)); });
  auto second = std::async([&] { return NodeGroup::join(node_config(1, 3, port)); });
  // One of them is refused while the leader waits for node 2.
  const auto is_ready = [](auto& joining) {
    return joining.wait_for(std::chrono::milliseconds(1)) == std::future_status::ready;
  };
  while (!is_ready(first) && !is_ready(second)) continue;
  const Result<std::unique_ptr<NodeGroup>> a = is_ready(first) ? first.get() : second.get();
  auto& other = first.valid() ? first : second;
  if (a) other.wait();  // an accepted node may return before the other is refused
  auto third = std::async([&] { return NodeGroup::join(node_config(2, 3, port)); });
  ASSERT_TRUE(leader.get());
  const auto b = other.get();
  EXPECT_TRUE(third.get());
  EXPECT_NE(a.has_value(), b.has_value());
  EXPECT_THAT((a ? b : a).error().message(), HasSubstr("--node-rank"));
}

TEST(NodeGroup, EndsItsWaitingForNodesThatDoNotCome) {
  const int port = free_port();
  NodeGroupConfig leader = node_config(0, 2, port), follower = node_config(1, 2, port);
  leader.join_timeout = follower.join_timeout = std::chrono::milliseconds(50);
  const auto alone = NodeGroup::join(leader);
  ASSERT_FALSE(alone);
  EXPECT_THAT(alone.error().message(), HasSubstr("node 1 has not joined"));
  const auto lost = NodeGroup::join(follower);
  ASSERT_FALSE(lost);
  EXPECT_THAT(lost.error().message(), HasSubstr("--dist-init-addr"));
}

TEST(NodeGroup, ReportsAPortInUse) {
  const auto listener = net::TcpListener::listen("127.0.0.1", 0).value();
  const auto leader = NodeGroup::join(node_config(0, 2, listener->port()));
  ASSERT_FALSE(leader);
  EXPECT_THAT(leader.error().message(), HasSubstr("in use"));
}

TEST(NodeGroup, SendsTheOthersTheReasonOfAFailure) {
  const int port = free_port();
  Failure failures[3];
  std::vector<NodeGroupConfig> configs;
  for (int32_t node = 0; node < 3; ++node) {
    configs.push_back(node_config(node, 3, port));
    configs.back().on_failure = failures[node].callback();
  }
  const auto nodes = join_all(configs);
  (*nodes[2])->set_failure(error(StatusCode::kInternal, "no memory"));
  EXPECT_THAT(failures[0].future.get().message(), HasSubstr("node 2 ended: no memory"));
  EXPECT_THAT(failures[1].future.get().message(), HasSubstr("no memory"));
  EXPECT_EQ((*nodes[2])->status().message(), "no memory");
}

TEST(NodeGroup, TakesAGoodbyeOfTheLeaderAsTheEndAndOfAFollowerAsAFailure) {
  auto nodes = join_nodes(2);
  nodes[0]->leave();
  EXPECT_FALSE(nodes[1]->set_broken(error(StatusCode::kUnavailable, "broken")));
  EXPECT_TRUE(nodes[1]->ok());
  EXPECT_TRUE(nodes[1]->has_ended());
  nodes = join_nodes(2);
  nodes[1]->leave();
  EXPECT_TRUE(nodes[0]->set_broken(error(StatusCode::kUnavailable, "broken")));
  EXPECT_THAT(nodes[0]->status().message(), HasSubstr("node 1 was stopped"));
}

TEST(NodeGroup, FindsANodeThatFallsSilent) {
  const int port = free_port();
  NodeGroupConfig leader = node_config(0, 2, port), follower = node_config(1, 2, port);
  Failure failure;
  leader.silence_max = std::chrono::milliseconds(200);
  follower.silence_max = std::chrono::hours(1);  // so that its beats are rare
  leader.on_failure = failure.callback();
  const auto nodes = join_all({leader, follower});
  EXPECT_THAT(failure.future.get().message(), HasSubstr("no sign of life"));
  const auto received =
      (*nodes[0])->link(0).receive(100, std::chrono::seconds(60));  // it was interrupted
  EXPECT_FALSE(received);
}

// Whatever a caller sends, the leader goes on, and takes the node that follows.
TEST(NodeGroup, TakesAnyBytesOfCallers) {
  const int port = free_port();
  auto leader = std::async([&] { return NodeGroup::join(node_config(0, 2, port)); });
  Rng rng(5);
  for (int round = 0; round < 30; ++round) {
    net::ByteStream caller;
    while (!caller.connect({.host = "127.0.0.1", .port = port}).ok()) std::this_thread::yield();
    std::string bytes(rng() % 64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(rng());
    if (round % 3 == 0) bytes.insert(0, std::string("\0\0\0\x30\x02", 5));  // a kHello of 48 bytes
    static_cast<void>(caller.write_all(bytes, std::chrono::seconds(9)));
  }
  EXPECT_TRUE(NodeGroup::join(node_config(1, 2, port)));
  EXPECT_TRUE(leader.get());
}

}  // namespace
}  // namespace espalier::nodes
