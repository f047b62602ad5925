// Heads are checked before bodies are read: framing that two parsers may read differently, hosts,
// expectations, admission, and the account of bodies.
#include "net/request_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace espalier::net {
namespace {

using Progress = RequestReader::Progress;
using testing::HasSubstr;

class RequestReaderTest : public testing::Test {
 protected:
  RequestReaderTest() {
    const Handler none = [](HttpRequest&&, ResponsePtr) {};
    EXPECT_TRUE(router_.add("POST", "/open", none).ok());
    EXPECT_TRUE(router_
                    .add("POST", "/closed", none,
                         [](const HttpRequest& head) -> std::optional<HttpResponse> {
                           const std::string* key = head.header("Authorization");
                           if (key != nullptr && *key == "Bearer k") return std::nullopt;
                           return HttpResponse::text(401, "no");
                         })
                    .ok());
  }

  Progress read(std::string_view bytes) {
    std::memcpy(reader().prepare(bytes.size()), bytes.data(), bytes.size());
    reader().commit(bytes.size());
    return reader().read();
  }
  // The status that the request made of these bytes is refused with; 0: it is not refused.
  int refusal(std::string_view bytes) {
    reader_.reset();
    const Progress progress = read(bytes);
    if (progress == Progress::kNeedsMore || progress == Progress::kContinue) return 0;
    const RequestReader::Taken taken = reader().take();
    return taken.refusal ? taken.refusal->status : 0;
  }
  RequestReader& reader() {
    if (reader_ == nullptr) reader_ = std::make_unique<RequestReader>(config_, router_);
    return *reader_;
  }

  HttpServerConfig config_;
  Router router_;
  std::unique_ptr<RequestReader> reader_;
};

std::string post(std::string_view path, std::string_view headers, std::string_view body = "") {
  return fmt::format("POST {} HTTP/1.1\r\nHost: x\r\n{}\r\n{}", path, headers, body);
}

TEST_F(RequestReaderTest, TheLastTransferCodingIsChunkedOnce) {
  for (const char* codings : {"xchunked", "identity", "chunked, identity", "chunked, chunked",
                              "gzip", ",", "", "chunked,", "chunked;a=b"}) {
    const std::string bytes = post("/open", fmt::format("Transfer-Encoding: {}\r\n", codings),
                                   "GET /open HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_EQ(refusal(bytes), 400) << codings;
    EXPECT_EQ(reader().num_buffered(), 0u) << "what follows is no request";
  }
  EXPECT_EQ(refusal(post("/open", "Transfer-Encoding: gzip, chunked\r\n")), 501);
  EXPECT_EQ(refusal(post("/open", "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n")),
            501);
  EXPECT_EQ(refusal(post("/open", "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n")), 400);
  EXPECT_EQ(refusal("POST /open HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(refusal(post("/open", "Transfer-Encoding: Chunked\r\n", "3\r\nabc\r\n0\r\n\r\n")), 0);
}

TEST_F(RequestReaderTest, ARequestHasOneHost) {
  EXPECT_EQ(refusal("GET /open HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
  EXPECT_EQ(refusal("GET /open HTTP/1.1\r\n\r\n"), 400);
  EXPECT_EQ(refusal("GET /open HTTP/1.0\r\n\r\n"), 0);
}

TEST_F(RequestReaderTest, HostsOfOtherNamesAreRefusedWhereOnlyLocalOnesAreServed) {
  config_.local_hosts_only = true;
  for (const char* host : {"localhost", "localhost:80", "LOCALHOST", "a.localhost", "127.0.0.1:8",
                           "[::1]:30000", "10.1.2.3"})
    EXPECT_EQ(refusal(fmt::format("GET /open HTTP/1.1\r\nHost: {}\r\n\r\n", host)), 0) << host;
  for (const char* host : {"evil.com", "localhost.evil.com", "1.2.3.4.evil.com:80", ""})
    EXPECT_EQ(refusal(fmt::format("GET /open HTTP/1.1\r\nHost: {}\r\n\r\n", host)), 403) << host;
}

TEST_F(RequestReaderTest, UnknownExpectationsFailWhereverTheBodyIs) {
  EXPECT_EQ(refusal(post("/open", "Expect: 200-ok\r\nContent-Length: 3\r\n", "abc")), 417);
  EXPECT_EQ(refusal(post("/open", "Expect: 200-ok\r\nContent-Length: 3\r\n")), 417);
  EXPECT_EQ(read(post("/open", "Expect: 100-continue\r\nContent-Length: 3\r\n")),
            Progress::kContinue);
  EXPECT_EQ(reader().read(), Progress::kNeedsMore);  // once
  EXPECT_EQ(read("abc"), Progress::kComplete);
  EXPECT_EQ(reader().take().request.body, "abc");
}

TEST_F(RequestReaderTest, ARefusedHeadEndsTheRequestBeforeItsBody) {
  EXPECT_EQ(read(post("/closed", "Content-Length: 1000000\r\n")), Progress::kRefused);
  const RequestReader::Taken taken = reader().take();
  EXPECT_EQ(taken.refusal->status, 401);
  EXPECT_FALSE(taken.traits.keep_alive);

  // Without a body the connection goes on.
  EXPECT_EQ(read(post("/closed", "Content-Length: 0\r\n")), Progress::kComplete);
  const RequestReader::Taken empty = reader().take();
  EXPECT_EQ(empty.refusal->status, 401);
  EXPECT_TRUE(empty.traits.keep_alive);

  EXPECT_EQ(read(post("/closed", "Authorization: Bearer k\r\nContent-Length: 1\r\n", "x")),
            Progress::kComplete);
  EXPECT_FALSE(reader().take().refusal.has_value());
}

TEST_F(RequestReaderTest, EveryFormOfATargetIsAdmittedByItsPath) {
  for (const char* target : {"/closed", "/closed?q=/open", "http://x/closed", "/%63losed"})
    EXPECT_EQ(refusal(post(target, "Content-Length: 9\r\n")), 401) << target;
}

TEST_F(RequestReaderTest, FieldsOfATrailerAreNoHeaders) {
  const std::string body = "1\r\nx\r\n0\r\nAuthorization: Bearer k\r\n\r\n";
  EXPECT_EQ(refusal(post("/closed", "Transfer-Encoding: chunked\r\n", body)), 401);
  EXPECT_EQ(read(post("/open", "Transfer-Encoding: chunked\r\n", body)), Progress::kComplete);
  const HttpRequest request = reader().take().request;
  EXPECT_EQ(request.body, "x");
  EXPECT_EQ(request.header("Authorization"), nullptr);
}

TEST_F(RequestReaderTest, BodiesTogetherStayWithinTheirAccount) {
  config_.bodies = std::make_shared<MemoryAccount>("bodies", 100'000);
  RequestReader first(config_, router_), second(config_, router_);
  const auto feed = [](RequestReader& reader, std::string_view bytes) {
    std::memcpy(reader.prepare(bytes.size()), bytes.data(), bytes.size());
    reader.commit(bytes.size());
    return reader.read();
  };
  const std::string body(80'000, 'x');
  const std::string bytes = post("/open", "Content-Length: 80000\r\n", body);
  ASSERT_EQ(feed(first, bytes), Progress::kComplete);
  {
    const HttpRequest held = first.take().request;
    EXPECT_GE(config_.bodies->used(), 80'000);
    EXPECT_EQ(feed(second, bytes), Progress::kRefused);
    const RequestReader::Taken refused = second.take();
    EXPECT_EQ(refused.refusal->status, 503);
    EXPECT_NE(find_header(refused.refusal->headers, "Retry-After"), nullptr);
  }
  EXPECT_EQ(config_.bodies->used(), 0);
  EXPECT_EQ(feed(second, bytes), Progress::kComplete);
}

TEST_F(RequestReaderTest, OriginsThatMayReadAreListed) {
  const auto origin_of = [this](const char* origin) {
    reader_.reset();
    EXPECT_EQ(read(fmt::format("GET /open HTTP/1.1\r\nHost: x\r\nOrigin: {}\r\n\r\n", origin)),
              Progress::kComplete);
    return reader().take().traits.origin;
  };
  EXPECT_EQ(origin_of("http://a"), "*");
  config_.cors_origins = {"http://a", "http://b"};
  EXPECT_EQ(origin_of("http://b"), "http://b");
  EXPECT_EQ(origin_of("http://c"), "");
  config_.cors_origins.clear();
  EXPECT_EQ(origin_of("http://a"), "");
}

}  // namespace
}  // namespace espalier::net
