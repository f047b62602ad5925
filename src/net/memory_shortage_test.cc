// An allocation that fails on an I/O thread ends one request, or one connection, and no other. The
// operator new of this program fails once, at the allocation that a thread has chosen.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "net/client.h"
#include "net/http_server.h"
#include "net/test_identity.h"
#include "net/test_socket.h"

namespace {

// The calling thread's allocation that fails, counted from 1; 0: none.
constinit thread_local int64_t failing_allocation = 0;

bool fails_now() { return failing_allocation > 0 && --failing_allocation == 0; }

}  // namespace

// The forms for arrays and those that do not throw call this one.
void* operator new(size_t size) {
  void* const memory = fails_now() ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// Not inlined: the compiler does not see that malloc() stands behind operator new, and warns.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace espalier::net {
namespace {

class NetMemoryShortage : public ::testing::Test {
 protected:
  void SetUp() override {
    add("/hello", [](HttpRequest&&, ResponsePtr r) { r->send(HttpResponse::text(200, "hello")); });
    add("/throws", [](HttpRequest&&, ResponsePtr) { throw std::bad_alloc(); });
    add("/posts", [](HttpRequest&&, ResponsePtr r) { r->post([r] { throw std::bad_alloc(); }); });
    add("/waits", [](HttpRequest&&, ResponsePtr r) {
      r->post_after(std::chrono::milliseconds(1), [r] { throw std::bad_alloc(); });
    });
    add("/streams", [](HttpRequest&&, ResponsePtr r) {
      r->start_stream(200, {});
      r->write("begun");
      r->post([r] { throw std::bad_alloc(); });
    });
    add("/leaves",
        [](HttpRequest&&, ResponsePtr r) { r->on_disconnect([r] { throw std::bad_alloc(); }); });
    add("/fails/{n}", [](HttpRequest&& q, ResponsePtr r) {
      r->send(HttpResponse::text(200, std::string(3000, 'x')));
      failing_allocation = std::atoi(std::string(q.param("n")).c_str());
    });
    add("/stream", [](HttpRequest&&, ResponsePtr r) {
      r->on_disconnect([] {});
      r->post([r] {
        r->start_stream(200, {{"X-Some", std::string(100, 'h')}});
        for (int i = 0; i < 3; ++i) r->write(std::string(50000, 'y'));
        r->post_after(std::chrono::milliseconds(1), [r] { r->finish(); });
      });
    });
    add("/calm", [](HttpRequest&&, ResponsePtr r) {
      failing_allocation = 0;
      r->send(HttpResponse::text(200, "calm"));
    });
    auto server = HttpServer::start(config_, std::move(router_));
    ASSERT_TRUE(server) << server.error().to_string();
    server_ = std::move(*server);
  }

  void add(const char* pattern, Handler handler) {
    ASSERT_TRUE(router_.add("GET", pattern, std::move(handler)).ok());
  }
  std::string exchange(const std::string& path) {
    TestSocket socket(server_->port());
    socket.write("GET " + path + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    std::string answer = socket.read_to_end();
    EXPECT_TRUE(socket.at_end()) << path << " neither answers nor closes";
    return answer;
  }
  void expect_serves() { EXPECT_NE(exchange("/hello").find("hello"), std::string::npos); }

  HttpServerConfig config_;
  Router router_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(NetMemoryShortage, AHandlerIsAnswered503AndTheConnectionStays) {
  auto client = HttpClient::create(fmt::format("http://127.0.0.1:{}", server_->port()));
  ASSERT_TRUE(client);
  for (const char* path : {"/throws", "/posts", "/waits"}) {
    const auto answer = client->get(path);
    ASSERT_TRUE(answer) << path << answer.error().to_string();
    EXPECT_EQ(answer->status, 503) << path;
    ASSERT_NE(find_header(answer->headers, "Retry-After"), nullptr) << path;
    EXPECT_EQ(*find_header(answer->headers, "Retry-After"), "1") << path;
  }
  EXPECT_EQ(client->get("/hello")->body, "hello");
  EXPECT_EQ(server_->stats().connections_total, 1);
}

TEST_F(NetMemoryShortage, AStreamThatHasBegunIsCutOff) {
  const std::string answer = exchange("/streams");
  EXPECT_EQ(answer.find("0\r\n\r\n"), std::string::npos);
  EXPECT_EQ(answer.find("503"), std::string::npos);
  expect_serves();
}

TEST_F(NetMemoryShortage, ACallbackOfADisconnectMayFail) {
  {
    TestSocket socket(server_->port());
    socket.write("GET /leaves HTTP/1.1\r\nHost: h\r\n\r\n");
  }
  expect_serves();
}

// Each allocation of a connection's life fails once: accepting, reading, routing, answering, the
// mailbox, timers.
TEST_F(NetMemoryShortage, AnyOneAllocationMayFail) {
  int num_ended = 0;
  for (int n = 1; n <= 120; ++n) {
    ASSERT_NE(exchange(fmt::format("/fails/{}", n)).find("200 OK"), std::string::npos) << n;
    const std::string answer = exchange(n % 2 == 0 ? "/stream" : "/hello");
    if (answer.find("200 OK") == std::string::npos) ++num_ended;
    exchange("/calm");
    expect_serves();
  }
  EXPECT_GT(num_ended, 10);
  server_->stop(std::chrono::seconds(5));
  EXPECT_EQ(server_->stats().connections_open, 0);
}

// The same over https: the handshake and the records of TLS besides.
class TlsMemoryShortage : public NetMemoryShortage {
 protected:
  void SetUp() override {
    auto tls = read_tls({.certificate = identity_.file, .key = identity_.key_file});
    ASSERT_TRUE(tls) << tls.error().to_string();
    config_.tls = std::move(*tls);
    NetMemoryShortage::SetUp();
  }
  // The status of the answer; 0: the connection was closed.
  int get(const std::string& path) {
    auto client =
        HttpClient::create(fmt::format("https://127.0.0.1:{}", server_->port()),
                           {.read_timeout = std::chrono::seconds(10), .ca_file = identity_.file});
    EXPECT_TRUE(client) << client.error().to_string();
    const auto answer = client->get(path);
    if (answer) return answer->status;
    EXPECT_NE(answer.error().code(), StatusCode::kDeadlineExceeded) << path;
    return 0;
  }
  const Identity identity_{"IP:127.0.0.1"};
};

TEST_F(TlsMemoryShortage, AnyOneAllocationMayFail) {
  int num_ended = 0;
  for (int n = 1; n <= 150; ++n) {
    if (get(fmt::format("/fails/{}", n)) != 200) ++num_ended;  // the answer was not written yet
    if (get(n % 2 == 0 ? "/stream" : "/hello") != 200) ++num_ended;
    get("/calm");
    ASSERT_EQ(get("/hello"), 200) << n;
  }
  EXPECT_GT(num_ended, 10);
  server_->stop(std::chrono::seconds(5));
  EXPECT_EQ(server_->stats().connections_open, 0);
}

}  // namespace
}  // namespace espalier::net
