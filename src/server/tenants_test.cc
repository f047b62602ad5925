// What clients see of tenants: which routes their keys open, and the answers of their limits.

#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>

#include "server/test_server.h"

namespace espalier::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct KeysFile {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("espalier_keys_{}.json", ::getpid());
  explicit KeysFile(std::string_view text) { write(text); }
  ~KeysFile() { std::filesystem::remove(path); }
  void write(std::string_view text) const { std::ofstream(path) << text; }
};

struct TenantServerTest : ServerTest {
  const KeysFile file{
      R"([{"name":"small","key":"sk-small","requests_per_minute":2,"tokens_per_minute":500,)"
      R"("max_priority":1},{"name":"large","key":"sk-large","weight":4}])"};
  void SetUp() override {
    ServerTest::SetUp();
    config_.access.api_keys_file = file.path.string();
  }
  Answer ask(std::string_view key, std::string_view path, std::string_view body) {
    return call("POST", path, body, {{"Authorization", "Bearer " + std::string(key)}});
  }
};

constexpr const char* kPrompt = R"({"prompt":"x","max_tokens":10})";

TEST_F(TenantServerTest, AKeyOpensWhatUsersMayAndNoMore) {
  start();
  EXPECT_EQ(post("/v1/completions", kPrompt).status, 401);
  EXPECT_EQ(ask("sk-none", "/v1/completions", kPrompt).status, 401);
  EXPECT_EQ(ask("sk-large", "/v1/completions", kPrompt).status, 200);
  EXPECT_EQ(ask("sk-large", "/flush_cache", "").status, 403);
  EXPECT_EQ(engine_.submitted().back().tenant, "large");
  EXPECT_EQ(engine_.submitted().back().tenant_weight, 4);
  EXPECT_EQ(engine_.submitted().back().extra_key, "large");
  ask("sk-large", "/v1/completions", R"({"prompt":"x","extra_key":"small"})");
  EXPECT_EQ(engine_.submitted().back().tenant, "large");
  EXPECT_EQ(engine_.submitted().back().extra_key, "large/small");
}

TEST_F(TenantServerTest, LimitsStandInTheHeadersAndGive429) {
  start();
  const Answer first = ask("sk-small", "/v1/completions", kPrompt);
  EXPECT_EQ(first.status, 200);
  EXPECT_EQ(first.header("x-ratelimit-limit-requests"), "2");
  EXPECT_EQ(first.header("x-ratelimit-remaining-requests"), "1");
  EXPECT_EQ(first.header("x-ratelimit-limit-tokens"), "500");
  EXPECT_EQ(ask("sk-small", "/v1/completions", kPrompt).status, 200);
  const Answer over = ask("sk-small", "/v1/completions", kPrompt);
  EXPECT_EQ(over.status, 429);
  EXPECT_THAT(over.body, HasSubstr("RateLimitError"));
  EXPECT_EQ(over.header("Retry-After"), "30");
  EXPECT_EQ(over.header("x-ratelimit-remaining-requests"), "0");
  EXPECT_EQ(ask("sk-large", "/v1/completions", kPrompt).status, 200);
  const Answer anthropic = ask("sk-small", "/v1/messages",
                               R"({"max_tokens":4,"messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(anthropic.status, 429);
  EXPECT_THAT(anthropic.body, HasSubstr("rate_limit_error"));
  const Answer metrics = call("GET", "/metrics");
  EXPECT_THAT(metrics.body, HasSubstr("espalier:rate_limited_total{model_name=\"scripted-1b\","
                                      "tenant=\"small\"} 2"));
}

// 400 tokens are reserved of 500, and about ten used: without giving back, the second call would
// have to wait.
TEST_F(TenantServerTest, WhatIsNotUsedComesBack) {
  start();
  for (int i = 0; i < 2; ++i) {
    const Answer answer =
        ask("sk-small", "/v1/completions", R"({"prompt":"x","max_tokens":90,"n":4})");
    EXPECT_EQ(answer.status, 200) << answer.body;
  }
}

TEST_F(TenantServerTest, APriorityAboveTheKeysIsRefused) {
  start();
  const Answer answer = ask("sk-small", "/v1/completions", R"({"prompt":"x","priority":2})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("the most that this key may state is 1"));
}

// The scripted engine gives no log-probabilities, so a search ends with an error; what it submits
// and what it is charged are as with any engine.
TEST_F(TenantServerTest, ExactLikelihoodIsLimitedToo) {
  start();
  constexpr const char* kChoices = R"({"input_ids":[1,2],"choices":["a","b"],"extra_key":"k"})";
  EXPECT_NE(ask("sk-small", "/exact_likelihood", kChoices).status, 429);
  EXPECT_EQ(engine_.submitted().back().tenant, "small");
  EXPECT_EQ(engine_.submitted().back().extra_key, "small/k");
  const Answer second = ask("sk-small", "/exact_likelihood", kChoices);
  EXPECT_NE(second.status, 429);
  EXPECT_EQ(second.header("x-ratelimit-remaining-requests"), "0");
  const Answer over = ask("sk-small", "/exact_likelihood", kChoices);
  EXPECT_EQ(over.status, 429);
  EXPECT_EQ(over.header("Retry-After"), "30");
}

TEST_F(TenantServerTest, ARoutersTenantsCountWithItsKeyAlone) {
  config_.access.router_api_key = "sk-router";
  start();
  const auto ask_as = [&](std::string_view key, std::string_view path, std::string_view body) {
    return call("POST", path, body,
                {{"Authorization", "Bearer " + std::string(key)},
                 {"X-Espalier-Tenant", "far"},
                 {"X-Espalier-Tenant-Weight", "3"},
                 {"X-Espalier-Tenant-Max-Priority", "5"}});
  };
  EXPECT_EQ(ask_as("sk-router", "/v1/completions", kPrompt).status, 200);
  EXPECT_EQ(engine_.submitted().back().tenant, "far");
  EXPECT_EQ(engine_.submitted().back().tenant_weight, 3);
  EXPECT_EQ(engine_.submitted().back().extra_key, "far");
  EXPECT_EQ(ask_as("sk-router", "/v1/completions", R"({"prompt":"x","priority":6})").status, 400);
  EXPECT_EQ(ask_as("sk-router", "/flush_cache", "").status, 403);
  EXPECT_EQ(ask("sk-router", "/v1/completions", kPrompt).status, 200);
  EXPECT_EQ(engine_.submitted().back().tenant, "") << "the router states none";
  EXPECT_EQ(ask_as("sk-large", "/v1/completions", kPrompt).status, 200);
  EXPECT_EQ(engine_.submitted().back().tenant, "large") << "clients cannot state one";
  EXPECT_EQ(ask_as("sk-none", "/v1/completions", kPrompt).status, 401);
}

TEST_F(TenantServerTest, ARoutersKeyAloneClosesTheServerToOthers) {
  config_.access.api_keys_file.clear();
  config_.access.router_api_key = "sk-router";
  start();
  EXPECT_EQ(post("/v1/completions", kPrompt).status, 401);
  EXPECT_EQ(ask("sk-none", "/v1/completions", kPrompt).status, 401);
  EXPECT_EQ(ask("sk-router", "/v1/completions", kPrompt).status, 200);
}

TEST_F(TenantServerTest, AnotherAdministratorsKeyWorksBesideThem) {
  config_.access.admin_api_key = "sk-admin";
  start();
  EXPECT_EQ(ask("sk-admin", "/flush_cache", "").status, 200);
  EXPECT_EQ(ask("sk-admin", "/v1/completions", kPrompt).status, 200);
  EXPECT_EQ(engine_.submitted().back().tenant, "");
  const Answer info = call("GET", "/server_info", "", {{"Authorization", "Bearer sk-large"}});
  EXPECT_THAT(info.body, Not(HasSubstr(file.path.string())));
  EXPECT_THAT(info.body, Not(HasSubstr("sk-")));
}

}  // namespace
}  // namespace espalier::server
