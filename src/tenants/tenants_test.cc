// Keys as tenants: their file, and their limits by a clock of the test.
#include "tenants/tenants.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/rng.h"
#include "tenants/api_key.h"

namespace espalier {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

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
  EXPECT_EQ(tenant.counts().refused, 0);
  tenant.count_refusal();
  EXPECT_EQ(tenant.counts().refused, 1);
  tenant.settle(400, 300, now);
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

// A trivial model: in whole numbers, the level in tokens of 60,000 parts, time in milliseconds.
struct BucketModel {
  int64_t limit = 0, level = 0, at = 0;

  void refill(int64_t now) {
    level = std::min(limit * 60000, level + limit * (now - at));
    at = now;
  }
  void set_limit(int64_t per_minute, int64_t now) {  // the part that is filled stays
    refill(now);
    level = limit == 0 ? per_minute * 60000 : level * per_minute / limit;
    limit = per_minute;
  }
  int64_t wait_for(int64_t amount, int64_t now) {
    if (limit == 0) return 0;
    refill(now);
    const int64_t missing = std::min(amount, limit) * 60000 - level;
    return missing <= 0 ? 0 : (missing + limit - 1) / limit;
  }
  void take(int64_t amount, int64_t now) {
    if (limit == 0) return;
    refill(now);
    level = std::min(limit * 60000, level - amount * 60000);
  }
};

// A tenant and its model, to which the same is done.
class TenantPair {
 public:
  explicit TenantPair(uint64_t seed) : rng_(seed), tenant_("t", {}, TimePoint{}) {}

  void step() {
    now_ += draw(3) == 0 ? draw(90000) : draw(200);
    const int64_t kind = draw(8);
    if (kind == 0) return set_limits();
    if (kind <= 2 && !open_.empty()) return settle();
    admit();
  }
  void check() {
    EXPECT_EQ(tenant_.counts().requests, num_admitted_);
    EXPECT_EQ(tenant_.counts().tokens, num_used_);
  }

 private:
  int64_t draw(int64_t bound) {
    return static_cast<int64_t>(rng_.below(static_cast<uint64_t>(bound)));
  }
  TimePoint time() const { return TimePoint{} + milliseconds(now_); }

  void set_limits() {
    const int64_t requests = draw(4) == 0 ? 0 : 1 + draw(20);
    const int64_t tokens = draw(4) == 0 ? 0 : 100 + draw(1000);
    tenant_.set_limits({.requests_per_minute = requests, .tokens_per_minute = tokens}, time());
    requests_.set_limit(requests, now_);
    tokens_.set_limit(tokens, now_);
  }
  void settle() {
    const auto at = open_.begin() + draw(std::ssize(open_));
    const int64_t used = draw(2 * *at + 1);
    tenant_.settle(*at, used, time());
    tokens_.take(used - *at, now_);
    num_used_ += used;
    open_.erase(at);
  }
  void admit() {
    const int64_t amount = draw(draw(10) == 0 ? 5000 : 300);
    const int64_t wait = std::max(requests_.wait_for(1, now_), tokens_.wait_for(amount, now_));
    const auto got = tenant_.admit(amount, time());
    // The levels of either are rounded where limits change, so they may differ by some parts.
    const int64_t got_ms = got ? *got / milliseconds(1) : 0;
    EXPECT_LE(std::abs(got_ms - wait), 2);
    if (got) return;
    requests_.take(1, now_);
    tokens_.take(amount, now_);
    open_.push_back(amount);
    ++num_admitted_;
  }

  Rng rng_;
  Tenant tenant_;
  BucketModel requests_, tokens_;
  int64_t now_ = 0, num_admitted_ = 0, num_used_ = 0;
  std::vector<int64_t> open_;  // what each request under way has reserved
};

TEST(Tenant, EqualsATrivialModelUnderAClockOfTheTest) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    TenantPair pair(seed);
    for (int step = 0; step < 400 && !testing::Test::HasFailure(); ++step) {
      pair.step();
      pair.check();
    }
  }
}

TEST(ApiKey, IsReadOfEitherHeader) {
  const std::string bearer = "bEaReR sk-a", basic = "Basic eA==", plain = "sk-b";
  EXPECT_EQ(api_key_of(&bearer, &plain), "sk-a");
  EXPECT_EQ(api_key_of(&basic, &plain), "sk-b");
  EXPECT_EQ(api_key_of(&basic, nullptr), "");
  EXPECT_EQ(api_key_of(nullptr, nullptr), "");
}

TEST(ApiKey, ComparesWholeKeys) {
  EXPECT_TRUE(same_key("sk-a", "sk-a"));
  for (const auto* given : {"sk-b", "sk-", "sk-ask-a", ""}) EXPECT_FALSE(same_key(given, "sk-a"));
  EXPECT_FALSE(same_key("x", ""));
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

TEST(Tenants, ARouterStatesTenantsWithItsKeyAlone) {
  const auto tenants = Tenants::read("", "sk-router");
  ASSERT_TRUE(tenants);
  Tenants& all = **tenants;
  EXPECT_TRUE(all.is_router("sk-router"));
  for (const auto* key : {"", "sk-", "sk-router2"}) EXPECT_FALSE(all.is_router(key));
  EXPECT_FALSE((*Tenants::read(KeysFile(R"([{"name":"a","key":"k"}])").path))->is_router(""));
  EXPECT_EQ(all.find("sk-router"), nullptr);
  const std::string name = "a", weight = "2.5", priority = "-3", bad = "1x", bad_name = "a b";
  const TenantPtr stated = all.stated(&name, &weight, &priority);
  ASSERT_NE(stated, nullptr);
  EXPECT_EQ(stated->weight(), 2.5);
  EXPECT_EQ(stated->limits().max_priority, -3);
  EXPECT_EQ(all.stated(&name, &bad, nullptr), stated);
  EXPECT_EQ(stated->weight(), 1);
  EXPECT_FALSE(stated->limits().max_priority);
  EXPECT_EQ(all.named("a"), stated);
  EXPECT_EQ(all.stated(nullptr, &weight, &priority), nullptr);
  EXPECT_EQ(all.stated(&bad_name, nullptr, nullptr), nullptr);
  EXPECT_TRUE(all.all().empty());
  EXPECT_TRUE(all.reload().ok());
  const HeaderList headers =
      stated_tenant_headers(Tenant("b", {.max_priority = 4, .weight = 0.1}, {}));
  EXPECT_EQ(all.stated(&headers[0].second, &headers[1].second, &headers[2].second)->weight(), 0.1);
  EXPECT_EQ(all.named("b")->limits().max_priority, 4);
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

}  // namespace
}  // namespace espalier
