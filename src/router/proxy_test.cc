// The proxy over real sockets, with workers that fail at any point of their answers.
#include "router/proxy.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/rng.h"
#include "net/client.h"
#include "net/http_server.h"
#include "router/router_server.h"
#include "router/test_worker.h"

namespace espalier::router {
namespace {

using namespace std::chrono_literals;

template <typename Condition>
bool comes_true(Condition condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

RouterConfig config_of(std::vector<std::string> urls) {
  RouterConfig config;
  config.port = 0;
  config.sources.urls = std::move(urls);
  config.policy.name = "round_robin";
  config.health.interval = 20ms;
  config.workers.slow_start = 0s;
  config.workers.breaker.failure_threshold = 1000000;
  config.proxy.retry_reserve = 1000000;
  config.proxy.retry_backoff = 1ms;
  return config;
}

std::unique_ptr<RouterServer> start(RouterConfig config) {
  const size_t num_workers = config.sources.urls.size();
  auto server = RouterServer::start(std::move(config));
  EXPECT_TRUE(server) << server.error().message();
  EXPECT_TRUE(comes_true([&] {
    size_t healthy = 0;
    for (const WorkerInfo& worker : (*server)->dispatcher().workers())
      healthy += worker.state == WorkerState::kHealthy ? 1 : 0;
    return healthy == num_workers;
  })) << "the workers are not healthy";
  return std::move(*server);
}

net::HttpClient client_of(const RouterServer& server) {
  return *net::HttpClient::create("http://127.0.0.1:" + std::to_string(server.port()));
}

const std::vector<std::string> kStreamEvents = {R"({"text":"one"})", R"({"text":"two"})",
                                                R"({"text":"three"})", "[DONE]"};

// What a client may see of a stream: all events, or a part of them and then an error.
struct Seen {
  bool is_whole = false, has_error = false, is_prefix = true;
  int status = 0;
};
Seen stream(net::HttpClient& client) {
  Seen seen;
  size_t next = 0;
  const auto answer =
      client.post_stream("/generate", R"({"text":"x","stream":true})", [&](std::string_view data) {
        if (data.find("\"error\"") != std::string_view::npos) {
          seen.has_error = true;
        } else if (!seen.has_error) {
          seen.is_prefix =
              seen.is_prefix && next < kStreamEvents.size() && data == kStreamEvents[next++];
        }
        return true;
      });
  seen.status = answer ? answer->status : 0;
  seen.is_whole = next == kStreamEvents.size();
  return seen;
}

// One worker fails at a byte that is drawn, the others answer: a request of which the client has
// seen nothing succeeds elsewhere, and every other one ends with an error after a part of the
// events.
TEST(Proxy, FailuresAtEveryPoint) {
  const std::string answer = event_stream_answer(kStreamEvents);
  const size_t head = answer.find("\r\n\r\n") + 4;
  const uint64_t seed = 24;
  SCOPED_TRACE(seed);
  Rng rng(seed);
  std::mutex mutex;  // guards the next
  Fate next;
  bool is_next = false;
  const auto fate = [&] {
    std::lock_guard lock(mutex);
    return std::exchange(is_next, false) ? next : Fate{};
  };
  TestWorker one(answer, fate), two(answer, fate), three(answer, fate);
  const auto server = start(config_of({one.url(), two.url(), three.url()}));
  net::HttpClient client = client_of(*server);
  int num_cut = 0;
  for (int i = 0; i < 400; ++i) {
    const Fate drawn{rng.below(5) == 0 ? Fate::Kind::kRefuse : Fate::Kind::kCut,
                     rng.below(answer.size())};
    {
      std::lock_guard lock(mutex);
      next = drawn;
      is_next = true;
    }
    const Seen seen = stream(client);
    ASSERT_EQ(seen.status, 200) << "byte " << drawn.at;
    ASSERT_TRUE(seen.is_prefix) << "byte " << drawn.at;
    ASSERT_NE(seen.has_error, seen.is_whole && !seen.has_error) << "byte " << drawn.at;
    if (drawn.kind == Fate::Kind::kRefuse || drawn.at <= head) {
      ASSERT_TRUE(seen.is_whole) << "byte " << drawn.at;
    }
    num_cut += seen.has_error ? 1 : 0;
  }
  EXPECT_GT(num_cut, 50);
  server->dispatcher().check_invariants();
  EXPECT_TRUE(comes_true([&] {
    for (const WorkerInfo& worker : server->dispatcher().workers())
      if (worker.requests_in_flight != 0) return false;
    return true;
  })) << "a lease was not given back";
}

TEST(Proxy, ShortAnswersAreTriedAgainWhereverTheyBreak) {
  const std::string answer =
      "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nX-Mine: 1\r\nDate: x\r\n\r\n0123456789";
  std::atomic<size_t> at{0};
  TestWorker bad(answer, [&] { return Fate{Fate::Kind::kCut, at}; });
  TestWorker good(answer, [] { return Fate{}; });
  const auto server = start(config_of({bad.url(), good.url()}));
  net::HttpClient client = client_of(*server);
  for (at = 0; at < answer.size(); ++at) {
    const auto seen = client.post("/generate", R"({"text":"x"})");
    ASSERT_TRUE(seen) << seen.error().message();
    ASSERT_EQ(seen->status, 200);
    ASSERT_EQ(seen->body, "0123456789");
    ASSERT_NE(net::find_header(seen->headers, "X-Mine"), nullptr);
    ASSERT_EQ(std::ranges::count_if(seen->headers, [](const auto& h) { return h.first == "Date"; }),
              1);
    ASSERT_NE(net::find_header(seen->headers, "X-Request-Id"), nullptr);
  }
  EXPECT_GT(bad.num_requests(), 10);
}

TEST(Proxy, WithoutAWorkerRequestsGetA503InTheirDialect) {
  RouterConfig config = config_of({});
  config.proxy.max_retries = 1;
  const auto server = start(config);
  net::HttpClient client = client_of(*server);
  const auto openai = client.post("/v1/chat/completions", R"({"messages":[]})");
  EXPECT_EQ(openai->status, 503);
  EXPECT_NE(openai->body.find("no worker"), std::string::npos);
  EXPECT_TRUE(client.post("/v1/messages", "{}")->body.starts_with(R"({"type":"error")"));
  EXPECT_TRUE(client.post("/api/chat", "{}")->body.starts_with(R"({"error":")"));
}

TEST(Proxy, AClientThatLeavesEndsItsWorkersWork) {
  const std::string answer = event_stream_answer(kStreamEvents);
  TestWorker worker(answer, [&] { return Fate{Fate::Kind::kStall, answer.size() - 40}; });
  const auto server = start(config_of({worker.url()}));
  net::HttpClient client = client_of(*server);
  (void)client.post_stream("/generate", "{}", [](std::string_view) { return false; });
  EXPECT_TRUE(comes_true([&] { return worker.num_gone() == 1; }));
  EXPECT_TRUE(
      comes_true([&] { return server->dispatcher().workers()[0].requests_in_flight == 0; }));
}

// A worker that keeps its connections and answers nothing any more, as a stopped process does.
TEST(Proxy, AWorkerThatFailsItsChecksIsGivenUp) {
  const std::string answer = event_stream_answer(kStreamEvents);
  const size_t head = answer.find("\r\n\r\n") + 4;
  std::atomic<size_t> at{head};
  TestWorker stalled(answer, [&] { return Fate{Fate::Kind::kStall, at}; });
  TestWorker good(answer, [] { return Fate{}; });
  const auto server = start(config_of({stalled.url(), good.url()}));
  for (const size_t point : {size_t{0}, head, answer.size() - 40}) {
    at = point;
    stalled.set_healthy(true);
    ASSERT_TRUE(comes_true(
        [&] { return server->dispatcher().workers()[0].state == WorkerState::kHealthy; }));
    const int before = stalled.num_requests();
    std::thread breaker([&] {
      EXPECT_TRUE(comes_true([&] { return stalled.num_requests() > before; }));
      stalled.set_healthy(false);
    });
    net::HttpClient client = client_of(*server);
    Seen seen;
    for (int i = 0; i < 2; ++i) {  // one of the two goes to the stalled worker
      seen = stream(client);
      if (stalled.num_requests() > before) break;
    }
    breaker.join();
    EXPECT_TRUE(seen.is_prefix);
    EXPECT_EQ(seen.is_whole, point <= head) << "nothing was seen: the other worker answers";
    EXPECT_EQ(seen.has_error, point > head);
  }
}

// The interval is for workers that are well: checks of one in doubt follow each other.
TEST(Proxy, AWorkerInDoubtIsCheckedAtOnce) {
  TestWorker worker(event_stream_answer(kStreamEvents), [] { return Fate{}; });
  RouterConfig config = config_of({worker.url()});
  config.health.interval = 1s;
  config.workers.health_failure_threshold = 60;
  const auto server = start(std::move(config));
  worker.set_healthy(false);
  EXPECT_TRUE(comes_true([&] {
    return server->dispatcher().workers()[0].state == WorkerState::kBroken;
  })) << "60 checks a second apart";
}

TEST(Proxy, HeadersPassAndKeysAreReplaced) {
  // A worker that answers with the head that it got.
  net::Router router;
  ASSERT_TRUE(router
                  .add("POST", "/generate",
                       [](net::HttpRequest&& request, net::ResponsePtr response) {
                         std::string text = request.query + "\n";
                         for (const auto& [name, value] : request.headers)
                           text += name + ": " + value + "\n";
                         response->send(net::HttpResponse::text(200, text + request.body));
                       })
                  .ok());
  ASSERT_TRUE(router
                  .add("GET", "/health",
                       [](net::HttpRequest&&, net::ResponsePtr response) {
                         response->send(net::HttpResponse::text(200, ""));
                       })
                  .ok());
  const auto worker = *net::HttpServer::start({}, std::move(router));
  RouterConfig config = config_of({"http://127.0.0.1:" + std::to_string(worker->port())});
  config.proxy.worker_api_key = "inner";
  const auto server = start(config);
  net::HttpClient client = client_of(*server);
  const auto seen = client.request("POST", "/generate?a=b%20c", "{}",
                                   {{"Authorization", "Bearer outer"},
                                    {"traceparent", "00-1-2-01"},
                                    {"X-Request-Id", "mine"},
                                    {"Connection", "keep-alive"}});
  ASSERT_TRUE(seen);
  EXPECT_NE(seen->body.find("a=b%20c\n"), std::string::npos) << seen->body;
  EXPECT_NE(seen->body.find("traceparent: 00-1-2-01\n"), std::string::npos);
  EXPECT_NE(seen->body.find("Authorization: Bearer inner\n"), std::string::npos);
  EXPECT_EQ(seen->body.find("outer"), std::string::npos);
  EXPECT_NE(seen->body.find("X-Request-Id: mine\n"), std::string::npos);
  EXPECT_EQ(*net::find_header(seen->headers, "X-Request-Id"), "mine");
}

// Text goes to a worker until its /tokenize answers as the router's tokenizer does, and ids after.
TEST(Proxy, WorkersWithTheRoutersTokenizerGetIds) {
  const std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
  std::atomic<bool> is_busy{false};
  TestWorker same(answer,
                  [&] { return Fate{is_busy ? Fate::Kind::kRefuse : Fate::Kind::kAnswer}; });
  TestWorker other(answer, [] { return Fate{}; });
  other.set_tokens("[3,4,6]");
  RouterConfig config = config_of({same.url(), other.url()});
  config.proxy.sends_ids = true;
  config.proxy.tokenize = [](const PassedRoute&, std::string_view body) {
    return TokenizedPrompt{{3, 4, 5}, body.find("long") == std::string_view::npos};
  };
  const auto server = start(std::move(config));
  const auto is_known = [&](std::optional<TakenIds> takes_ids, size_t worker) {
    return comes_true(
        [&] { return server->dispatcher().workers()[worker].takes_ids == takes_ids; });
  };
  ASSERT_TRUE(is_known(TakenIds{}, 0) && is_known(TakenIds{}, 1))
      << "neither has the router's tokens";
  net::HttpClient client = client_of(*server);
  const auto post_to_both = [&](std::string_view body) {  // in turn
    for (int i = 0; i < 2; ++i) ASSERT_EQ(client.post("/generate", std::string(body))->status, 200);
  };
  post_to_both(R"({"text":"a"})");
  EXPECT_TRUE(same.last_request().ends_with(R"({"text":"a"})")) << same.last_request();
  same.set_tokens("[3,4,5]");
  ASSERT_TRUE(is_known(TakenIds{true, true}, 0));
  post_to_both(R"({"text":"b"})");
  EXPECT_TRUE(same.last_request().ends_with(R"({"input_ids":[3,4,5]})")) << same.last_request();
  EXPECT_TRUE(other.last_request().ends_with(R"({"text":"b"})")) << other.last_request();
  for (int i = 0; i < 2; ++i)
    ASSERT_EQ(client.post("/v1/chat/completions", R"({"messages":["m"]})")->status, 200);
  EXPECT_TRUE(same.last_request().ends_with(R"({"input_ids":[3,4,5],"messages":["m"]})"))
      << same.last_request();
  EXPECT_TRUE(other.last_request().ends_with(R"({"messages":["m"]})")) << other.last_request();
  is_busy = true;  // the same request is tried at the other worker, as text
  post_to_both(R"({"text":"c"})");
  EXPECT_TRUE(same.last_request().ends_with(R"({"input_ids":[3,4,5]})"));
  EXPECT_TRUE(other.last_request().ends_with(R"({"text":"c"})")) << other.last_request();
  is_busy = false;
  post_to_both(R"({"text":"long"})");  // its tokens are not all known
  EXPECT_TRUE(same.last_request().ends_with(R"({"text":"long"})")) << same.last_request();
  same.set_healthy(false);
  ASSERT_TRUE(is_known(std::nullopt, 0)) << "what comes back may be another model";
}

// Sends events every 20 ms, `num_events` of them and then nothing; where `ends`, the stream ends.
void send_events(const net::ResponsePtr& response, int num_events, bool ends) {
  if (num_events == 0) return ends ? response->finish() : response->on_disconnect([] {});
  response->write("data: {\"n\":1}\n\n");
  response->post_after(20ms, [=] { send_events(response, num_events - 1, ends); });
}

// A worker whose checks fail while it answers, as one that is being stopped: its streams go on. One
// that falls silent is cut.
TEST(Proxy, StreamsOfABrokenWorkerGoOnUntilItIsSilent) {
  std::atomic<bool> is_healthy{true};
  net::Router routes;
  std::vector<net::ResponsePtr> held;  // answers that never end
  ASSERT_TRUE(routes
                  .add("GET", "/health",
                       [&](net::HttpRequest&&, net::ResponsePtr response) {
                         response->send(net::HttpResponse::text(is_healthy ? 200 : 500, ""));
                       })
                  .ok());
  ASSERT_TRUE(routes
                  .add("POST", "/generate",
                       [&](net::HttpRequest&& request, net::ResponsePtr response) {
                         const bool ends = request.body.find("ends") != std::string::npos;
                         response->start_stream(200, net::event_stream_headers());
                         if (!ends) held.push_back(response);
                         send_events(response, ends ? 100 : 5, ends);
                       })
                  .ok());
  const auto worker = *net::HttpServer::start({}, std::move(routes));
  const auto server = start(config_of({fmt::format("http://127.0.0.1:{}", worker->port())}));
  const auto read = [&](std::string_view body, int& num_events) {
    net::HttpClient client = client_of(*server);
    bool has_error = false;
    (void)client.post_stream("/generate", std::string(body), [&](std::string_view data) {
      if (++num_events == 1) is_healthy = false;
      has_error = has_error || data.find("health checks") != std::string_view::npos;
      return true;
    });
    return has_error;
  };
  int num_events = 0;
  EXPECT_FALSE(read(R"({"text":"ends","stream":true})", num_events));
  EXPECT_EQ(num_events, 100);
  EXPECT_EQ(server->dispatcher().workers()[0].state, WorkerState::kBroken);
  is_healthy = true;
  ASSERT_TRUE(
      comes_true([&] { return server->dispatcher().workers()[0].state == WorkerState::kHealthy; }));
  num_events = 0;
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_TRUE(read(R"({"text":"stays","stream":true})", num_events));
  EXPECT_GE(std::chrono::steady_clock::now() - begun, 1s) << "a pause is no end";
  server->stop(0s);
  held.clear();
}

TEST(Proxy, AClientThatReadsSlowlyIsWaitedFor) {
  const std::string big(16 << 20, 'z');
  net::Router router;
  ASSERT_TRUE(router
                  .add("POST", "/generate",
                       [&](net::HttpRequest&&, net::ResponsePtr response) {
                         response->send(net::HttpResponse::text(200, big));
                       })
                  .ok());
  ASSERT_TRUE(router
                  .add("GET", "/health",
                       [](net::HttpRequest&&, net::ResponsePtr response) {
                         response->send(net::HttpResponse::text(200, ""));
                       })
                  .ok());
  const auto worker = *net::HttpServer::start({}, std::move(router));
  RouterConfig config = config_of({"http://127.0.0.1:" + std::to_string(worker->port())});
  config.max_outputs_bytes = 2 << 20;  // less than the answer: it passes through, a part at a time
  const auto server = start(config);
  net::TestSocket socket(server->port(), 64 << 10);
  ASSERT_TRUE(
      socket.write("POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
                   "Connection: close\r\n\r\n{}"));
  std::this_thread::sleep_for(100ms);
  const std::string text = socket.read_to_end(20s);
  EXPECT_EQ(std::ranges::count(text, 'z'), static_cast<int64_t>(big.size()));
}

}  // namespace
}  // namespace espalier::router
