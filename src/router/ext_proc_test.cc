// The endpoint picker, spoken to as Envoy does: messages in protobuf's wire format over HTTP/2.
#include "router/ext_proc.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <random>
#include <thread>

#include "base/rng.h"
#include "net/test_grpc_client.h"
#include "router/ext_proc_messages.h"
#include "router/protobuf.h"
#include "router/router_server.h"
#include "router/test_worker.h"

namespace espalier::router {
namespace {

using namespace std::chrono_literals;

constexpr const char* kPath = "/envoy.service.ext_proc.v3.ExternalProcessor/Process";
constexpr const char* kAnswer =
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

std::string message_of(uint32_t number, std::string_view content) {
  std::string out;
  put_bytes(out, number, content);
  return out;
}

// field 2: of a request; 3: of an answer. mode: of the request's body, of a first message; -1: not
// stated.
std::string headers_message(uint32_t field, const net::Headers& headers, bool ends, int mode = -1,
                            std::string_view subset = "") {
  std::string map, content;
  for (const auto& [name, value] : headers) {
    std::string header;
    put_bytes(header, 1, name);
    put_bytes(header, 3, value);
    put_bytes(map, 1, header);
  }
  put_bytes(content, 1, map);
  if (ends) put_number(content, 3, 1);
  std::string out = message_of(field, content);
  if (!subset.empty()) {
    const auto entry = [](std::string_view key, std::string_view value) {
      std::string pair;
      put_bytes(pair, 1, key);
      put_bytes(pair, 2, value);
      return message_of(1, pair);
    };
    const std::string list = message_of(6, message_of(1, message_of(3, subset)));
    out += message_of(
        8, entry("envoy.lb.subset_hint", entry("x-gateway-destination-endpoint-subset", list)));
  }
  if (mode >= 0) {
    std::string config;
    put_number(config, 1, static_cast<uint64_t>(mode));
    put_bytes(out, 11, config);
  }
  return out;
}

std::string body_message(uint32_t field, std::string_view body, bool ends) {
  std::string content = message_of(1, body);
  if (ends) put_number(content, 2, 1);
  return message_of(field, content);
}

// The content of a field, at the end of a path of numbers; nothing where it is not there.
std::optional<std::string> at(std::string_view message, std::initializer_list<uint32_t> path) {
  for (const uint32_t number : path) {
    ProtoReader reader(message);
    ProtoField field;
    bool found = false;
    while (!found && reader.next(field)) found = field.number == number;
    if (!found) return std::nullopt;
    message = field.bytes;
  }
  return std::string(message);
}

class ExtProcTest : public testing::Test {
 protected:
  void start(RouterConfig config = {}) {
    config.port = config.ext_proc.port = 0;
    config.health.interval = 20ms;
    config.workers.slow_start = 0s;
    config.sources.urls = {one_.url(), two_.url()};
    auto server = RouterServer::start(std::move(config));
    ASSERT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
    for (int i = 0; i < 2000 && num_healthy() < 2; ++i) std::this_thread::sleep_for(5ms);
    ASSERT_EQ(num_healthy(), 2);
    client_ = std::make_unique<net::TestGrpcClient>(server_->ext_proc_port());
  }
  int num_healthy() const {
    int count = 0;
    for (const WorkerInfo& worker : server_->dispatcher().workers())
      count += worker.state == WorkerState::kHealthy ? 1 : 0;
    return count;
  }
  int32_t load() const {
    int32_t sum = 0;
    for (const WorkerInfo& worker : server_->dispatcher().workers())
      sum += worker.requests_in_flight;
    return sum;
  }
  void wait_for_no_load() {
    for (int i = 0; i < 2000 && load() > 0; ++i) std::this_thread::sleep_for(5ms);
    EXPECT_EQ(load(), 0);
    server_->dispatcher().check_invariants();
  }
  std::string endpoint(const TestWorker& worker) const { return worker.url().substr(7); }
  net::Headers head(std::string_view path = "/generate") const {
    return {{":method", "POST"}, {":path", std::string(path)}, {"x-espalier-tenant", "me"}};
  }
  // Sends it and returns what has come back by then, of which it must be the `count`th.
  std::string ask(int32_t id, const std::string& message, size_t count) {
    client_->send(id, message);
    EXPECT_TRUE(client_->run_until_messages(id, count));
    const auto messages = client_->call(id).messages();
    return messages.size() == count ? messages.back() : "";
  }

  TestWorker one_{kAnswer, [] { return Fate{}; }}, two_{kAnswer, [] { return Fate{}; }};
  std::unique_ptr<RouterServer> server_;
  std::unique_ptr<net::TestGrpcClient> client_;
};

TEST_F(ExtProcTest, PicksWithABufferedBody) {
  start();
  const int32_t id = client_->begin(kPath);
  EXPECT_EQ(ask(id, headers_message(2, head(), false, 2), 1), message_of(1, ""));
  const std::string answer = ask(id, body_message(4, R"({"text": "hello"})", true), 2);
  const auto set = at(answer, {3, 1, 2, 1, 1});
  ASSERT_TRUE(set) << "a header is set";
  EXPECT_EQ(at(*set, {1}), "x-gateway-destination-endpoint");
  const std::string picked = *at(*set, {3});
  EXPECT_TRUE(picked == endpoint(one_) || picked == endpoint(two_)) << picked;
  EXPECT_EQ(at(answer, {3, 1, 2, 2}), "x-espalier-tenant") << "what a client states of itself goes";
  EXPECT_EQ(at(answer, {8, 1, 1}), "envoy.lb");
  EXPECT_EQ(at(answer, {8, 1, 2, 5, 1, 2, 3}), picked);
  EXPECT_EQ(load(), 1);
  EXPECT_EQ(ask(id, headers_message(3, {{":status", "200"}}, false), 3), message_of(2, ""));
  EXPECT_EQ(ask(id, body_message(5, "{}", true), 4), message_of(4, ""));
  client_->half_close(id);
  ASSERT_TRUE(client_->run_until_closed(id));
  EXPECT_EQ(client_->call(id).headers["grpc-status"], "0");
  wait_for_no_load();
}

TEST_F(ExtProcTest, SendsABodyOnInFullDuplex) {
  start();
  const int32_t id = client_->begin(kPath);
  const std::string body = R"({"text": ")" + std::string(200000, 'x') + R"("})";
  client_->send(id, headers_message(2, head(), false, 4));
  client_->send(id, body_message(4, body.substr(0, 1000), false));
  client_->send(id, body_message(4, body.substr(1000), true));
  ASSERT_TRUE(client_->run_until_messages(id, 5));
  const auto messages = client_->call(id).messages();
  ASSERT_EQ(messages.size(), 5) << "the head, and 200 KB in parts of 60";
  EXPECT_TRUE(at(messages[0], {1, 1, 2, 1, 1, 3}));
  std::string sent;
  for (size_t i = 1; i < messages.size(); ++i) {
    sent += *at(messages[i], {3, 1, 3, 3, 1});
    EXPECT_EQ(at(messages[i], {3, 1, 3, 3, 2}).has_value(), i + 1 == messages.size());
  }
  EXPECT_EQ(sent, body);
  client_->reset(id);
  ASSERT_TRUE(client_->flush());
  wait_for_no_load();
}

TEST_F(ExtProcTest, FollowsWhatWasSent) {
  start();
  std::map<std::string, std::string> first;
  for (int round = 0; round < 3; ++round)
    for (const char* const talk : {"rivers", "hills", "lakes", "seas"}) {
      const int32_t id = client_->begin(kPath);
      client_->send(id, headers_message(2, head(), false, 4));
      std::string prompt;
      for (int i = 0; i < 30; ++i) prompt += fmt::format("{} {} ", talk, i);
      const std::string answer =
          ask(id, body_message(4, R"({"text": ")" + prompt + R"("})", true), 2);
      const std::string picked = *at(client_->call(id).messages()[0], {1, 1, 2, 1, 1, 3});
      EXPECT_EQ(first.emplace(talk, picked).first->second, picked) << talk;
      client_->half_close(id);
      ASSERT_TRUE(client_->run_until_closed(id));
    }
  wait_for_no_load();
}

TEST_F(ExtProcTest, KeepsToASubset) {
  start();
  for (const TestWorker* const worker : {&one_, &two_}) {
    const int32_t id = client_->begin(kPath);
    const std::string answer = ask(id, headers_message(2, head(), true, 0, endpoint(*worker)), 1);
    EXPECT_EQ(at(answer, {1, 1, 2, 1, 1, 3}), endpoint(*worker));
  }
  const int32_t id = client_->begin(kPath);
  const std::string answer = ask(id, headers_message(2, head(), true, 0, "10.9.9.9:1"), 1);
  ASSERT_TRUE(at(answer, {7, 1}));
  ProtoReader reader(*at(answer, {7, 1}));
  ProtoField status;
  ASSERT_TRUE(reader.next(status));
  EXPECT_EQ(status.value, 503);
}

TEST_F(ExtProcTest, NamesFallbacks) {
  RouterConfig config;
  config.ext_proc.fallbacks = 4;
  start(std::move(config));
  const int32_t id = client_->begin(kPath);
  const std::string answer = ask(id, headers_message(2, head(), true, 0), 1);
  const std::string picked = *at(answer, {1, 1, 2, 1, 1, 3});
  EXPECT_TRUE(picked == endpoint(one_) + "," + endpoint(two_) ||
              picked == endpoint(two_) + "," + endpoint(one_))
      << picked;
}

TEST_F(ExtProcTest, RefusesWhatIsNotPassedOn) {
  RouterConfig config;
  config.api_key = "secret";
  config.max_body_bytes = 1024;
  start(std::move(config));
  const auto status_of = [&](const net::Headers& headers, const std::string& body) {
    const int32_t id = client_->begin(kPath);
    client_->send(id, headers_message(2, headers, false, 4));
    const std::string answer = ask(id, body_message(4, body, true), 1);
    ProtoReader reader(at(answer, {7, 1}).value_or(""));
    ProtoField status;
    return reader.next(status) ? status.value : 0;
  };
  EXPECT_EQ(status_of(head("/flush_cache"), "{}"), 404);
  EXPECT_EQ(status_of(head("/generate%zz"), "{}"), 404);
  EXPECT_EQ(status_of(head(), "{}"), 401);
  net::Headers known = head();
  known.emplace_back("authorization", "Bearer secret");
  EXPECT_EQ(status_of(known, std::string(2000, 'x')), 413);
  EXPECT_EQ(load(), 0);
}

TEST_F(ExtProcTest, LivesThroughMessagesThatAreNone) {
  start();
  const uint64_t seed = std::random_device{}();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  Rng rng(seed);
  const std::vector<std::string> good = {headers_message(2, head(), false, 4, "10.9.9.9:1"),
                                         body_message(4, "{}", false), body_message(5, "x", true),
                                         headers_message(3, {{":status", "503"}}, false)};
  for (int i = 0; i < 300; ++i) {
    const int32_t id = client_->begin(kPath);
    for (uint64_t n = 1 + rng.below(5); n > 0; --n) {
      std::string message = good[rng.below(good.size())];
      for (uint64_t flips = rng.below(3); flips > 0; --flips)
        message[rng.below(message.size())] = static_cast<char>(rng.below(256));
      if (rng.below(4) == 0) message.resize(rng.below(message.size()));
      client_->send(id, message);
    }
    rng.below(2) == 0 ? client_->half_close(id) : client_->reset(id);
    ASSERT_TRUE(client_->flush());
  }
  const int32_t id = client_->begin(kPath);
  EXPECT_TRUE(at(ask(id, headers_message(2, head(), true, 0), 1), {1, 1, 2, 1, 1, 3}));
  client_->half_close(id);
  ASSERT_TRUE(client_->run_until_closed(id));
  wait_for_no_load();
}

TEST_F(ExtProcTest, BothPortsStopAtOnce) {
  start();
  const int32_t id = client_->begin(kPath);
  EXPECT_TRUE(at(ask(id, headers_message(2, head(), true, 0), 1), {1, 1, 2, 1, 1, 3}));
  std::thread stopping([&] { server_->stop(2min); });
  // While the call of the picker goes on.
  while (net::TestSocket(server_->port()).connected()) std::this_thread::yield();
  while (net::TestSocket(server_->ext_proc_port()).connected()) std::this_thread::yield();
  EXPECT_EQ(load(), 1);
  client_->half_close(id);
  EXPECT_TRUE(client_->run_until_closed(id));
  client_->socket().close();
  stopping.join();
  EXPECT_EQ(load(), 0);
}

TEST_F(ExtProcTest, StatesItsHealth) {
  start();
  for (const auto& [service, status] : {std::pair("", '\x01'), std::pair("readiness", '\x01')}) {
    const int32_t id = client_->begin("/grpc.health.v1.Health/Check");
    const std::string answer = ask(id, message_of(1, service), 1);
    EXPECT_EQ(answer, std::string("\x08") + status);
  }
  const int32_t id = client_->begin("/grpc.health.v1.Health/Check");
  client_->send(id, message_of(1, "other"));
  client_->half_close(id);
  ASSERT_TRUE(client_->run_until_closed(id));
  EXPECT_EQ(client_->call(id).headers["grpc-status"], "5");
}

}  // namespace
}  // namespace espalier::router
