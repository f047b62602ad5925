#include "net/exchange.h"

#include <gtest/gtest.h>

namespace espalier::net {
namespace {

std::string head_of(const Exchange& exchange, std::optional<size_t> length = 5) {
  std::string out;
  exchange.append_head(out, 200, {{"X-Text", "a\r\nX-Evil: 1"}}, length, "now");
  return out;
}

TEST(Exchange, TheHeadStatesLengthAndConnection) {
  Exchange exchange;
  exchange.begin({.keep_alive = true}, true);
  EXPECT_EQ(head_of(exchange),
            "HTTP/1.1 200 OK\r\nDate: now\r\nX-Text: a  X-Evil: 1\r\nContent-Length: 5\r\n\r\n");
  exchange.close_after();
  EXPECT_NE(head_of(exchange).find("Connection: close\r\n"), std::string::npos);
  exchange.begin({.http10 = true, .keep_alive = true, .origin = "http://a"}, true);
  const std::string head = head_of(exchange);
  EXPECT_NE(head.find("Connection: keep-alive\r\n"), std::string::npos);
  EXPECT_NE(head.find("Access-Control-Allow-Origin: http://a\r\n"), std::string::npos);
  EXPECT_NE(head.find("Vary: Origin\r\n"), std::string::npos);
}

TEST(Exchange, AStreamIsChunkedOrEndsTheConnection) {
  Exchange exchange;
  exchange.begin({.keep_alive = true}, true);
  exchange.start_stream();
  EXPECT_TRUE(exchange.is_chunked());
  EXPECT_TRUE(exchange.keeps_alive());
  const std::string head = head_of(exchange, std::nullopt);
  EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), std::string::npos);
  EXPECT_EQ(head.find("Content-Length"), std::string::npos);
  exchange.begin({.http10 = true, .keep_alive = true}, true);
  EXPECT_FALSE(exchange.is_chunked());  // that of the exchange before
  exchange.start_stream();
  EXPECT_FALSE(exchange.is_chunked());
  EXPECT_FALSE(exchange.keeps_alive());
}

TEST(Exchange, OnlyAnAnswerThatIsNotCompleteIsLost) {
  Exchange exchange;
  EXPECT_EQ(exchange.lose(), nullptr);  // there was none
  int num_lost = 0;
  exchange.begin({}, true);
  EXPECT_EQ(exchange.id(), 1u);
  exchange.set_disconnect([&] { ++num_lost; });
  EXPECT_NE(exchange.finish(), nullptr);
  EXPECT_EQ(exchange.outcome()->load(), Outcome::kAnswered);
  EXPECT_EQ(exchange.lose(), nullptr);
  EXPECT_EQ(exchange.outcome()->load(), Outcome::kAnswered);

  exchange.begin({}, true);
  exchange.set_disconnect([&] { ++num_lost; });
  exchange.lose()();
  EXPECT_EQ(num_lost, 1);
  EXPECT_EQ(exchange.outcome()->load(), Outcome::kGone);
}

}  // namespace
}  // namespace espalier::net
