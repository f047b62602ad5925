#include "net/http_server.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

#include "net/client.h"
#include "net/test_socket.h"

namespace espalier::net {
namespace {

using namespace std::chrono_literals;

// A flag that a callback raises and a test waits for.
class Event {
 public:
  void raise() {
    std::lock_guard lock(mutex_);
    raised_ = true;
    changed_.notify_all();
  }
  bool wait(Duration timeout = 10s) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return raised_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool raised_ = false;
};

size_t count(std::string_view text, std::string_view part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

class HttpServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    add("GET", "/hello",
        [](HttpRequest&&, ResponsePtr r) { r->send(HttpResponse::text(200, "hello\n")); });
    add("POST", "/echo", [](HttpRequest&& q, ResponsePtr r) {
      r->send(HttpResponse::text(200, std::move(q.body)));
    });
    add("GET", "/show/{what}", [](HttpRequest&& q, ResponsePtr r) {
      r->send(HttpResponse::text(
          200, fmt::format("{}?{}", q.param("what"), q.query_param("q").value_or("-"))));
    });
    add("GET", "/forgets", [](HttpRequest&&, ResponsePtr) {});
    add("GET", "/throws", [](HttpRequest&&, ResponsePtr) { throw std::runtime_error("boom"); });
    add("GET", "/injects", [](HttpRequest&&, ResponsePtr r) {
      r->send({200, {{"X-Text", "a\r\nX-Evil: 1"}}, "x"});
    });
    add("GET", "/waits", [this](HttpRequest&&, ResponsePtr r) {
      r->on_disconnect([this] { left_.raise(); });
      std::lock_guard lock(mutex_);
      waiting_ = std::move(r);
      arrived_.raise();
    });
  }
  void TearDown() override {
    waiting_.reset();
    server_.reset();
  }

  void add(const char* method, const char* pattern, Handler handler) {
    ASSERT_TRUE(router_.add(method, pattern, std::move(handler)).ok());
  }
  void start() {
    auto server = HttpServer::start(config_, std::move(router_));
    ASSERT_TRUE(server) << server.error().to_string();
    server_ = std::move(*server);
  }
  int port() const { return server_->port(); }
  HttpClient client() const {
    auto made = HttpClient::create(fmt::format("http://127.0.0.1:{}", port()));
    EXPECT_TRUE(made);
    return std::move(*made);
  }
  std::string exchange(std::string_view bytes) {
    TestSocket socket(port());
    socket.write(bytes);
    return socket.read_to_end();
  }
  void expect_serves() {
    auto answer = client().get("/hello");
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->body, "hello\n");
  }

  HttpServerConfig config_;
  Router router_;
  std::unique_ptr<HttpServer> server_;
  std::mutex mutex_;
  ResponsePtr waiting_;
  Event arrived_, left_;
};

TEST_F(HttpServerTest, AnswersAndKeepsTheConnection) {
  start();
  HttpClient c = client();
  for (int i = 0; i < 3; ++i) {
    auto answer = c.get("/hello");
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, "hello\n");
    EXPECT_EQ(*find_header(answer->headers, "access-control-allow-origin"), "*");
  }
  auto shown = c.get("/show/a%20b?q=1%2B1");
  ASSERT_TRUE(shown);
  EXPECT_EQ(shown->body, "a b?1+1");
  auto head = c.request("HEAD", "/hello");
  ASSERT_TRUE(head);
  EXPECT_EQ(head->body, "");
  EXPECT_EQ(*find_header(head->headers, "content-length"), "6");
  const std::string big(3 << 20, 'x');
  auto echo = c.post("/echo", big);
  ASSERT_TRUE(echo);
  EXPECT_EQ(echo->body, big);
  EXPECT_EQ(server_->stats().connections_total, 1);
  EXPECT_EQ(server_->stats().requests_total, 6);
}

TEST_F(HttpServerTest, RefusesWhatItDoesNotHave) {
  start();
  HttpClient c = client();
  EXPECT_EQ(c.get("/none")->status, 404);
  auto wrong = c.post("/hello", "{}");
  EXPECT_EQ(wrong->status, 405);
  EXPECT_EQ(*find_header(wrong->headers, "Allow"), "GET, OPTIONS");
  EXPECT_EQ(*find_header(wrong->headers, "Content-Type"), "application/json");
  auto preflight = c.request("OPTIONS", "/echo", {}, {{"Access-Control-Request-Headers", "x-y"}});
  EXPECT_EQ(preflight->status, 204);
  EXPECT_EQ(*find_header(preflight->headers, "Allow"), "POST, OPTIONS");
  EXPECT_EQ(*find_header(preflight->headers, "Access-Control-Allow-Headers"), "x-y");
  EXPECT_EQ(c.get("/forgets")->status, 500);
  EXPECT_EQ(c.get("/throws")->status, 500);
  auto injected = c.get("/injects");
  EXPECT_EQ(find_header(injected->headers, "X-Evil"), nullptr);
  EXPECT_EQ(server_->stats().connections_total, 1);
}

TEST_F(HttpServerTest, MalformedRequests) {
  config_.max_header_bytes = 4096;
  config_.max_target_bytes = 1024;
  config_.max_body_bytes = 1000;
  start();
  const std::string long_target(2000, 'a');
  struct Case {
    const char* name;
    std::string bytes;
    int status;
  };
  for (const Case& c : std::vector<Case>{
           {"no method", " / HTTP/1.1\r\n\r\n", 400},
           {"not http", "hello there\r\n\r\n", 400},
           {"tls hello", std::string("\x16\x03\x01\x02\x00\x01", 6) + "\r\n\r\n", 400},
           {"bad version", "GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505},
           {"no host", "GET /hello HTTP/1.1\r\n\r\n", 400},
           {"bad escape", "GET /%zz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 400},
           {"no slash", "GET hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 400},
           {"bad length", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400},
           {"negative length", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n", 400},
           {"two lengths",
            "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            400},
           {"length and chunked",
            "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: "
            "chunked\r\n\r\n",
            400},
           {"bad chunk",
            "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400},
           {"bad header", "GET /hello HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n", 400},
           {"bad header char", std::string("GET /hello HTTP/1.1\r\nHo\0st: a\r\n\r\n", 33), 400},
           {"body too large", "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n",
            413},
           {"chunked too large",
            "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" +
                std::string(1001, 'x') + "\r\n0\r\n\r\n",
            413},
           {"headers too large",
            "GET /hello HTTP/1.1\r\nHost: a\r\nX: " + std::string(5000, 'x') + "\r\n\r\n", 431},
           {"endless first line", "GET /" + std::string(6000, 'x'), 414},
           {"target too long",
            "GET /" + long_target + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 414},
           {"endless chunk extension",
            "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;" +
                std::string(6000, 'x'),
            400},
           {"unknown expectation",
            "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: tea\r\nContent-Length: 3\r\n\r\n", 417},
           {"unknown method", "BREW /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 405},
           {"absolute form", "GET http://a/hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            200},
           {"http 1.0", "GET /hello HTTP/1.0\r\n\r\n", 200},
       }) {
    SCOPED_TRACE(c.name);
    const std::string answer = exchange(c.bytes);
    ASSERT_GE(answer.size(), 12u);
    EXPECT_EQ(answer.substr(0, 12), fmt::format("HTTP/1.1 {}", c.status)) << answer;
    EXPECT_NE(answer.find("Connection: close"), std::string::npos);
    if (c.status != 200) {
      EXPECT_NE(answer.find("{\"error\":"), std::string::npos) << answer;
    }
    expect_serves();
  }
}

TEST_F(HttpServerTest, PipelinedRequestsAreAnsweredInOrder) {
  start();
  TestSocket socket(port());
  std::string all;
  for (int i = 0; i < 50; ++i) {
    all += fmt::format("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n{:03}", i);
  }
  all += "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
  // In two parts, cut inside a request.
  socket.write(all.substr(0, 1000));
  socket.write(all.substr(1000));
  const std::string answers = socket.read_to_end();
  EXPECT_EQ(count(answers, "HTTP/1.1 200 OK"), 51u);
  size_t at = 0;
  for (int i = 0; i < 50; ++i) {
    at = answers.find(fmt::format("\r\n\r\n{:03}", i), at);
    ASSERT_NE(at, std::string::npos) << i;
  }
  EXPECT_TRUE(answers.ends_with("hello\n"));
}

// The request behind an answer under way has been read; what comes after it must not be mistaken
// for it when it is taken from the buffer.
TEST_F(HttpServerTest, ARequestBehindAPipelinedOneIsReadAsItself) {
  start();
  const auto show = [](std::string_view what) {
    return fmt::format("GET /show/{} HTTP/1.1\r\nHost: a\r\n\r\n", what);
  };
  TestSocket socket(port());
  ASSERT_TRUE(socket.write("GET /waits HTTP/1.1\r\nHost: a\r\n\r\n" + show("second")));
  ASSERT_TRUE(arrived_.wait());
  {
    std::lock_guard lock(mutex_);
    waiting_->send(HttpResponse::text(200, "first"));
  }
  std::string answers =
      socket.read_until([](const std::string& t) { return t.ends_with("second?-"); });
  ASSERT_TRUE(answers.ends_with("second?-")) << answers;
  for (const char* what : {"third", "fourth"}) {
    ASSERT_TRUE(socket.write(show(what)));
    answers = socket.read_until([&](const std::string& t) { return t.ends_with("?-"); });
    EXPECT_TRUE(answers.ends_with(fmt::format("\r\n\r\n{}?-", what))) << answers;
    EXPECT_EQ(count(answers, "HTTP/1.1 200"), 1u) << answers;
  }
}

TEST_F(HttpServerTest, EmptyLinesBeforeARequestAreNoPartOfIt) {
  start();
  const std::string answers = exchange(
      "\r\n\r\nPOST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab\r\n\n"
      "GET /hello HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(count(answers, "HTTP/1.1 200 OK"), 2u) << answers;
  EXPECT_TRUE(answers.ends_with("hello\n")) << answers;
}

TEST_F(HttpServerTest, BodiesInPieces) {
  start();
  TestSocket chunked(port());
  for (const char* piece : {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-",
                            "Encoding: chunked\r\nConnection: close\r\n\r", "\n4\r\nab", "cd\r",
                            "\n3;ext=1\r\nefg\r\n0", "\r\nTrailer: x\r\n\r\n"}) {
    chunked.write(piece);
    std::this_thread::sleep_for(2ms);  // so that most pieces arrive alone; the answer must not care
  }
  EXPECT_TRUE(chunked.read_to_end().ends_with("\r\n\r\nabcdefg"));

  TestSocket expecting(port());
  expecting.write(
      "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n"
      "Connection: close\r\n\r\n");
  EXPECT_EQ(expecting.read_until([](auto& t) { return t.ends_with("\r\n\r\n"); }),
            "HTTP/1.1 100 Continue\r\n\r\n");
  expecting.write("ok");
  EXPECT_TRUE(expecting.read_to_end().ends_with("\r\n\r\nok"));
}

TEST_F(HttpServerTest, Timeouts) {
  config_.header_timeout = 50ms;
  config_.idle_timeout = 500ms;
  start();
  TestSocket slow_header(port());
  slow_header.write("GET /hello HT");
  EXPECT_TRUE(slow_header.read_to_end().starts_with("HTTP/1.1 408"));
  TestSocket slow_body(port());
  slow_body.write("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab");
  EXPECT_TRUE(slow_body.read_to_end().starts_with("HTTP/1.1 408"));
  TestSocket idle(port());
  EXPECT_EQ(idle.read_to_end(), "");
  EXPECT_TRUE(idle.at_end());
  expect_serves();
}

TEST_F(HttpServerTest, AHeadInDropsHasOneDeadline) {
  config_.header_timeout = 300ms;
  start();
  TestSocket socket(port());
  ASSERT_TRUE(socket.write("GET /hello?"));
  std::string answer;
  for (int i = 0; i < 500 && answer.empty() && !socket.at_end(); ++i) {
    socket.write("x");
    answer = socket.read_until([](const std::string& text) { return !text.empty(); }, 20ms);
  }
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 408")) << answer;
}

TEST_F(HttpServerTest, ABodyMayPauseForLongerThanAHeadMayTake) {
  config_.header_timeout = 50ms;
  start();
  TestSocket socket(port());
  ASSERT_TRUE(socket.write("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab"));
  EXPECT_EQ(socket.read_until([](const std::string& text) { return !text.empty(); }, 200ms), "");
  ASSERT_TRUE(socket.write("cde"));
  const std::string answer =
      socket.read_until([](const std::string& text) { return text.ends_with("abcde"); });
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200")) << answer;
}

TEST_F(HttpServerTest, StreamsFromAnotherThread) {
  add("POST", "/stream", [](HttpRequest&& q, ResponsePtr r) {
    std::thread([n = std::stoi(q.body), r] {
      r->start_stream(200, {{"Content-Type", "text/event-stream"}});
      for (int i = 0; i < n; ++i) {
        std::string event;
        append_sse(event, fmt::format("{{\"i\":{}}}", i));
        r->write(std::move(event));
      }
      r->write("data: [DONE]\n\n");
      r->finish();
    }).detach();
  });
  start();
  HttpClient c = client();
  for (const int n : {0, 1, 1000}) {
    std::vector<std::string> seen;
    auto answer = c.post_stream("/stream", std::to_string(n), [&](std::string_view data) {
      seen.emplace_back(data);
      return true;
    });
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->status, 200);
    ASSERT_EQ(seen.size(), static_cast<size_t>(n) + 1);
    for (int i = 0; i < n; ++i) ASSERT_EQ(seen[i], fmt::format("{{\"i\":{}}}", i));
    EXPECT_EQ(seen.back(), "[DONE]");
  }
  EXPECT_EQ(server_->stats().connections_total, 1);
  // HTTP/1.0 has no chunks: the end of the connection ends the stream.
  EXPECT_TRUE(exchange("POST /stream HTTP/1.0\r\nContent-Length: 1\r\n\r\n1")
                  .ends_with("\r\n\r\ndata: {\"i\":0}\n\ndata: [DONE]\n\n"));
  // An error is no stream: its body comes back whole.
  auto missing = c.post_stream("/none", "", [](std::string_view) { return true; });
  EXPECT_EQ(missing->status, 404);
  EXPECT_NE(missing->body, "");
  // The callback may end it.
  int events = 0;
  ASSERT_TRUE(c.post_stream("/stream", "1000", [&](std::string_view) { return ++events < 3; }));
  EXPECT_EQ(events, 3);
}

TEST_F(HttpServerTest, AClientThatDoesNotReadIsDroppedAndBlocksNoOne) {
  config_.max_pending_output_bytes = 1 << 20;
  Event dropped;
  std::atomic<int64_t> written = 0;
  std::thread writer;
  add("GET", "/flood", [&](HttpRequest&&, ResponsePtr r) {
    r->on_disconnect([&] { dropped.raise(); });
    r->start_stream(200, {});
    writer = std::thread([&written, r] {
      while (!r->closed() && written < (1 << 30)) {
        r->write(std::string(64 << 10, 'x'));
        written += 64 << 10;
        std::this_thread::sleep_for(100us);
      }
    });
  });
  start();
  TestSocket slow(port(), 4096);
  slow.write("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_NE(slow.read_until([](auto& t) { return t.size() > 10; }), "");
  expect_serves();  // meanwhile
  EXPECT_TRUE(dropped.wait());
  writer.join();
  EXPECT_LT(written.load(), 1 << 30);
  EXPECT_EQ(server_->stats().dropped_slow_total, 1);
  expect_serves();
}

// The tasks of one answer take 3 s in all, and a request that comes meanwhile waits for a few.
TEST_F(HttpServerTest, TasksThatTakeLongLeaveRoomForRequests) {
  std::atomic<int> num_run = 0;
  add("GET", "/busy", [&](HttpRequest&&, ResponsePtr r) {
    r->start_stream(200, {});
    for (int i = 0; i < 600; ++i)
      r->post([&, r, i] {
        EXPECT_EQ(num_run++, i);
        const TimePoint ends = std::chrono::steady_clock::now() + 5ms;
        while (std::chrono::steady_clock::now() < ends) {
        }
        if (i == 599) r->finish();
      });
  });
  start();
  TestSocket busy(port());
  busy.write("GET /busy HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  while (num_run == 0) std::this_thread::yield();
  expect_serves();
  EXPECT_LT(num_run.load(), 300);
  EXPECT_TRUE(busy.read_to_end().starts_with("HTTP/1.1 200"));
  EXPECT_EQ(num_run.load(), 600);
}

// 256 MB that its client takes as fast as they come.
TEST_F(HttpServerTest, ALargeAnswerLeavesRoomForRequests) {
  constexpr size_t kBytes = 256 << 20;
  add("GET", "/large", [&](HttpRequest&&, ResponsePtr r) {
    r->send(HttpResponse::text(200, std::string(kBytes, 'z')));
  });
  start();
  std::atomic<bool> is_read = false;
  std::thread reader([&] {
    EXPECT_EQ(client().get("/large")->body.size(), kBytes);
    is_read = true;
  });
  while (server_->stats().requests_total == 0) std::this_thread::yield();
  int num_served = 0;
  for (; !is_read; ++num_served) expect_serves();
  reader.join();
  EXPECT_GT(num_served, 3);
}

TEST_F(HttpServerTest, AnEventMayBeLargerThanWhatMayBePending) {
  config_.max_pending_output_bytes = 1 << 20;
  constexpr size_t kEvent = 32 << 20;  // more than sockets hold
  add("GET", "/large", [](HttpRequest&&, ResponsePtr r) {
    r->start_stream(200, {});
    r->write(std::string(kEvent, 'x'));
    r->finish();
  });
  start();
  const auto answer = client().get("/large");
  ASSERT_TRUE(answer) << answer.error().to_string();
  EXPECT_EQ(answer->body.size(), kEvent);
  EXPECT_EQ(server_->stats().dropped_slow_total, 0);
}

TEST_F(HttpServerTest, UnreadAnswersTogetherStayWithinTheirAccount) {
  config_.outputs = std::make_shared<MemoryAccount>("outputs", 48 << 20);
  const std::string large(32 << 20, 'y');
  add("GET", "/large",
      [&](HttpRequest&&, ResponsePtr r) { r->send(HttpResponse::text(200, large)); });
  start();
  TestSocket idle(port(), 4096);  // takes next to nothing
  idle.write("GET /large HTTP/1.1\r\nHost: x\r\n\r\n");
  for (int i = 0; i < 1000 && config_.outputs->used() == 0; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_GT(config_.outputs->used(), 1 << 20);
  auto refused = client().get("/large");
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 503);
  EXPECT_NE(find_header(refused->headers, "retry-after"), nullptr);
  expect_serves();  // small answers are no part of the account
  idle.close();
  for (int i = 0; i < 5000 && config_.outputs->used() > 0; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(config_.outputs->used(), 0);
  EXPECT_EQ(client().get("/large")->body, large);
}

TEST_F(HttpServerTest, AClientThatStopsReadingTimesOut) {
  config_.write_timeout = 100ms;
  add("GET", "/big", [](HttpRequest&&, ResponsePtr r) {
    r->send(HttpResponse::text(200, std::string(16 << 20, 'x')));
  });
  start();
  TestSocket slow(port(), 4096);
  slow.write("GET /big HTTP/1.1\r\nHost: a\r\n\r\n");
  for (int i = 0; i < 1000 && server_->stats().dropped_slow_total == 0; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(server_->stats().dropped_slow_total, 1);
}

TEST_F(HttpServerTest, NotifiesWhenTheClientLeaves) {
  start();
  {
    TestSocket socket(port());
    socket.write("GET /waits HTTP/1.1\r\nHost: a\r\n\r\n");
    ASSERT_TRUE(arrived_.wait());
  }
  EXPECT_TRUE(left_.wait());
  EXPECT_TRUE(waiting_->closed());
  waiting_->send(HttpResponse::text(200, "nobody reads this"));
  Event late;
  waiting_->on_disconnect([&] { late.raise(); });
  EXPECT_TRUE(late.wait());  // notified at once when it has gone already
  expect_serves();
}

TEST_F(HttpServerTest, AnswersLater) {
  start();
  TestSocket socket(port());
  socket.write("GET /waits HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  ASSERT_TRUE(arrived_.wait());
  Event delayed;
  waiting_->post_after(20ms, [&] { delayed.raise(); });
  EXPECT_TRUE(delayed.wait());
  std::thread([r = waiting_] { r->send(HttpResponse::text(200, "late")); }).join();
  EXPECT_TRUE(socket.read_to_end().ends_with("late"));
  EXPECT_FALSE(left_.wait(20ms));
}

// The last handle may go on the I/O thread while another thread's answer is still in the mailbox.
TEST_F(HttpServerTest, AnAnswerOnItsWayIsNotTakenForNone) {
  add("GET", "/elsewhere", [](HttpRequest&&, ResponsePtr r) {
    std::thread([w = r.get()] { w->send(HttpResponse::text(200, "from elsewhere")); }).join();
  });
  start();
  EXPECT_EQ(client().get("/elsewhere")->body, "from elsewhere");
}

TEST_F(HttpServerTest, LimitsConnections) {
  config_.max_connections = 2;
  start();
  std::vector<TestSocket> held;
  for (int i = 0; i < 2; ++i) {
    held.emplace_back(port());
    held.back().write("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
    held.back().read_until([](auto& t) { return t.ends_with("hello\n"); });
  }
  TestSocket third(port());
  EXPECT_TRUE(third.read_to_end().starts_with("HTTP/1.1 503"));
  held.clear();
  for (int i = 0; i < 10000 && server_->stats().connections_open > 0; ++i) {
    std::this_thread::sleep_for(1ms);
  }
  expect_serves();
}

TEST_F(HttpServerTest, FiveHundredStreams) {
  constexpr int kStreams = 500, kEvents = 40;
  std::mutex mutex;
  std::vector<ResponsePtr> writers;
  Event all;
  add("GET", "/stream", [&](HttpRequest&&, ResponsePtr r) {
    r->start_stream(200, {{"Content-Type", "text/event-stream"}});
    std::lock_guard lock(mutex);
    writers.push_back(std::move(r));
    if (writers.size() == kStreams) all.raise();
  });
  start();
  std::vector<TestSocket> sockets;
  sockets.reserve(kStreams);
  for (int i = 0; i < kStreams; ++i) {
    sockets.emplace_back(port());
    ASSERT_TRUE(sockets.back().connected());
    sockets.back().write("GET /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  }
  ASSERT_TRUE(all.wait());
  const int64_t writes_before = server_->stats().socket_writes_total;
  // As a scheduler does: each step has one event for each stream, posted from one thread.
  std::thread([&] {
    for (int e = 0; e < kEvents; ++e) {
      for (const ResponsePtr& w : writers) {
        w->post([w, e] {
          std::string event;
          append_sse(event, std::to_string(e));
          w->write(std::move(event));
        });
      }
    }
    for (const ResponsePtr& w : writers) w->post([w] { w->finish(); });
  }).join();
  writers.clear();
  for (TestSocket& socket : sockets) {
    const std::string text = socket.read_to_end();
    ASSERT_EQ(count(text, "data: "), static_cast<size_t>(kEvents));
    ASSERT_TRUE(text.ends_with("0\r\n\r\n"));
  }
  // Never more than one write for an event, and the ends ride along.
  const int64_t writes = server_->stats().socket_writes_total - writes_before;
  EXPECT_LE(writes, kStreams * (kEvents + 1));
  RecordProperty("socket_writes", static_cast<int>(writes));
}

TEST_F(HttpServerTest, ManyEventsOfOneTaskAreOneWrite) {
  add("GET", "/burst", [](HttpRequest&&, ResponsePtr r) {
    r->start_stream(200, {});
    r->post([r] {
      for (int i = 0; i < 100; ++i) r->write("data: x\n\n");
      r->finish();
    });
  });
  start();
  ASSERT_TRUE(client().get("/burst"));
  EXPECT_LE(server_->stats().socket_writes_total, 2);
}

TEST_F(HttpServerTest, StopDrains) {
  config_.num_threads = 2;
  start();
  TestSocket idle(port());
  idle.write("GET /hello HTTP/1.1\r\nHost: a\r\n\r\n");
  idle.read_until([](auto& t) { return t.ends_with("hello\n"); });
  TestSocket busy(port());
  busy.write("GET /waits HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(arrived_.wait());
  const int port_before = port();
  std::thread stopper([&] { server_->stop(10s); });
  EXPECT_EQ(idle.read_to_end(), "");  // closed at once
  EXPECT_TRUE(idle.at_end());
  waiting_->send(HttpResponse::text(200, "last words"));
  const std::string answer = busy.read_to_end();
  EXPECT_TRUE(answer.ends_with("last words")) << answer;
  EXPECT_NE(answer.find("Connection: close"), std::string::npos);
  stopper.join();
  EXPECT_FALSE(TestSocket(port_before).connected());
  waiting_->post([] { FAIL() << "ran after stop"; });
}

TEST_F(HttpServerTest, StopGivesUpAfterItsTimeout) {
  start();
  TestSocket busy(port());
  busy.write("GET /waits HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(arrived_.wait());
  server_->stop(20ms);
  EXPECT_TRUE(left_.wait(0s));
  busy.read_to_end();
  EXPECT_TRUE(busy.at_end());
}

// A fuzzer's clock signals the thread that waits for an answer: that is no end of the connection.
TEST_F(HttpServerTest, ASignalDoesNotEndAClientsWait) {
  start();
  struct sigaction caught {
  }, before{};
  caught.sa_handler = [](int) {};  // without SA_RESTART
  ASSERT_EQ(sigaction(SIGUSR1, &caught, &before), 0);
  TestSocket socket(port());
  ASSERT_TRUE(socket.write("GET /waits HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
  ASSERT_TRUE(arrived_.wait());
  std::thread signals([&, waiting_thread = pthread_self()] {
    for (int i = 0; i < 50; ++i) {
      pthread_kill(waiting_thread, SIGUSR1);
      std::this_thread::sleep_for(1ms);
    }
    std::lock_guard lock(mutex_);
    waiting_->send(HttpResponse::text(200, "at last"));
  });
  const std::string answer = socket.read_to_end();
  signals.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_TRUE(socket.at_end());
  EXPECT_TRUE(answer.ends_with("at last")) << answer;
}

TEST(PatienceTest, AMachineThatStoodStillLosesOneSlice) {
  Patience patience(2s);
  patience.spend(1h);  // stopped, in its first wait
  EXPECT_FALSE(patience.is_over());
  for (int i = 0; i < 3; ++i) patience.spend(patience.slice());
  EXPECT_TRUE(patience.is_over());
  Patience short_one(20ms);
  EXPECT_EQ(short_one.slice(), 20ms);
  short_one.spend(15ms);
  EXPECT_EQ(short_one.slice(), 5ms);
  short_one.spend(5ms);
  EXPECT_TRUE(short_one.is_over());
}

TEST_F(HttpServerTest, ABusyPortIsNamed) {
  start();
  HttpServerConfig second;
  second.port = port();
  auto failed = HttpServer::start(second, {});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(failed.error().message().find(std::to_string(port())), std::string::npos);
  second.port = 70000;
  EXPECT_EQ(HttpServer::start(second, {}).error().code(), StatusCode::kInvalidArgument);
  second.port = 0;
  second.host = "no.such.host.invalid";
  EXPECT_EQ(HttpServer::start(second, {}).error().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier::net
