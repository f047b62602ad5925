#include "net/grpc_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "base/rng.h"
#include "net/client.h"
#include "net/test_grpc_client.h"
#include "net/test_identity.h"

namespace espalier::net {
namespace {

std::atomic<int> handlers_alive{0};

// Sends every message back, reversed, and ends when the client does.
class Reverser final : public GrpcHandler {
 public:
  Reverser() { ++handlers_alive; }
  ~Reverser() override { --handlers_alive; }
  void on_message(GrpcCall& call, std::string_view message) override {
    if (message == "fail") return call.finish(GrpcStatus::kInternal, "100 % wrong\n");
    call.send(std::string(message.rbegin(), message.rend()));
  }
  void on_end(GrpcCall& call) override { call.finish(GrpcStatus::kOk, ""); }
};

std::unique_ptr<GrpcServer> start_server(GrpcServerConfig config = {}) {
  config.methods["/test.Test/Reverse"] = [] { return std::make_unique<Reverser>(); };
  auto address = BoundAddress::bind("127.0.0.1", 0);
  EXPECT_TRUE(address) << address.error().message();
  auto server = GrpcServer::start(std::move(config), std::move(*address));
  EXPECT_TRUE(server) << server.error().message();
  return std::move(*server);
}

void wait_for_no_handlers() {
  for (int i = 0; i < 10000 && handlers_alive != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(handlers_alive, 0);
}

TEST(GrpcServerTest, AnswersMessagesOfManyCalls) {
  const uint64_t seed = 7;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  const auto server = start_server({.num_threads = 2});
  TestGrpcClient client(server->port());
  std::map<int32_t, std::vector<std::string>> sent;
  for (int i = 0; i < 40; ++i) {
    const int32_t id = client.begin("/test.Test/Reverse");
    for (uint64_t n = rng.below(5); n > 0; --n) {
      const size_t size = rng.below(10) == 0 ? rng.below(300000) : rng.below(100);
      std::string message(size, 'a');
      for (char& c : message) c = static_cast<char>(rng.below(256));
      client.send(id, message);
      sent[id].emplace_back(message.rbegin(), message.rend());
      ASSERT_TRUE(client.flush(1 + rng.below(5000)));
    }
    client.half_close(id);
  }
  for (auto& [id, messages] : sent) {
    ASSERT_TRUE(client.run_until_closed(id));
    EXPECT_EQ(client.call(id).messages(), messages);
    EXPECT_EQ(client.call(id).headers[":status"], "200");
    EXPECT_EQ(client.call(id).headers["content-type"], "application/grpc");
    EXPECT_EQ(client.call(id).headers["grpc-status"], "0");
  }
  wait_for_no_handlers();
}

TEST(GrpcServerTest, AnswersBeforeTheClientEnds) {
  const auto server = start_server();
  TestGrpcClient client(server->port());
  const int32_t id = client.begin("/test.Test/Reverse");
  for (size_t i = 1; i <= 3; ++i) {
    client.send(id, "abc");
    ASSERT_TRUE(client.run_until_messages(id, i));
  }
  client.reset(id);
  ASSERT_TRUE(client.flush());
  wait_for_no_handlers();
  const int32_t failed = client.begin("/test.Test/Reverse");
  client.send(failed, "fail");
  ASSERT_TRUE(
      client.run_until([&] { return client.call(failed).headers.contains("grpc-status"); }));
  EXPECT_EQ(client.call(failed).headers["grpc-status"], "13");
  EXPECT_EQ(client.call(failed).headers["grpc-message"], "100 %25 wrong%0A");
}

TEST(GrpcServerTest, RefusesWhatItCannotAnswer) {
  const auto server = start_server({.max_message_bytes = 1000});
  TestGrpcClient client(server->port());
  const int32_t unknown = client.begin("/test.Test/Other");
  client.half_close(unknown);
  ASSERT_TRUE(client.run_until_closed(unknown));
  EXPECT_EQ(client.call(unknown).headers["grpc-status"], "12");
  const int32_t other_type = client.begin("/test.Test/Reverse", "application/json");
  client.half_close(other_type);
  ASSERT_TRUE(client.run_until_closed(other_type));
  EXPECT_EQ(client.call(other_type).headers[":status"], "415");
  const int32_t compressed = client.begin("/test.Test/Reverse");
  std::string frame = grpc_frame("abc");
  frame[0] = 1;
  client.send_raw(compressed, frame);
  client.half_close(compressed);
  ASSERT_TRUE(client.run_until_closed(compressed));
  EXPECT_EQ(client.call(compressed).headers["grpc-status"], "12");
  const int32_t large = client.begin("/test.Test/Reverse");
  client.send(large, std::string(1001, 'a'));
  client.half_close(large);
  ASSERT_TRUE(client.run_until_closed(large));
  EXPECT_EQ(client.call(large).headers["grpc-status"], "8");
  wait_for_no_handlers();
}

TEST(GrpcServerTest, EndsACallWhoseAnswerIsNotRead) {
  const auto server = start_server({.max_pending_bytes = 100000});
  TestGrpcClient client(server->port());
  const int32_t id = client.begin("/test.Test/Reverse");
  // The window of a client's stream is 64 KiB, so 100,000 bytes soon wait.
  for (int i = 0; i < 40; ++i) client.send(id, std::string(20000, 'a'));
  ASSERT_TRUE(client.run_until([&] { return client.call(id).headers.contains("grpc-status"); }));
  EXPECT_EQ(client.call(id).headers["grpc-status"], "8");
}

TEST(GrpcServerTest, LivesThroughBrokenConnections) {
  const uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Rng rng(seed);
  const auto server = start_server();
  for (int i = 0; i < 50; ++i) {
    TestGrpcClient client(server->port());
    const int32_t id = client.begin("/test.Test/Reverse");
    client.send(id, std::string(rng.below(3000), 'x'));
    ASSERT_TRUE(client.flush());
    std::string noise(rng.below(200), '\0');
    for (char& c : noise) c = static_cast<char>(rng.below(256));
    client.socket().write(noise);
  }
  TestGrpcClient client(server->port());
  const int32_t id = client.begin("/test.Test/Reverse");
  client.send(id, "abc");
  client.half_close(id);
  ASSERT_TRUE(client.run_until_closed(id));
  EXPECT_EQ(client.call(id).messages(), std::vector<std::string>{"cba"});
  wait_for_no_handlers();
}

// Envoy resets every call that it has ended.
TEST(GrpcServerTest, TakesManyResets) {
  const auto server = start_server();
  TestGrpcClient client(server->port());
  for (int i = 0; i < 5000; ++i) {
    const int32_t id = client.begin("/test.Test/Reverse");
    ASSERT_TRUE(client.flush());  // else nothing of it would be sent
    client.reset(id);
    ASSERT_TRUE(client.flush());
  }
  const int32_t id = client.begin("/test.Test/Reverse");
  client.send(id, "abc");
  client.half_close(id);
  ASSERT_TRUE(client.run_until_closed(id));
  EXPECT_EQ(client.call(id).messages(), std::vector<std::string>{"cba"});
  EXPECT_EQ(client.call(id).headers["grpc-status"], "0");
  wait_for_no_handlers();
}

TEST(GrpcServerTest, ClosesConnectionsWithoutAGreeting) {
  const auto server = start_server({.greeting_timeout = std::chrono::milliseconds(50)});
  TestSocket silent(server->port());
  silent.read_to_end();
  EXPECT_TRUE(silent.at_end());
}

TEST(GrpcServerTest, RefusesConnectionsBeyondTheBound) {
  const auto server = start_server({.max_connections = 1});
  TestGrpcClient client(server->port());
  const int32_t id = client.begin("/test.Test/Reverse");
  client.send(id, "abc");
  ASSERT_TRUE(client.run_until_messages(id, 1));
  TestSocket second(server->port());
  EXPECT_EQ(second.read_to_end(), "");
  EXPECT_TRUE(second.at_end());
  client.send(id, "def");
  EXPECT_TRUE(client.run_until_messages(id, 2));
}

// Far more than is read in one turn, and than is kept of what was sent.
TEST(GrpcServerTest, AnswersALongMessage) {
  const auto server = start_server();
  TestGrpcClient client(server->port());
  const int32_t id = client.begin("/test.Test/Reverse");
  std::string message(8 << 20, '\0');
  for (size_t i = 0; i < message.size(); ++i) message[i] = static_cast<char>(i * 2654435761U >> 24);
  client.send(id, message);
  client.half_close(id);
  ASSERT_TRUE(client.run_until_closed(id));
  ASSERT_EQ(client.call(id).messages().size(), 1U);
  EXPECT_TRUE(client.call(id).messages()[0] == std::string(message.rbegin(), message.rend()));
}

TEST(GrpcServerTest, StopEndsCallsUnderWay) {
  auto server = start_server();
  TestGrpcClient client(server->port());
  const int32_t id = client.begin("/test.Test/Reverse");
  client.send(id, "abc");
  ASSERT_TRUE(client.run_until_messages(id, 1));
  server->stop(Duration::zero());
  EXPECT_EQ(handlers_alive, 0);
  EXPECT_FALSE(client.run_until_closed(id)) << "the connection has ended";
}

TEST(GrpcServerTest, StopWaitsForCallsUnderWay) {
  auto server = start_server();
  TestGrpcClient client(server->port());
  const int32_t id = client.begin("/test.Test/Reverse");
  client.send(id, "abc");
  ASSERT_TRUE(client.run_until_messages(id, 1));
  std::thread stopping([&] { server->stop(std::chrono::minutes(2)); });
  while (TestSocket(server->port()).connected()) std::this_thread::yield();
  client.send(id, "def");
  EXPECT_TRUE(client.run_until_messages(id, 2));
  client.half_close(id);
  EXPECT_TRUE(client.run_until_closed(id));
  EXPECT_EQ(client.call(id).headers["grpc-status"], "0");
  client.socket().close();
  stopping.join();  // which the last call has ended
}

}  // namespace
}  // namespace espalier::net
