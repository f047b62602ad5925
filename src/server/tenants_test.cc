// Keys as tenants: their file, their limits by a clock of the test, and what clients see of them.
#include "server/tenants.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>

#include "server/test_server.h"

namespace espalier::server {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RateBucket, FillsEvenlyUpToAMinutesWorth) {
  TimePoint now{};
  RateBucket bucket;
  bucket.set_limit(60, now);
  EXPECT_EQ(bucket.remaining(now), 60);
  bucket.take(60, now);
  EXPECT_EQ(bucket.remaining(now), 0);
  EXPECT_EQ(bucket.wait_for(1, now), seconds(1));
  EXPECT_EQ(bucket.wait_for(30, now), seconds(30));
  now += seconds(10);
  EXPECT_EQ(bucket.remaining(now), 10);
  EXPECT_EQ(bucket.until_full(now), seconds(50));
  now += seconds(1000);
  EXPECT_EQ(bucket.remaining(now), 60);
  bucket.take(-5, now);
  EXPECT_EQ(bucket.remaining(now), 60);
}

TEST(RateBucket, AnAmountAboveAMinutesWorthNeedsAFullBucketAndLeavesADebt) {
  TimePoint now{};
  RateBucket bucket;
  bucket.set_limit(60, now);
  EXPECT_EQ(bucket.wait_for(1000, now), Duration::zero());
  bucket.take(120, now);
  EXPECT_EQ(bucket.remaining(now), 0);
  EXPECT_EQ(bucket.wait_for(1, now), seconds(61));
  bucket.set_limit(120, now);  // the part that is filled stays
  EXPECT_EQ(bucket.wait_for(1, now + seconds(60)), std::chrono::milliseconds(500));
}

TEST(RateBucket, WithoutALimitNothingWaits) {
  RateBucket bucket;
  bucket.set_limit(0, {});
  bucket.take(1000, {});
  EXPECT_EQ(bucket.wait_for(1000, {}), Duration::zero());
}

TEST(Tenant, TakesRequestsAndTokensTogether) {
  TimePoint now{};
  Tenant tenant("t", {.requests_per_minute = 2, .tokens_per_minute = 600, .max_priority = 3}, now);
  EXPECT_FALSE(tenant.admit(400, now));
  const auto wait = tenant.admit(300, now);
  ASSERT_TRUE(wait);
  EXPECT_EQ(*wait, seconds(10));
  EXPECT_EQ(tenant.num_refused(), 0);
  tenant.count_refusal();
  EXPECT_EQ(tenant.num_refused(), 1);
  tenant.give_back(100, now);
  EXPECT_FALSE(tenant.admit(300, now));
  EXPECT_EQ(*tenant.admit(0, now), seconds(30));  // of requests
  EXPECT_TRUE(tenant.check_priority(3).ok());
  EXPECT_EQ(tenant.check_priority(4).code(), StatusCode::kInvalidArgument);
}

TEST(Tenant, CountsTheCallsOfItsClientsThatWait) {
  const auto tenant = std::make_shared<Tenant>("t", TenantLimits(), TimePoint());
  {
    const WaitingCall first(tenant), second(tenant);
    EXPECT_EQ(tenant->num_waiting(), 2);
  }
  EXPECT_EQ(tenant->num_waiting(), 0);
}

struct KeysFile {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("espalier_keys_{}.json", ::getpid());
  explicit KeysFile(std::string_view text) { write(text); }
  ~KeysFile() { std::filesystem::remove(path); }
  void write(std::string_view text) const { std::ofstream(path) << text; }
};

TEST(Tenants, FindsKeysByTextAndByDigest) {
  // printf s3cret | sha256sum
  const KeysFile file(R"([{"name":"a","key":"sk-a"},{"name":"b","key_sha256":)"
                      R"("1EC1C26B50D5D3C58D9583181AF8076655FE00756BF7285940BA3670F99FCBA0"}])");
  const auto tenants = Tenants::read(file.path);
  ASSERT_TRUE(tenants) << tenants.error().message();
  ASSERT_NE((*tenants)->find("sk-a"), nullptr);
  EXPECT_EQ((*tenants)->find("sk-a")->name(), "a");
  ASSERT_NE((*tenants)->find("s3cret"), nullptr);
  EXPECT_EQ((*tenants)->find("s3cret")->name(), "b");
  EXPECT_EQ((*tenants)->find("sk-b"), nullptr);
  EXPECT_EQ((*tenants)->find(""), nullptr);
}

TEST(Tenants, MistakesNameTheEntry) {
  const KeysFile file("");
  const auto message = [&](std::string_view text) {
    file.write(text);
    const auto read = Tenants::read(file.path);
    return read ? "read" : read.error().message();
  };
  EXPECT_THAT(message("{"), HasSubstr(file.path.string()));
  EXPECT_THAT(message("{}"), HasSubstr("a list of objects"));
  EXPECT_THAT(message("[]"), HasSubstr("no entry"));
  EXPECT_THAT(message(R"([{"name":"a"}])"), HasSubstr("entry 1: one of key and key_sha256"));
  EXPECT_THAT(message(R"([{"key":"a"}])"), HasSubstr("entry 1: name is missing"));
  EXPECT_THAT(message(R"([{"name":"a b","key":"k"}])"), HasSubstr("without spaces"));
  EXPECT_THAT(message(R"([{"name":"a","key":"k"},{"name":"a","key":"l"}])"),
              HasSubstr("entry 2: an earlier entry has the name 'a'"));
  EXPECT_THAT(message(R"([{"name":"a","key":"k"},{"name":"b","key":"k"}])"),
              HasSubstr("entry 2: an earlier entry has the same key"));
  EXPECT_THAT(message(R"([{"name":"a","key":"k","tokens_per_minute":0}])"),
              HasSubstr("tokens_per_minute must be a whole number"));
  EXPECT_THAT(message(R"([{"name":"a","key":"k","requests_per_min":5}])"),
              HasSubstr("'requests_per_min' is no member"));
  EXPECT_THAT(message(R"([{"name":"a","key_sha256":"12"}])"), HasSubstr("64 hexadecimal"));
  for (const char* weight : {"0", "-1", "1e400", "1001", "\"3\"", "true", "[1]"})
    EXPECT_THAT(
        message(fmt::format(R"([{{"name":"a","key":"k","weight":{}}}])", weight)),
        HasSubstr(weight[2] == '4' ? "weight" : "weight must be a number from 0.001 to 1000"))
        << weight;
}

TEST(Tenants, AReloadKeepsWhatWasUsedAndAMistakeChangesNothing) {
  const KeysFile file(R"([{"name":"a","key":"k","requests_per_minute":5}])");
  const auto tenants = Tenants::read(file.path);
  ASSERT_TRUE(tenants);
  const TimePoint now = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) EXPECT_FALSE((*tenants)->find("k")->admit(0, now));
  EXPECT_EQ((*tenants)->find("k")->weight(), 1);
  file.write(R"([{"name":"a","key":"new","requests_per_minute":5,"weight":2.5},)"
             R"({"name":"b","key":"k2","weight":3}])");
  ASSERT_TRUE((*tenants)->reload().ok());
  EXPECT_EQ((*tenants)->find("new")->weight(), 2.5);
  EXPECT_EQ((*tenants)->find("k2")->weight(), 3);
  EXPECT_EQ((*tenants)->find("k"), nullptr);
  EXPECT_TRUE((*tenants)->find("new")->admit(0, now));
  EXPECT_EQ((*tenants)->all().size(), 2u);
  file.write("[");
  EXPECT_FALSE((*tenants)->reload().ok());
  EXPECT_NE((*tenants)->find("new"), nullptr);
}

struct TenantServerTest : ServerTest {
  const KeysFile file{
      R"([{"name":"small","key":"sk-small","requests_per_minute":2,"tokens_per_minute":500,)"
      R"("max_priority":1},{"name":"large","key":"sk-large","weight":4}])"};
  void SetUp() override {
    ServerTest::SetUp();
    config_.api_keys_file = file.path.string();
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

TEST_F(TenantServerTest, AnotherAdministratorsKeyWorksBesideThem) {
  config_.admin_api_key = "sk-admin";
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
