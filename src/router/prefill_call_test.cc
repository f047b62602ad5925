// Pairs of workers over real sockets: both halves get the room, the decode worker's answer is the
// client's, and a half that fails before the client has seen anything is replaced.
#include "router/prefill_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "net/client.h"
#include "router/router_server.h"
#include "router/test_worker.h"

namespace espalier::router {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

TEST(BodyWithRoom, AddsFieldsBehindTheClients) {
  EXPECT_EQ(body_with_room(R"({"a":1})", "10.0.0.1", 8998, 5),
            R"({"a":1,"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":5})");
  EXPECT_EQ(body_with_room(" { } \n", "h", 1, 2),
            R"( { "bootstrap_host":"h","bootstrap_port":1,"bootstrap_room":2})");
  for (const char* body : {"", "[]", "}", "null", "{", "  "})
    EXPECT_EQ(body_with_room(body, "h", 1, 2), "") << body;
  std::set<uint64_t> rooms;
  for (int i = 0; i < 1000; ++i) rooms.insert(draw_room());
  EXPECT_EQ(rooms.size(), 1000u);
  EXPECT_LT(*rooms.rbegin(), uint64_t{1} << 63);
}

TEST(PrefillWorkers, AUrlMayHaveAPort) {
  const auto ports = parse_prefill_workers({"http://a:1", "http://b:2", "9000", "c:3"});
  ASSERT_TRUE(ports) << ports.error().message();
  EXPECT_EQ(*ports, (std::map<std::string, int>{
                        {"http://a:1", 8998}, {"http://b:2", 9000}, {"http://c:3", 8998}}));
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"9000"}, {"http://a:1", "0"}, {"http://a:1", "70000"}, {"http://a:1", "1", "2"}})
    EXPECT_FALSE(parse_prefill_workers(words)) << words.back();
}

constexpr std::string_view kDone =
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
constexpr std::string_view kWrong =
    "HTTP/1.1 400 No\r\nContent-Type: application/json\r\nContent-Length: 13\r\n"
    "Connection: close\r\n\r\n{\"error\":\"x\"}";

// What each worker does in turn; then it answers.
class Fates {
 public:
  explicit Fates(std::vector<Fate> fates = {}) : fates_(std::move(fates)) {}
  std::function<Fate()> next() {
    return [this] {
      std::lock_guard lock(mutex_);
      return at_ < fates_.size() ? fates_[at_++] : Fate{};
    };
  }

 private:
  std::mutex mutex_;
  std::vector<Fate> fates_;
  size_t at_ = 0;
};

class PairsTest : public testing::Test {
 protected:
  void start(std::vector<std::string> prefill, std::vector<std::string> decode) {
    RouterConfig config;
    config.port = 0;
    config.policy.name = "round_robin";
    config.health.interval = 20ms;
    config.workers.slow_start = 0s;
    config.workers.breaker.failure_threshold = 1000000;
    config.proxy.retry_reserve = 1000000;
    config.proxy.retry_backoff = 1ms;
    config.sources.prefill = std::move(prefill);
    config.sources.urls = std::move(decode);
    auto server = RouterServer::start(std::move(config));
    ASSERT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
    const size_t num_workers = server_->dispatcher().workers().size();
    const auto num_healthy = [&] {
      size_t count = 0;
      for (const WorkerInfo& worker : server_->dispatcher().workers())
        count += worker.state == WorkerState::kHealthy ? 1 : 0;
      return count;
    };
    while (num_healthy() < num_workers) std::this_thread::sleep_for(5ms);
  }
  net::HttpResponse post(const std::string& path = "/generate") {
    auto client = net::HttpClient::create("http://127.0.0.1:" + std::to_string(server_->port()));
    auto answer = client->post(path, R"({"text":"x"})");
    EXPECT_TRUE(answer) << answer.error().to_string();
    return answer ? std::move(*answer) : net::HttpResponse{};
  }
  static std::string body_of(const TestWorker& worker) {
    const std::string request = worker.last_request();
    return request.substr(request.find("\r\n\r\n") + 4);
  }

  const std::string answer_ = event_stream_answer({R"({"text":"one"})", "[DONE]"});
  std::unique_ptr<RouterServer> server_;
};

TEST_F(PairsTest, BothHalvesGetTheSameRoom) {
  Fates fates;
  TestWorker prefill(std::string(kDone), fates.next()), decode(answer_, fates.next());
  start({prefill.url(), "1234"}, {decode.url()});
  std::set<std::string> bodies;
  for (int i = 0; i < 3; ++i) {
    const net::HttpResponse answer = post();
    EXPECT_EQ(answer.status, 200);
    EXPECT_THAT(answer.body, HasSubstr("one"));
    while (prefill.num_requests() <= i) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(body_of(prefill), body_of(decode));
    EXPECT_THAT(body_of(decode),
                HasSubstr(R"("bootstrap_host":"127.0.0.1","bootstrap_port":1234)"));
    bodies.insert(body_of(decode));
  }
  EXPECT_EQ(bodies.size(), 3u) << "a room for each request";
  (void)post("/tokenize");  // a route of one worker
  EXPECT_EQ(prefill.num_requests(), 3);
  EXPECT_EQ(decode.num_requests(), 4);
  EXPECT_EQ(body_of(decode), R"({"text":"x"})");
  server_.reset();
}

TEST_F(PairsTest, AFailedHalfIsReplaced) {
  for (const Fate failing :
       {Fate{Fate::Kind::kRefuse}, Fate{Fate::Kind::kCut, 0}, Fate{Fate::Kind::kCut, 9}}) {
    Fates bad({failing});
    TestWorker prefill(std::string(kDone), bad.next());
    TestWorker decode(answer_, [&] {  // it waits for its prompt, as a decode server does
      while (prefill.num_requests() < 2) std::this_thread::sleep_for(1ms);
      return Fate{};
    });
    start({prefill.url()}, {decode.url()});
    const net::HttpResponse answer = post();
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("one"));
    EXPECT_EQ(prefill.num_requests(), 2);
    server_.reset();
  }
  // And a decode worker that fails: both halves are sent again.
  Fates good, bad({Fate{Fate::Kind::kRefuse}});
  TestWorker prefill(std::string(kDone), good.next()), decode(answer_, bad.next());
  start({prefill.url()}, {decode.url()});
  EXPECT_EQ(post().status, 200);
  EXPECT_EQ(decode.num_requests(), 2);
  server_.reset();
}

TEST_F(PairsTest, WhatIsWrongWithARequestIsItsAnswer) {
  Fates good, waits({Fate{Fate::Kind::kStall, 0}});
  TestWorker prefill(std::string(kWrong), good.next()), decode(answer_, waits.next());
  start({prefill.url()}, {decode.url()});
  const net::HttpResponse answer = post();
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.body, R"({"error":"x"})");
  server_.reset();
}

TEST_F(PairsTest, WithoutAPrefillWorkerTheRequestIsRefused) {
  Fates fates;
  TestWorker prefill(std::string(kDone), fates.next()), decode(answer_, fates.next());
  start({prefill.url()}, {decode.url()});
  ASSERT_TRUE(server_->dispatcher().drain_worker(prefill.url(), false).ok());
  const net::HttpResponse answer = post();
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, HasSubstr("prefill worker"));
  EXPECT_EQ(decode.num_requests(), 0);
  server_.reset();
}

}  // namespace
}  // namespace espalier::router
