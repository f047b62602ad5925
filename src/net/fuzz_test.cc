// Mutated requests against the running server: whatever arrives, it answers HTTP or closes, and
// goes on serving. Deterministic from the seed that is printed.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/rng.h"
#include "net/client.h"
#include "net/http_server.h"
#include "net/test_socket.h"

namespace espalier::net {
namespace {

const char* const kSeeds[] = {
    "GET /hello?q=%20x HTTP/1.1\r\nHost: a\r\nAccept: */*\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello world",
    "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    "6;x=y\r\n world\r\n0\r\nT: v\r\n\r\n",  // NOLINT(bugprone-suspicious-missing-comma): one
    "GET /hello HTTP/1.1\r\nHost: a\r\n\r\nGET /hello HTTP/1.1\r\nHost: a\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\nx",
};
const char* const kPieces[] = {"\r\n",
                               "\n",
                               "\r",
                               "\r\n\r\n",
                               ":",
                               " ",
                               "\t",
                               "%",
                               "0",
                               "-1",
                               "\xff",
                               "HTTP/1.1",
                               "Content-Length: 99999999999999999999\r\n",
                               "Transfer-Encoding: chunked\r\n",
                               "Connection: close\r\n",
                               "//",
                               "?"};

std::string mutate(Rng& rng) {
  std::string text = kSeeds[rng.below(std::size(kSeeds))];
  for (uint64_t n = 1 + rng.below(4); n > 0 && !text.empty(); --n) {
    const size_t at = rng.below(text.size());
    switch (rng.below(6)) {
      case 0:
        text[at] = static_cast<char>(rng.below(256));
        break;
      case 1:
        text.erase(at, 1 + rng.below(8));
        break;
      case 2:
        text.insert(at, kPieces[rng.below(std::size(kPieces))]);
        break;
      case 3:
        text.insert(at, text.substr(rng.below(text.size()), rng.below(40)));
        break;
      case 4:
        text.resize(at);
        break;
      case 5:
        text[at] ^= static_cast<char>(1u << rng.below(8));
        break;
    }
  }
  return text;
}

TEST(HttpFuzz, EveryAnswerIsHttp) {
  const uint64_t seed = 20240607;
  const char* const rounds = std::getenv("ESPALIER_FUZZ_ROUNDS");
  const int num_rounds = rounds != nullptr ? std::atoi(rounds) : 1500;
  RecordProperty("seed", static_cast<int>(seed));
  Router router;
  ASSERT_TRUE(router
                  .add("GET", "/hello",
                       [](HttpRequest&&, ResponsePtr r) { r->send(HttpResponse::text(200, "hi")); })
                  .ok());
  ASSERT_TRUE(router
                  .add("POST", "/echo",
                       [](HttpRequest&& q, ResponsePtr r) {
                         r->start_stream(200, {});
                         r->write(std::move(q.body));
                         r->finish();
                       })
                  .ok());
  auto server = HttpServer::start({}, std::move(router));
  ASSERT_TRUE(server);
  Rng rng(seed);
  int num_ok = 0, num_refused = 0;
  for (int i = 0; i < num_rounds; ++i) {
    const std::string bytes = mutate(rng);
    SCOPED_TRACE(fmt::format("seed {} round {}: {}", seed, i, testing::PrintToString(bytes)));
    TestSocket socket((*server)->port());
    socket.write(bytes);
    socket.shut_sending();
    const std::string answer = socket.read_to_end();
    ASSERT_TRUE(socket.at_end());
    if (answer.empty()) continue;
    ASSERT_TRUE(answer.starts_with("HTTP/1.1 ")) << answer;
    answer.starts_with("HTTP/1.1 2") ? ++num_ok : ++num_refused;
  }
  // The mutations reach both sides of the parser.
  EXPECT_GT(num_ok, num_rounds / 20);
  EXPECT_GT(num_refused, num_rounds / 20);
  auto client = HttpClient::create(fmt::format("http://127.0.0.1:{}", (*server)->port()));
  EXPECT_EQ(client->get("/hello")->body, "hi");
}

}  // namespace
}  // namespace espalier::net
