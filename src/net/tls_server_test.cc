// A server of https, against the client of this room and against OpenSSL's own.
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/resource.h>

#include <atomic>
#include <cctype>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "net/client.h"
#include "net/http_server.h"
#include "net/test_identity.h"
#include "net/test_socket.h"
#include "net/tls.h"

namespace espalier::net {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kRequest = "GET /hello HTTP/1.1\r\nHost: h\r\n\r\n";
constexpr std::string_view kLastRequest =
    "GET /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

// One connection of OpenSSL's blocking client, which trusts any certificate.
class SslSocket {
 public:
  explicit SslSocket(int port) : socket_(port), context_(SSL_CTX_new(TLS_client_method())) {}
  ~SslSocket() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  SSL_CTX* context() { return context_; }
  SSL* ssl() { return ssl_; }
  bool connect() {
    ssl_ = SSL_new(context_);
    SSL_set_fd(ssl_, socket_.fd());
    return SSL_connect(ssl_) == 1;
  }
  void write(std::string_view text) { SSL_write(ssl_, text.data(), static_cast<int>(text.size())); }
  std::string read_some() {
    char chunk[4096];
    const int n = SSL_read(ssl_, chunk, sizeof chunk);
    why_ = SSL_get_error(ssl_, n);
    return n > 0 ? std::string(chunk, static_cast<size_t>(n)) : "";
  }
  std::string read_to_end() {
    std::string text;
    for (std::string part; !(part = read_some()).empty();) text += part;
    return text;
  }
  bool saw_close_notify() const { return why_ == SSL_ERROR_ZERO_RETURN; }

 private:
  TestSocket socket_;
  SSL_CTX* context_;
  SSL* ssl_ = nullptr;
  int why_ = 0;
};

// One connection of the room's own TLS, for a client that keeps many.
class TlsSocket {
 public:
  TlsSocket(int port, const std::shared_ptr<const TlsContext>& context)
      : socket_(port), tls_(*Tls::connect(context, "127.0.0.1")) {}
  bool connect() {
    while (true) {
      const Result<bool> done = tls_->handshake();
      socket_.write(tls_->output());
      if (!done || *done) return done && *done;
      if (!receive()) return false;
    }
  }
  void write(std::string_view text) {
    EXPECT_TRUE(tls_->encrypt(text).ok());
    socket_.write(tls_->output());
  }
  std::string read_until(std::string_view end) {
    std::string text;
    while (text.find(end) == std::string::npos) {
      if (!receive() || !tls_->decrypt(text)) break;
    }
    return text;
  }

 private:
  bool receive() {
    const std::string bytes = socket_.read_until([](const std::string& s) { return !s.empty(); });
    tls_->feed(bytes);
    return !bytes.empty();
  }
  TestSocket socket_;
  std::unique_ptr<Tls> tls_;
};

class TlsServerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    add("GET", "/hello",
        [](HttpRequest&&, ResponsePtr r) { r->send(HttpResponse::text(200, "hello\n")); });
    add("POST", "/echo", [](HttpRequest&& q, ResponsePtr r) {
      r->send(HttpResponse::text(200, std::move(q.body)));
    });
    add("GET", "/abandons", [](HttpRequest&&, ResponsePtr r) {
      r->start_stream(200, {});
      r->write("begun");
    });
    add("GET", "/waits", [this](HttpRequest&&, ResponsePtr r) {
      r->start_stream(200, {});
      r->write("begun\n");
      std::lock_guard lock(mutex_);
      streams_.push_back(std::move(r));
    });
  }
  void TearDown() override {
    streams_.clear();
    server_.reset();
  }
  void add(const char* method, const char* pattern, Handler handler) {
    ASSERT_TRUE(router_.add(method, pattern, std::move(handler)).ok());
  }
  static TlsFiles files(const Identity& identity) {
    return {.certificate = identity.file, .key = identity.key_file};
  }
  static std::shared_ptr<const TlsContext> read(const TlsFiles& files) {
    auto context = read_tls(files);
    EXPECT_TRUE(context) << context.error().to_string();
    return std::move(*context);
  }
  void start(const TlsFiles& files) {
    config_.tls = read(files);
    auto server = HttpServer::start(config_, std::move(router_));
    ASSERT_TRUE(server) << server.error().to_string();
    server_ = std::move(*server);
  }
  void start() { start(files(identity_)); }
  int port() const { return server_->port(); }
  HttpClient client(const Identity& trusted) const {
    auto made =
        HttpClient::create(fmt::format("https://127.0.0.1:{}", port()), {.ca_file = trusted.file});
    EXPECT_TRUE(made);
    return std::move(*made);
  }
  void expect_serves() {
    const auto answer = client(identity_).get("/hello");
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->body, "hello\n");
  }
  std::vector<ResponsePtr> streams() {
    std::lock_guard lock(mutex_);
    return streams_;
  }

  const Identity identity_{"IP:127.0.0.1"};
  HttpServerConfig config_;
  Router router_;
  std::unique_ptr<HttpServer> server_;
  std::mutex mutex_;
  std::vector<ResponsePtr> streams_;  // guarded by mutex_
};

TEST_F(TlsServerTest, AnswersOverOneConnection) {
  start();
  HttpClient c = client(identity_);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(c.get("/hello")->body, "hello\n");
  for (const size_t size : {1, 4095, 4096, 16384, 16385, 100000, 5 << 20}) {
    std::string body(size, 'x');
    for (size_t k = 0; k < size; ++k) body[k] = static_cast<char>('a' + k % 23);
    const auto answer = c.post("/echo", body);
    ASSERT_TRUE(answer) << size << answer.error().to_string();
    EXPECT_TRUE(answer->body == body) << size;
  }
  EXPECT_EQ(server_->stats().connections_total, 1);
}

TEST_F(TlsServerTest, PlainHttpIsAnsweredInTheClearAndClosed) {
  start();
  TestSocket socket(port());
  socket.write(kRequest);
  const std::string answer = socket.read_to_end();
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 400 Bad Request\r\n")) << answer;
  const size_t body = answer.find("\r\n\r\n") + 4;
  EXPECT_NE(answer.find(fmt::format("Content-Length: {}\r\n", answer.size() - body)),
            std::string::npos)
      << answer;
  EXPECT_TRUE(socket.at_end());
  expect_serves();
}

TEST_F(TlsServerTest, StalledHandshakesEndAtTheDeadlineAndDelayNoOne) {
  config_.header_timeout = 300ms;
  start();
  std::vector<TestSocket> stalled;
  for (int i = 0; i < 20; ++i) {
    stalled.emplace_back(port());
    stalled.back().write(i % 2 == 0 ? "" : std::string_view("\x16\x03\x01\x02\x00\x01", 6));
  }
  const TimePoint begin = SteadyClock().now();
  expect_serves();
  EXPECT_LT(to_seconds(SteadyClock().now() - begin), 0.25);
  for (TestSocket& socket : stalled) {
    EXPECT_EQ(socket.read_to_end(), "");
    EXPECT_TRUE(socket.at_end());
  }
  EXPECT_GE(to_seconds(SteadyClock().now() - begin), 0.25);
}

TEST_F(TlsServerTest, EndsAStreamWithCloseNotifyAndACutOffOneWithout) {
  start();
  SslSocket whole(port());
  ASSERT_TRUE(whole.connect());
  whole.write(kLastRequest);
  EXPECT_NE(whole.read_to_end().find("hello\n"), std::string::npos);
  EXPECT_TRUE(whole.saw_close_notify());
  SslSocket cut(port());
  ASSERT_TRUE(cut.connect());
  cut.write("GET /abandons HTTP/1.0\r\nHost: h\r\n\r\n");
  cut.read_to_end();
  EXPECT_FALSE(cut.saw_close_notify());
}

TEST_F(TlsServerTest, TakesTls12And13AndHttp11Alone) {
  start();
  for (const int version : {TLS1_2_VERSION, TLS1_3_VERSION}) {
    SslSocket good(port());
    SSL_CTX_set_min_proto_version(good.context(), version);
    SSL_CTX_set_max_proto_version(good.context(), version);
    SSL_CTX_set_alpn_protos(good.context(),
                            reinterpret_cast<const unsigned char*>("\x02h2\x08http/1.1"), 12);
    ASSERT_TRUE(good.connect());
    const unsigned char* chosen = nullptr;
    unsigned length = 0;
    SSL_get0_alpn_selected(good.ssl(), &chosen, &length);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(chosen), length), "http/1.1");
    good.write(kLastRequest);
    EXPECT_NE(good.read_to_end().find("hello"), std::string::npos);
  }
  SslSocket old(port());
  SSL_CTX_set_security_level(old.context(), 0);
  SSL_CTX_set_min_proto_version(old.context(), TLS1_VERSION);
  SSL_CTX_set_max_proto_version(old.context(), TLS1_1_VERSION);
  EXPECT_FALSE(old.connect());
  SslSocket http2(port());
  SSL_CTX_set_alpn_protos(http2.context(), reinterpret_cast<const unsigned char*>("\x02h2"), 3);
  EXPECT_FALSE(http2.connect());
  expect_serves();
}

TEST_F(TlsServerTest, ClientsMustShowACertificateWhereOneIsRequired) {
  const Identity caller("DNS:caller");
  TlsFiles required = files(identity_);
  required.client_ca = caller.file;
  start(required);
  // With TLS 1.3 a client learns of the refusal when it reads.
  SslSocket without(port());
  if (without.connect()) without.write(kLastRequest);
  EXPECT_EQ(without.read_to_end(), "");
  SslSocket with(port());
  SSL_CTX_use_certificate(with.context(), caller.certificate);
  SSL_CTX_use_PrivateKey(with.context(), caller.key);
  ASSERT_TRUE(with.connect());
  with.write(kLastRequest);
  EXPECT_NE(with.read_to_end().find("hello"), std::string::npos);
}

TEST_F(TlsServerTest, AnIdentityThatCannotBeUsedIsNamed) {
  const Identity other("IP:127.0.0.1"), locked("IP:127.0.0.1", "secret");
  const auto why = [](const TlsFiles& files) {
    const auto read = read_tls(files);
    return read ? std::string() : read.error().to_string();
  };
  EXPECT_NE(why({.certificate = "/none.pem"}).find("/none.pem"), std::string::npos);
  EXPECT_NE(why({identity_.file, "/none.key"}).find("/none.key"), std::string::npos);
  EXPECT_NE(why({identity_.file, other.key_file}).find("is not that of the certificate"),
            std::string::npos);
  EXPECT_NE(why({locked.file, locked.key_file}), "");
  EXPECT_NE(why({locked.file, locked.key_file, "wrong"}), "");
  EXPECT_EQ(why({locked.file, locked.key_file, "secret"}), "");
  EXPECT_NE(why({identity_.file, identity_.key_file, "", "/none.ca"}).find("/none.ca"),
            std::string::npos);
}

TEST_F(TlsServerTest, ANewIdentityIsForNewConnectionsUnderLoad) {
  config_.num_threads = 2;
  start();
  const Identity next("IP:127.0.0.1");
  std::atomic<bool> done{false};
  std::atomic<int> num_failed{0}, num_answered{0}, num_connected{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      HttpClient c = client(identity_);
      if (!c.get("/hello")) ++num_failed;
      ++num_connected;
      while (!done) ++(c.get("/hello") ? num_answered : num_failed);
    });
  }
  while (num_connected < 4 || num_answered < 100) std::this_thread::yield();
  server_->set_tls(read(files(next)));
  const int before = num_answered;
  EXPECT_EQ(client(next).get("/hello")->body, "hello\n");
  EXPECT_EQ(client(identity_).get("/hello").error().code(), StatusCode::kPermissionDenied);
  while (num_answered < before + 100) std::this_thread::yield();
  done = true;
  for (std::thread& thread : clients) thread.join();
  EXPECT_EQ(num_failed, 0);
}

TEST_F(TlsServerTest, AThousandStreamsAreServedAtOnce) {
  constexpr size_t kStreams = 1000;
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 4096);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  config_.num_threads = 2;
  start();
  const auto context = TlsContext::for_client({.ca = identity_.file});
  std::vector<std::unique_ptr<TlsSocket>> sockets;
  for (size_t i = 0; i < kStreams; ++i) {
    sockets.push_back(std::make_unique<TlsSocket>(port(), *context));
    ASSERT_TRUE(sockets.back()->connect()) << i;
    sockets.back()->write("GET /waits HTTP/1.1\r\nHost: h\r\n\r\n");
    ASSERT_NE(sockets.back()->read_until("begun\n").find("begun\n"), std::string::npos) << i;
  }
  ASSERT_EQ(streams().size(), kStreams);
  for (const ResponsePtr& stream : streams()) stream->write("more\n");
  for (const ResponsePtr& stream : streams()) stream->finish();
  for (const auto& socket : sockets)
    EXPECT_NE(socket->read_until("0\r\n\r\n").find("more\n"), std::string::npos);
}

TEST_F(TlsServerTest, AClientThatDoesNotReadIsDropped) {
  config_.max_pending_output_bytes = 1 << 20;
  start();
  const auto context = TlsContext::for_client({.ca = identity_.file});
  TlsSocket socket(port(), *context);
  ASSERT_TRUE(socket.connect());
  socket.write("GET /waits HTTP/1.1\r\nHost: h\r\n\r\n");
  socket.read_until("begun\n");
  const ResponsePtr stream = streams().front();
  for (int i = 0; i < 1000 && !stream->closed(); ++i) {
    stream->write(std::string(64 << 10, 'x'));
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(stream->closed());
  EXPECT_EQ(server_->stats().dropped_slow_total, 1);
  expect_serves();
}

// Handshakes and records with bytes changed; none may end or block the server.
TEST_F(TlsServerTest, DamagedBytesEndTheirConnectionAlone) {
  config_.header_timeout = 200ms;
  config_.idle_timeout = 200ms;
  start();
  const auto context = TlsContext::for_client({.ca = identity_.file});
  std::minstd_rand random(20261);
  for (int i = 0; i < 200; ++i) {
    const auto tls = *Tls::connect(*context, "127.0.0.1");
    (void)tls->handshake();
    std::string hello = tls->output();
    for (unsigned k = 0; k < 1 + random() % 4; ++k)
      hello[random() % hello.size()] = static_cast<char>(random());
    TestSocket socket(port());
    socket.write(hello.substr(0, 1 + random() % hello.size()));
    socket.shut_sending();
    socket.read_to_end();
    ASSERT_TRUE(socket.at_end()) << i;
  }
  expect_serves();
}

}  // namespace
}  // namespace espalier::net
