#include "net/client.h"

#include <gtest/gtest.h>

#include <thread>
#include <tuple>

#include "net/test_socket.h"

namespace espalier::net {
namespace {

using namespace std::chrono_literals;

// Accepts connections one after the other and answers each with the next of `answers`, whatever was
// asked; "" closes at once, "-" keeps silent.
class CannedServer {
 public:
  explicit CannedServer(std::vector<std::string> answers) : answers_(std::move(answers)) {
    std::tie(listener_, port_) = listen_on_loopback();
    thread_ = std::thread([this] { serve(); });
  }
  ~CannedServer() {
    ::shutdown(listener_, SHUT_RDWR);
    thread_.join();
    ::close(listener_);
    if (silent_ >= 0) ::close(silent_);
  }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", port_); }

 private:
  void serve() {
    for (const std::string& answer : answers_) {
      const int fd = ::accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      char request[4096];
      (void)::recv(fd, request, sizeof request, 0);
      if (answer == "-") {
        silent_ = fd;
        continue;
      }
      (void)::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
      ::close(fd);
    }
  }

  std::vector<std::string> answers_;
  int listener_ = -1, port_ = 0, silent_ = -1;
  std::thread thread_;
};

TEST(HttpClientTest, HandsOverLines) {
  const std::string lines = "one\ntwo\r\n\nfour\ncut";
  const std::string head = "HTTP/1.1 200 OK\r\nConnection: close\r\n";
  CannedServer server(
      {head + "\r\n" + lines,
       head + "Transfer-Encoding: chunked\r\n\r\n2\r\non\r\n4\r\ne\ntw\r\n2\r\no\n\r\n0\r\n\r\n",
       head + "\r\n" + lines, "HTTP/1.1 410 Gone\r\nConnection: close\r\n\r\na\nb",
       head + "Transfer-Encoding: chunked\r\n\r\n4\r\none\n\r\n"});
  auto client = HttpClient::create(server.url());
  ASSERT_TRUE(client);
  std::vector<std::string> got;
  size_t wanted = 100;
  const auto take = [&](std::string_view line) {
    got.emplace_back(line);
    return got.size() < wanted;
  };
  ASSERT_TRUE(client->get_lines("/", take));
  EXPECT_EQ(got, (std::vector<std::string>{"one", "two", "", "four"})) << "the last line was cut";
  got.clear();
  ASSERT_TRUE(client->get_lines("/", take));
  EXPECT_EQ(got, (std::vector<std::string>{"one", "two"}));
  got.clear();
  wanted = 2;
  ASSERT_TRUE(client->get_lines("/", take));
  EXPECT_EQ(got.size(), 2);
  got.clear();
  const auto gone = client->get_lines("/", take);
  ASSERT_TRUE(gone);
  EXPECT_EQ(gone->status, 410);
  EXPECT_EQ(gone->body, "a\nb");
  EXPECT_TRUE(got.empty());
  const auto cut = client->get_lines("/", take);
  EXPECT_FALSE(cut) << "the server left in the middle";
  EXPECT_EQ(got, std::vector<std::string>{"one"});
}

TEST(Url, Parses) {
  struct Case {
    const char *text, *host;
    int port;
    const char* path;
  };
  for (const Case& c : {Case{"http://127.0.0.1:30000", "127.0.0.1", 30000, ""},
                        {"http://a.b/v1/", "a.b", 80, "/v1"},
                        {"localhost:1", "localhost", 1, ""},
                        {"http://[::1]:8080/x", "::1", 8080, "/x"}}) {
    auto url = Url::parse(c.text);
    ASSERT_TRUE(url) << c.text;
    EXPECT_EQ(url->host, c.host);
    EXPECT_EQ(url->port, c.port);
    EXPECT_EQ(url->path, c.path);
  }
  for (const char* bad :
       {"", "http://", "ftp://a", "http://a:b", "http://a:0", "http://a:70000", "http://[::1"}) {
    EXPECT_FALSE(Url::parse(bad)) << bad;
  }
  for (const auto& [text, authority] : {std::pair{"http://a:80/x", "a"},
                                        {"https://a:80", "a:80"},
                                        {"http://[::1]:81", "[::1]:81"},
                                        {"https://[::1]", "[::1]"}})
    EXPECT_EQ(Url::parse(text)->authority(), authority);
  EXPECT_TRUE(Url::parse("https://a")->is_https);
  EXPECT_EQ(Url::parse("https://a")->port, 443);
}

TEST(HttpClient, ReadsEveryKindOfBody) {
  struct Case {
    const char *answer, *body;
    int status;
  };
  for (const Case& c :
       {Case{"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", 200},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n1\r\n!\r\n0\r\n\r\n",
         "ok!", 200},
        {"HTTP/1.0 404 No\r\n\r\nto the end", "to the end", 404},
        {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 None\r\n\r\n", "", 204}}) {
    CannedServer server({c.answer});
    auto client = HttpClient::create(server.url());
    auto answer = client->get("/");
    ASSERT_TRUE(answer) << answer.error().to_string();
    EXPECT_EQ(answer->status, c.status);
    EXPECT_EQ(answer->body, c.body);
  }
}

TEST(HttpClient, NamesWhatBroke) {
  struct Case {
    const char* answer;
    StatusCode code;
  };
  for (const Case& c :
       {Case{"", StatusCode::kUnavailable},
        {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", StatusCode::kUnavailable},
        {"SMTP ready\r\n\r\n", StatusCode::kDataLoss},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", StatusCode::kDataLoss},
        {"-", StatusCode::kDeadlineExceeded}}) {
    CannedServer server({c.answer, c.answer});
    HttpClientConfig config;
    config.read_timeout = c.code == StatusCode::kDeadlineExceeded ? Duration(50ms) : Duration(10s);
    auto client = HttpClient::create(server.url(), config);
    auto answer = client->get("/");
    ASSERT_FALSE(answer) << c.answer;
    EXPECT_EQ(answer.error().code(), c.code) << answer.error().to_string();
  }
  auto nobody = HttpClient::create("http://127.0.0.1:1");
  EXPECT_EQ(nobody->get("/").error().code(), StatusCode::kUnavailable);
}

TEST(HttpClient, ReconnectsWhenAKeptConnectionWasClosed) {
  const char* answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
  CannedServer server({answer, answer});  // says keep-alive, and closes
  auto client = HttpClient::create(server.url());
  for (int i = 0; i < 2; ++i) {
    auto got = client->get("/");
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_EQ(got->body, "ok");
  }
}

// Both requests are sent before an answer is awaited; one whose connection was closed before is
// sent once more.
TEST(HttpClient, StartsAndFinishesApart) {
  const std::string answer = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
  CannedServer one({answer + "one", answer + "two"}), other({answer + "new"});
  auto first = HttpClient::create(one.url());
  auto second = HttpClient::create(other.url());
  ASSERT_TRUE(first && second);
  const TimePoint deadline = std::chrono::steady_clock::now() + 30s;
  for (const char* body : {"one", "two"}) {
    ASSERT_TRUE(first->start("PUT", "/a", "body", {}, deadline).ok());
    if (body == std::string("one")) {
      ASSERT_TRUE(second->start("GET", "/b", {}, {}, deadline).ok());
      EXPECT_EQ(second->finish()->body, "new");
    }
    const auto got = first->finish();
    ASSERT_TRUE(got) << got.error().to_string();
    EXPECT_EQ(got->body, body);
  }
  CannedServer silent({"-"});
  auto third = HttpClient::create(silent.url());
  ASSERT_TRUE(third->start("GET", "/", {}, {}, std::chrono::steady_clock::now() + 10ms).ok());
  EXPECT_EQ(third->finish().error().code(), StatusCode::kDeadlineExceeded);
}

TEST(HttpClient, SplitsEventsWhereverTheyAreCut) {
  std::string answer =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string events =
      ": comment\n\ndata: one\n\nid: 7\r\ndata:two\r\ndata: lines\r\n\r\ndata: [DONE]\n\n";
  for (const char c : events) answer += fmt::format("1\r\n{}\r\n", c);
  answer += "0\r\n\r\n";
  CannedServer server({answer});
  auto client = HttpClient::create(server.url());
  std::vector<std::string> seen;
  auto got = client->post_stream("/", "{}", [&](std::string_view data) {
    seen.emplace_back(data);
    return true;
  });
  ASSERT_TRUE(got) << got.error().to_string();
  EXPECT_EQ(seen, (std::vector<std::string>{"one", "two\nlines", "[DONE]"}));
}

}  // namespace
}  // namespace espalier::net
