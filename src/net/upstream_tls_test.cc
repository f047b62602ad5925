// Calls to servers of https, with and without certificates of the client's own.
#include <gtest/gtest.h>

#include <future>

#include "net/client_tls.h"
#include "net/http_server.h"
#include "net/test_identity.h"
#include "net/test_socket.h"
#include "net/tls_files.h"
#include "net/upstream.h"

namespace espalier::net {
namespace {

using namespace std::chrono_literals;

// The whole answer of a call, or why there is none.
class WholeAnswer final : public UpstreamHandler {
 public:
  void on_head(int code, Headers, std::optional<size_t>) override { status = code; }
  void on_body(std::string bytes) override { body += bytes; }
  void on_end() override { ended.set_value(); }
  void on_failure(Status why) override {
    failure = std::move(why);
    ended.set_value();
  }
  int status = 0;
  std::string body;
  Status failure;
  std::promise<void> ended;
};

class UpstreamTls : public testing::Test {
 protected:
  // A server that answers with the body that it gets.
  void serve(const TlsFiles& files) {
    Router router;
    ASSERT_TRUE(router
                    .add("POST", "/echo",
                         [](HttpRequest&& request, ResponsePtr response) {
                           response->send({200, {}, std::move(request.body)});
                         })
                    .ok());
    HttpServerConfig config;
    config.port = 0;
    auto tls = read_tls(files);
    ASSERT_TRUE(tls) << tls.error().to_string();
    config.tls = *tls;
    auto started = HttpServer::start(std::move(config), std::move(router));
    ASSERT_TRUE(started) << started.error().to_string();
    server_ = std::move(*started);
  }
  void trust(const ClientTlsFiles& files) {
    auto tls = read_client_tls(files);
    ASSERT_TRUE(tls) << tls.error().to_string();
    UpstreamConfig config;
    config.connect_timeout = 10s;
    config.head_timeout = 10s;
    config.tls = *tls;
    upstream_ = std::make_unique<Upstream>(std::move(config));
  }
  std::shared_ptr<WholeAnswer> call(std::string body, const std::string& host = "127.0.0.1") {
    auto answer = std::make_shared<WholeAnswer>();
    io_.post([&, body = std::move(body)]() mutable {
      UpstreamRequest request{"POST", "/echo", {}, nullptr};
      request.body = std::make_shared<const std::string>(std::move(body));
      upstream_->call(io_.io(), {"127.0.0.1", server_->port(), host}, std::move(request), answer);
    });
    EXPECT_EQ(answer->ended.get_future().wait_for(20s), std::future_status::ready);
    return answer;
  }

  Identity one_{"IP:127.0.0.1"}, other_{"IP:127.0.0.1"};
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<Upstream> upstream_;
  BackgroundIo io_{"esp-test"};
};

TEST_F(UpstreamTls, CallsAndUsesConnectionsAgain) {
  serve({.certificate = one_.file, .key = one_.key_file});
  trust({.ca = one_.file});
  for (const size_t size : {0u, 5u, 100'000u, 5'000'000u}) {
    std::string body(size, 'x');
    for (size_t i = 0; i < size; i += 97) body[i] = static_cast<char>('a' + i % 23);
    const auto answer = call(body);
    EXPECT_EQ(answer->status, 200) << answer->failure.to_string();
    EXPECT_EQ(answer->body, body);
  }
  EXPECT_EQ(upstream_->num_connects_total(), 1);
}

TEST_F(UpstreamTls, ServersMayAskForACertificate) {
  serve({.certificate = one_.file, .key = one_.key_file, .client_ca = other_.file});
  trust({.ca = one_.file, .certificate = other_.file, .key = other_.key_file});
  EXPECT_EQ(call("hello")->body, "hello");
  trust({.ca = one_.file});  // without one: the server ends the connection, saying why
  const auto refused = call("hello");
  EXPECT_EQ(refused->failure.code(), StatusCode::kUnavailable);
  EXPECT_EQ(refused->status, 0);
}

TEST_F(UpstreamTls, ServersThatAreNotTrustedGetNothing) {
  serve({.certificate = one_.file, .key = one_.key_file});
  trust({.ca = other_.file});
  const auto untrusted = call("secret");
  EXPECT_NE(untrusted->failure.message().find("is not trusted"), std::string::npos)
      << untrusted->failure.to_string();
  trust({.ca = one_.file});
  EXPECT_EQ(call("x", "127.0.0.2")->failure.code(), StatusCode::kUnavailable);  // another's name
  EXPECT_EQ(call("x")->body, "x");
}

TEST_F(UpstreamTls, PlainHttpIsNamed) {
  serve({});
  trust({.ca = one_.file});
  // A server of plain HTTP takes the handshake for a request and answers it so.
  const auto answer = call("x");
  EXPECT_NE(answer->failure.message().find("speaks plain HTTP"), std::string::npos)
      << answer->failure.to_string();
}

TEST_F(UpstreamTls, AServerThatSaysNothingMeetsTheTimeout) {
  const int listening = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listening, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listening, 8), 0);
  ASSERT_EQ(::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size), 0);
  UpstreamConfig config;
  config.connect_timeout = 100ms;
  config.tls = *read_client_tls({.ca = one_.file});
  upstream_ = std::make_unique<Upstream>(std::move(config));
  auto answer = std::make_shared<WholeAnswer>();
  io_.post([&] {
    upstream_->call(io_.io(), {"127.0.0.1", ntohs(address.sin_port), "127.0.0.1"},
                    {"GET", "/", {}, nullptr}, answer);
  });
  EXPECT_EQ(answer->ended.get_future().wait_for(20s), std::future_status::ready);
  EXPECT_EQ(answer->failure.code(), StatusCode::kDeadlineExceeded);
  ::close(listening);
}

TEST_F(UpstreamTls, FilesThatCannotBeUsedAreNamed) {
  const auto refusal = [](const ClientTlsFiles& files) {
    const auto read = read_client_tls(files);
    EXPECT_FALSE(read);
    return read ? "" : read.error().message();
  };
  EXPECT_NE(refusal({.ca = "/none.pem"}).find("/none.pem"), std::string::npos);
  EXPECT_NE(refusal({.ca = one_.file, .certificate = "/none.pem"}).find("/none.pem"),
            std::string::npos);
  EXPECT_NE(refusal({.ca = one_.file, .certificate = one_.file, .key = other_.key_file})
                .find("is not that of the certificate"),
            std::string::npos);
  EXPECT_NE(refusal({.key = one_.key_file}).find("needs a certificate"), std::string::npos);
}

}  // namespace
}  // namespace espalier::net
