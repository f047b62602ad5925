#include "net/upstream.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "net/answer_parser.h"
#include "net/http_server.h"
#include "net/test_socket.h"

namespace espalier::net {
namespace {

using namespace std::chrono_literals;

struct Seen {
  int status = 0;
  Headers headers;
  std::optional<size_t> length;
  std::string body;
  int num_parts = 0;
  Status failure;
};

// Collects what comes and signals the end.
class Collector final : public UpstreamHandler {
 public:
  void on_head(int status, Headers headers, std::optional<size_t> length) override {
    seen.status = status;
    seen.headers = std::move(headers);
    seen.length = length;
  }
  void on_body(std::string bytes) override {
    seen.body += bytes;
    ++seen.num_parts;
    if (part) part();
  }
  void on_end() override { ended.set_value(); }
  void on_failure(Status why) override {
    seen.failure = std::move(why);
    ended.set_value();
  }

  Seen seen;
  std::function<void()> part;
  std::promise<void> ended;
};

class UpstreamTest : public testing::Test {
 protected:
  std::shared_ptr<Collector> begin(int port, std::string body = "",
                                   std::shared_ptr<UpstreamCall>* call = nullptr) {
    auto collector = std::make_shared<Collector>();
    std::promise<void> begun;
    io_.post([&] {
      UpstreamRequest request{"POST", "/echo", {{"X-One", "1"}}, nullptr};
      request.body = std::make_shared<const std::string>(std::move(body));
      auto made = upstream_->call(io_.io(), {"127.0.0.1", port}, std::move(request), collector);
      if (call != nullptr) *call = std::move(made);
      begun.set_value();
    });
    begun.get_future().wait();
    return collector;
  }
  Seen end(const std::shared_ptr<Collector>& collector) {
    EXPECT_EQ(collector->ended.get_future().wait_for(20s), std::future_status::ready);
    return collector->seen;
  }
  Seen call(int port, std::string body = "") { return end(begin(port, std::move(body))); }

  // Calls made from now on give up on an answer that has not begun after `head_timeout`.
  void limit(Duration head_timeout) {
    upstream_ = std::make_unique<Upstream>(
        UpstreamConfig{.head_timeout = head_timeout, .idle_timeout = 20s});
  }

  std::unique_ptr<Upstream> upstream_ =
      std::make_unique<Upstream>(UpstreamConfig{.head_timeout = 20s, .idle_timeout = 20s});
  BackgroundIo io_{"upstream-test"};
};

// Sends `answer` to each of `count` connections once their request's head is there, then closes.
class RawServer {
 public:
  RawServer(std::string answer, int count) {
    std::tie(listener_, port_) = listen_on_loopback();
    thread_ = std::thread([this, answer = std::move(answer), count] {
      for (int i = 0; i < count; ++i) {
        const int fd = ::accept(listener_, nullptr, nullptr);
        if (fd < 0) return;
        char request[4096];
        (void)::recv(fd, request, sizeof request, 0);
        (void)::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
        if (answer.empty()) std::this_thread::sleep_for(600ms);
        ::close(fd);
      }
    });
  }
  ~RawServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
  }
  int port() const { return port_; }

 private:
  int listener_ = -1, port_ = 0;
  std::thread thread_;
};

TEST_F(UpstreamTest, CallsAndUsesConnectionsAgain) {
  Router router;
  ASSERT_TRUE(router
                  .add("POST", "/echo",
                       [](HttpRequest&& request, ResponsePtr response) {
                         HttpResponse answer =
                             HttpResponse::text(200, request.body + *request.header("X-One"));
                         response->send(std::move(answer));
                       })
                  .ok());
  const auto server = *HttpServer::start({}, std::move(router));
  for (const size_t size : {size_t{0}, size_t{10}, size_t{5} << 20}) {
    const Seen seen = call(server->port(), std::string(size, 'x'));
    ASSERT_TRUE(seen.failure.ok()) << seen.failure.message();
    EXPECT_EQ(seen.status, 200);
    EXPECT_EQ(seen.length, size + 1);
    EXPECT_EQ(seen.body, std::string(size, 'x') + "1");
  }
  EXPECT_EQ(upstream_->num_connects_total(), 1);
}

TEST_F(UpstreamTest, StreamsPartByPart) {
  Router router;
  ASSERT_TRUE(router
                  .add("POST", "/echo",
                       [](HttpRequest&&, ResponsePtr response) {
                         response->start_stream(200, event_stream_headers());
                         for (int i = 0; i < 3; ++i)
                           response->post_after(i * 30ms, [response, i] {
                             response->write(std::to_string(i));
                             if (i == 2) response->finish();
                           });
                       })
                  .ok());
  const auto server = *HttpServer::start({}, std::move(router));
  const Seen seen = call(server->port());
  EXPECT_EQ(seen.body, "012");
  EXPECT_GE(seen.num_parts, 2);
  EXPECT_EQ(seen.length, std::nullopt);
}

TEST_F(UpstreamTest, CancellingIsSeenByTheServer) {
  std::promise<void> arrived, gone;
  Router router;
  ASSERT_TRUE(router
                  .add("POST", "/echo",
                       [&](HttpRequest&&, ResponsePtr response) {
                         response->on_disconnect([&, response] { gone.set_value(); });
                         arrived.set_value();
                         response->start_stream(200, {});
                         response->write("x");
                       })
                  .ok());
  const auto server = *HttpServer::start({}, std::move(router));
  std::shared_ptr<UpstreamCall> call;
  const auto collector = begin(server->port(), "", &call);
  // A call that is cancelled before it is sent never reaches the server.
  ASSERT_EQ(arrived.get_future().wait_for(20s), std::future_status::ready);
  io_.post([&] { call->cancel(); });
  EXPECT_EQ(gone.get_future().wait_for(20s), std::future_status::ready);
  EXPECT_TRUE(collector->seen.failure.ok());
}

TEST_F(UpstreamTest, ConnectionsThatTheServerClosedAreReplaced) {
  const RawServer server("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 3);
  for (int i = 0; i < 3; ++i) {
    const Seen seen = call(server.port());
    ASSERT_TRUE(seen.failure.ok()) << seen.failure.message();
    EXPECT_EQ(seen.body, "ok");
  }
  EXPECT_EQ(upstream_->num_connects_total(), 3);
}

TEST_F(UpstreamTest, FailuresSayWhatFailed) {
  struct Case {
    const char* answer;
    StatusCode code;
  };
  for (const Case& c :
       {Case{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok", StatusCode::kUnavailable},
        Case{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
             StatusCode::kUnavailable},
        Case{"HTTP/1.1 200 OK\r\n", StatusCode::kUnavailable},
        Case{"SSH-2.0-OpenSSH\r\n\r\n", StatusCode::kDataLoss},
        Case{"", StatusCode::kUnavailable}}) {
    const RawServer server(c.answer, 1);
    const Seen seen = call(server.port());
    EXPECT_EQ(seen.failure.code(), c.code) << c.answer << ": " << seen.failure.message();
    EXPECT_NE(seen.failure.message().find(std::to_string(server.port())), std::string::npos);
  }
  const auto [fd, port] = listen_on_loopback();
  ::close(fd);
  EXPECT_EQ(call(port).failure.code(), StatusCode::kUnavailable);
}

TEST_F(UpstreamTest, AServerThatSaysNothingMeetsTheTimeout) {
  limit(100ms);
  const auto [fd, port] = listen_on_loopback();
  EXPECT_EQ(call(port).failure.code(), StatusCode::kDeadlineExceeded);
  ::close(fd);
}

TEST_F(UpstreamTest, APausedCallReadsNothing) {
  Router router;
  ASSERT_TRUE(router
                  .add("POST", "/echo",
                       [](HttpRequest&&, ResponsePtr response) {
                         response->send(HttpResponse::text(200, std::string(1 << 20, 'y')));
                       })
                  .ok());
  const auto server = *HttpServer::start({}, std::move(router));
  std::shared_ptr<UpstreamCall> call;
  const auto collector = std::make_shared<Collector>();
  collector->part = [&] {
    if (collector->seen.num_parts > 1) return;
    call->pause();
    const size_t before = collector->seen.body.size();
    io_.post_after(50ms, [&, before] {
      EXPECT_EQ(collector->seen.body.size(), before);
      call->resume();
    });
  };
  io_.post([&] {
    call = upstream_->call(io_.io(), {"127.0.0.1", server->port()},
                           {"POST", "/echo", {}, std::make_shared<const std::string>()}, collector);
  });
  EXPECT_EQ(end(collector).body.size(), size_t{1} << 20);
}

TEST(AnswerParser, TakesBytesInAnyParts) {
  const std::string answer =
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\nX-A: "
      "b\r\n\r\n"
      "5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\n\r\n";
  for (size_t step = 1; step <= answer.size(); ++step) {
    AnswerParser parser(false);
    std::string body;
    for (size_t i = 0; i < answer.size(); i += step) {
      EXPECT_FALSE(parser.is_complete());
      ASSERT_TRUE(parser.feed(std::string_view(answer).substr(i, step), body).ok()) << step;
    }
    EXPECT_TRUE(parser.is_complete());
    EXPECT_EQ(parser.status(), 201);
    const Headers headers = parser.take_headers();
    ASSERT_NE(find_header(headers, "X-A"), nullptr);
    EXPECT_EQ(*find_header(headers, "X-A"), "b");
    EXPECT_EQ(body, "hello, world");
    EXPECT_TRUE(parser.keeps_alive());
    EXPECT_EQ(parser.feed("x", body).code(), StatusCode::kDataLoss);
  }
}

TEST(AnswerParser, AnAnswerWithoutLengthEndsWithTheStream) {
  AnswerParser parser(false);
  std::string body;
  ASSERT_TRUE(parser.feed("HTTP/1.1 200 OK\r\n\r\nabc", body).ok());
  EXPECT_FALSE(parser.is_complete());
  EXPECT_TRUE(parser.end_of_stream().ok());
  EXPECT_EQ(body, "abc");
  AnswerParser none(false);
  EXPECT_FALSE(none.end_of_stream().ok());
}

TEST(ResolveHost, NamesAndNumbers) {
  EXPECT_EQ(*resolve_host("127.0.0.1"), std::vector<std::string>{"127.0.0.1"});
  EXPECT_FALSE(resolve_host("no-such-host.invalid"));
}

}  // namespace
}  // namespace espalier::net
