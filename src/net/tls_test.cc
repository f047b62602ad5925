// https against a server with a certificate of its own making.
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <tuple>

#include "net/client.h"
#include "net/test_identity.h"
#include "net/test_socket.h"

namespace espalier::net {
namespace {

// Answers each request of each connection with "echo N" and keeps the connection.
class TlsServer {
 public:
  explicit TlsServer(const Identity& identity) {
    std::signal(SIGPIPE, SIG_IGN);  // OpenSSL's goodbye to a client that has hung up
    context_ = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(context_, identity.certificate);
    SSL_CTX_use_PrivateKey(context_, identity.key);
    std::tie(listener_, port) = listen_on_loopback();
    thread_ = std::thread([this] { serve(); });
  }
  ~TlsServer() {
    ::shutdown(listener_, SHUT_RDWR);
    if (connection_ >= 0) ::shutdown(connection_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
    SSL_CTX_free(context_);
  }
  std::string url() const { return fmt::format("https://127.0.0.1:{}", port); }
  int port = 0;

 private:
  void serve() {
    for (int fd; (fd = ::accept(listener_, nullptr, nullptr)) >= 0;) {
      connection_ = fd;
      SSL* ssl = SSL_new(context_);
      SSL_set_fd(ssl, fd);
      if (SSL_accept(ssl) == 1) {
        char request[4096];
        for (int i = 0, n; (n = SSL_read(ssl, request, sizeof request)) > 0; ++i) {
          // Larger than one TLS record, so that it comes in several.
          const std::string body = "echo " + std::to_string(i) + std::string(40000, 'x');
          const std::string answer =
              fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
          SSL_write(ssl, answer.data(), static_cast<int>(answer.size()));
        }
      }
      SSL_free(ssl);
      connection_ = -1;
      ::close(fd);
    }
  }

  SSL_CTX* context_;
  int listener_ = -1;
  std::atomic<int> connection_{-1};
  std::thread thread_;
};

TEST(Tls, RequestsGoOverOneConnection) {
  const Identity identity("IP:127.0.0.1");
  TlsServer server(identity);
  auto client = HttpClient::create(server.url(), {.ca_file = identity.file});
  ASSERT_TRUE(client) << client.error().to_string();
  for (int i = 0; i < 3; ++i) {
    const auto answer = client->get("/x");
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_TRUE(answer->body.starts_with("echo " + std::to_string(i)));
    EXPECT_EQ(answer->body.size(), 40006u);
  }
}

TEST(Tls, ACertificateThatIsNotTrustedIsRefused) {
  const Identity identity("IP:127.0.0.1");
  TlsServer server(identity);
  auto client = HttpClient::create(server.url());
  ASSERT_TRUE(client) << client.error().to_string();
  const auto answer = client->get("/x");
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), StatusCode::kPermissionDenied) << answer.error().to_string();
}

TEST(Tls, ACertificateForAnotherHostIsRefused) {
  const Identity identity("DNS:example.org");
  TlsServer server(identity);
  auto client = HttpClient::create(server.url(), {.ca_file = identity.file});
  const auto answer = client->get("/x");
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code(), StatusCode::kPermissionDenied) << answer.error().to_string();
}

TEST(Tls, AMissingFileOfCertificatesIsNamed) {
  const auto client = HttpClient::create("https://127.0.0.1:1", {.ca_file = "/none.pem"});
  ASSERT_FALSE(client);
  EXPECT_NE(client.error().message().find("/none.pem"), std::string::npos);
}

TEST(Tls, AServerThatSpeaksPlainHttpIsAnError) {
  const auto [listener, port] = listen_on_loopback();
  std::thread plain([listener = listener] {
    const int fd = ::accept(listener, nullptr, nullptr);
    char request[512];
    (void)::recv(fd, request, sizeof request, 0);
    const std::string_view answer = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    (void)::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
    ::close(fd);
  });
  auto client = HttpClient::create(fmt::format("https://127.0.0.1:{}", port));
  EXPECT_EQ(client->get("/").error().code(), StatusCode::kUnavailable);
  plain.join();
  ::close(listener);
}

}  // namespace
}  // namespace espalier::net
