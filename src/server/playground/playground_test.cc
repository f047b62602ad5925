#include "server/playground/playground.h"

#include "server/test_server.h"

namespace espalier::server {
namespace {

const net::Headers kBrowser = {{"Accept", "text/html,application/xhtml+xml,*/*;q=0.8"},
                               {"Accept-Encoding", "gzip, deflate, br"}};

TEST(Playground, IsServedOnLoopbackUnlessStated) {
  ServerConfig config;
  for (const char* host : {"127.0.0.1", "localhost", "::1", "127.3.2.1"}) {
    config.host = host;
    EXPECT_TRUE(serves_playground(config)) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "example.org"}) {
    config.host = host;
    EXPECT_FALSE(serves_playground(config)) << host;
  }
  config.enable_playground = true;
  EXPECT_TRUE(serves_playground(config));
  config.host = "127.0.0.1";
  config.enable_playground = false;
  EXPECT_FALSE(serves_playground(config));
}

TEST(Playground, ItsFilesTakeLittleAndAskNobodyElse) {
  size_t num_bytes = 0;
  for (const StaticFile& file : playground_files()) {
    num_bytes += file.plain.size();
    if (!file.name.ends_with(".png")) {  // which is compressed already
      EXPECT_LT(file.gzip.size(), file.plain.size()) << file.name;
    }
    EXPECT_EQ(file.plain.find("src=\"http"), std::string_view::npos) << file.name;
  }
  EXPECT_LE(num_bytes, 150u * 1000);
  EXPECT_GT(num_bytes, 10u * 1000);
}

TEST_F(ServerTest, ABrowserGetsThePageAndOthersTheList) {
  start();
  const Answer page = call("GET", "/", {}, kBrowser);
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.header("Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.header("Content-Encoding"), "gzip");
  EXPECT_EQ(page.body.substr(0, 2), "\x1f\x8b");
  EXPECT_NE(page.header("Content-Security-Policy").find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(page.header("Content-Security-Policy").find("unsafe"), std::string::npos);
  EXPECT_EQ(call("GET", "/").header("Content-Type"), "application/json");
}

TEST_F(ServerTest, APageThatOpensThePlaygroundGetsNoHoldOfIt) {
  start();
  const auto opener_policy = [&](const char* site) {
    net::Headers headers = kBrowser;
    if (site) headers.emplace_back("Sec-Fetch-Site", site);
    return call("GET", "/", {}, headers).header("Cross-Origin-Opener-Policy");
  };
  for (const char* site : {"cross-site", "same-site", "same-origin", ""})
    EXPECT_EQ(opener_policy(site), "same-origin") << site;
  EXPECT_EQ(opener_policy(nullptr), "same-origin") << "a browser that does not say";
  EXPECT_EQ(opener_policy("none"), "") << "an address that was typed has no opener";
}

TEST_F(ServerTest, FilesOfThePlaygroundAreSentOnce) {
  start();
  const Answer plain = call("GET", "/playground/main.js");
  EXPECT_EQ(plain.status, 200);
  EXPECT_EQ(plain.header("Content-Type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(plain.header("Content-Encoding"), "");
  const Answer again =
      call("GET", "/playground/main.js", {}, {{"If-None-Match", plain.header("ETag")}});
  EXPECT_EQ(again.status, 304);
  EXPECT_EQ(again.body, "");
  EXPECT_EQ(call("GET", "/playground/none.js").status, 404);
  EXPECT_EQ(call("GET", "/playground/..%2fserver.cc").status, 404);
}

TEST_F(ServerTest, WithoutThePlaygroundNothingOfItIsServed) {
  config_.enable_playground = false;
  start();
  EXPECT_EQ(call("GET", "/", {}, kBrowser).header("Content-Type"), "application/json");
  const Answer file = call("GET", "/playground/main.js");
  EXPECT_EQ(file.status, 404);
  EXPECT_NE(file.body.find("--enable-playground"), std::string::npos);
}

TEST_F(ServerTest, WhatAnObserverSeesTakesTheAdministratorsKey) {
  config_.access.api_key = "user";
  config_.access.admin_api_key = "admin";
  start();
  const net::Headers user = {{"Authorization", "Bearer user"}};
  const net::Headers admin = {{"Authorization", "Bearer admin"}};
  for (const char* path : {"/cache_tree", "/cache_tree/1", "/requests"}) {
    EXPECT_EQ(call("GET", path).status, 401) << path;
    EXPECT_EQ(call("GET", path, {}, user).status, 403) << path;
  }
  EXPECT_EQ(call("GET", "/requests", {}, admin).status, 200);
  EXPECT_EQ(call("GET", "/", {}, kBrowser).status, 200) << "the page asks for the key";
  for (const char* path : {"/", "/openapi.json"}) {
    EXPECT_EQ(call("GET", path).status, 401) << path;
    EXPECT_EQ(call("GET", path, {}, user).status, 200) << path;
  }
}

TEST_F(ServerTest, PagesOfOtherOriginsReadNoPromptsWithoutAKey) {
  start();
  const auto status = [&](const char* path, const std::string& origin) {
    return call("GET", path, {}, {{"Origin", origin}}).status;
  };
  const std::string own = fmt::format("http://127.0.0.1:{}", server_->port());
  for (const char* path : {"/cache_tree", "/cache_tree/1", "/requests", "/kv_events"}) {
    EXPECT_EQ(status(path, "https://example.org"), 403) << path;
    EXPECT_EQ(status(path, "null"), 403) << path;
    EXPECT_EQ(status(path, "http://127.0.0.1:1"), 403) << path;
    EXPECT_NE(status(path, own), 403) << path;
  }
  EXPECT_EQ(status("/requests", own), 200);
  EXPECT_EQ(status("/v1/models", "https://example.org"), 200)
      << "the API itself is as open as ever";
}

TEST_F(ServerTest, OriginsThatAreNamedOrBringAKeyReadThem) {
  config_.access.cors_origins = {"https://dashboard.example"};
  start();
  const net::Headers named = {{"Origin", "https://dashboard.example"}};
  EXPECT_EQ(call("GET", "/requests", {}, named).status, 200);
  EXPECT_EQ(call("GET", "/requests", {}, {{"Origin", "https://example.org"}}).status, 403);
}

TEST_F(ServerTest, AKeyIsEnoughForAPageOfAnotherOrigin) {
  config_.access.admin_api_key = "admin";
  start();
  const net::Headers other = {{"Origin", "https://example.org"}, {"Authorization", "Bearer admin"}};
  EXPECT_EQ(call("GET", "/requests", {}, other).status, 200);
}

TEST_F(ServerTest, EntriesOfAChatsLogprobsHaveIdsAndOriginsWhereAsked) {
  start();
  const std::string body = R"({"messages":[{"role":"user","content":"x"}],"max_tokens":2)";
  const std::string entries =
      post("/v1/chat/completions",
           body + R"(,"logprobs":true,"top_logprobs":1,"return_token_origins":true})")
          .body;
  EXPECT_NE(entries.find(R"([{"token_id":72,"origin":"drafted","token":"H",)"), std::string::npos)
      << entries;
  EXPECT_NE(entries.find(R"("top_logprobs":[{"token_id":72,"token":"H",)"), std::string::npos);
  EXPECT_NE(entries.find(R"({"token_id":105,"origin":"sampled",)"), std::string::npos);
  EXPECT_EQ(post("/v1/chat/completions", body + R"(,"return_token_origins":true})").status, 400);
  EXPECT_EQ(post("/v1/chat/completions", body + R"(,"logprobs":true})").body.find("origin"),
            std::string::npos);
}

TEST_F(ServerTest, RequestsAreListedWithTheirTimes) {
  start();
  post("/generate", R"({"text":"abc","rid":"one","sampling_params":{"max_new_tokens":4}})");
  const std::string body = call("GET", "/requests").body;
  EXPECT_NE(body.find(R"("rid":"one","stream":false,"prompt_tokens":4,)"), std::string::npos)
      << body;
  EXPECT_NE(body.find(R"("completion_tokens":4)"), std::string::npos) << body;
  EXPECT_NE(body.find(R"("end":"length")"), std::string::npos) << body;
  EXPECT_EQ(call("GET", "/requests?since=2").body, R"({"requests":[]})");
  EXPECT_EQ(call("GET", "/requests?since=-1").status, 400);
}

}  // namespace
}  // namespace espalier::server
