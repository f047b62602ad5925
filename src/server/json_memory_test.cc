#include "server/json_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json/stream_parser.hpp>
#include <boost/json/value.hpp>
#include <memory>
#include <string>

#include "base/rng.h"
#include "server/json_fields.h"

namespace espalier::server {
namespace {

using ::testing::HasSubstr;

// Counts what is asked for, with what a heap adds to each part.
class CountingMemory final : public boost::json::memory_resource {
 public:
  int64_t peak = 0;

 private:
  static int64_t charged(size_t num_bytes) {
    return static_cast<int64_t>((num_bytes + 8 + 15) / 16 * 16);
  }
  void* do_allocate(size_t num_bytes, size_t) override {
    peak = std::max(peak, used_ += charged(num_bytes));
    return ::operator new(num_bytes);
  }
  void do_deallocate(void* memory, size_t num_bytes, size_t) override {
    used_ -= charged(num_bytes);
    ::operator delete(memory);
  }
  bool do_is_equal(const boost::container::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }
  int64_t used_ = 0;
};

// What the value and the parser take of `text`, as far as it is JSON.
int64_t measured_bytes(std::string_view text) {
  CountingMemory memory;
  boost::json::stream_parser parser(&memory);
  parser.reset(&memory);
  boost::json::error_code ec;
  parser.write(text.data(), text.size(), ec);
  if (!ec) parser.finish(ec);
  if (!ec) (void)parser.release();
  return memory.peak;
}

std::string repeated(std::string_view part, int count) {
  std::string out = "[";
  for (int i = 0; i < count; ++i) out.append(i == 0 ? "" : ",").append(part);
  return out + "]";
}

// The parser's stack doubles, and the pages of its new half are not touched before they are filled:
// half as much again as the bound may be asked for.
void expect_bounded(std::string_view text, std::string_view what) {
  EXPECT_LE(measured_bytes(text), json_bytes_max(text) * 3 / 2 + 4096) << what;
}

TEST(JsonMemoryTest, TheBoundHoldsForWhatCostsMost) {
  for (const std::string_view part :
       {"0", "[]", "{}", "[0]", "[[0]]", R"("")", R"("a")", R"({"a":0})", R"({"":{}})", "1e5",
        R"("a text that is longer than what a value holds by itself")", R"({"a":"b","c":[1,2]})",
        R"("\n\n\n\u00e4\"")", "null", R"({"a long name of a member that is allocated":[{}]})"})
    for (const int count : {1, 100, 70'000}) expect_bounded(repeated(part, count), part);
  for (const size_t length : {0u, 10u, 100u, 10'000u, 3'000'000u}) {
    expect_bounded('"' + std::string(length, 'a') + '"', "one string");
    expect_bounded("\"" + std::string(length, 'a') + "\\n" + std::string(length, 'b') + "\"",
                   "an escape within");
  }
}

std::string random_value(Rng& rng, int depth) {
  switch (rng.below(depth > 4 ? 3u : 5u)) {
    case 0:
      return std::to_string(rng.below(1'000'000));
    case 1:
      return '"' + std::string(rng.below(40), 'x') + (rng.below(4) == 0 ? "\\\"" : "") + '"';
    case 2:
      return "true";
    case 3: {
      std::string out = "[";
      for (uint64_t i = 0, n = rng.below(6); i < n; ++i)
        out.append(i == 0 ? "" : ",").append(random_value(rng, depth + 1));
      return out + "]";
    }
    default: {
      std::string out = "{";
      for (uint64_t i = 0, n = rng.below(6); i < n; ++i)
        out.append(i == 0 ? "\"" : ",\"")
            .append(std::string(rng.below(20), 'k'))
            .append(std::to_string(i))
            .append("\":")
            .append(random_value(rng, depth + 1));
      return out + "}";
    }
  }
}

TEST(JsonMemoryTest, TheBoundHoldsForRandomValues) {
  constexpr uint64_t kSeed = 17;
  SCOPED_TRACE(kSeed);
  Rng rng(kSeed);
  for (int i = 0; i < 300; ++i) {
    std::string list = "[0";
    for (int k = 0; k < 50; ++k) list.append(",").append(random_value(rng, 0));
    expect_bounded(list + "]", list);
    expect_bounded(std::string_view(list).substr(0, rng.below(list.size())), "not JSON");
  }
}

TEST(JsonMemoryTest, AStringIsNotTakenForItsContent) {
  EXPECT_LT(json_bytes_max(R"(",,,,,,,,,,[[[[[[[[{{{{{{{::::::\",,,,,,,,\\\",,,,,,,")"), 300);
  EXPECT_GT(json_bytes_max(R"(["\\",1,1,1,1,1,1,1,1,1,1])"), 10 * 48);
  json_bytes_max("\"");
  json_bytes_max("\"\\");
}

// 40,000 zeros are 80 KB of text and about 2 MB of values.
class JsonChargeTest : public testing::Test {
 protected:
  JsonChargeTest() { EXPECT_TRUE(body_.resize(std::ssize(text_))); }

  const std::string text_ = repeated("0", 40'000);
  const std::shared_ptr<MemoryAccount> account_ =
      std::make_shared<MemoryAccount>("bodies", 3 << 20);
  MemoryCharge body_{account_};
};

TEST_F(JsonChargeTest, JsonIsChargedWhileItsScopeLasts) {
  {
    const JsonChargeScope scope(body_);
    ASSERT_TRUE(parse_json(text_));
    const int64_t used = account_->used();
    EXPECT_GT(used, 40'000 * 40);
    ASSERT_TRUE(parse_json(text_));  // after the first, so not beside it
    EXPECT_EQ(account_->used(), used);
    JsonChargeScope::settle();
    EXPECT_EQ(account_->used(), std::ssize(text_));
    ASSERT_TRUE(parse_json(text_));
  }
  EXPECT_EQ(account_->used(), std::ssize(text_));
  ASSERT_TRUE(parse_json(text_));  // outside of every scope
  EXPECT_EQ(account_->used(), std::ssize(text_));
}

TEST_F(JsonChargeTest, WhatOthersHoldIsATemporaryRefusal) {
  MemoryCharge others(account_);
  ASSERT_TRUE(others.resize(2 << 20));
  const JsonChargeScope scope(body_);
  EXPECT_EQ(parse_json(text_).error().code(), StatusCode::kResourceExhausted);
  others.release();
  EXPECT_TRUE(parse_json(text_));
}

TEST_F(JsonChargeTest, WhatNeverFitsIsTheRequestsFault) {
  const JsonChargeScope scope(body_);
  const auto parsed = parse_json(repeated("0", 90'000));
  EXPECT_EQ(parsed.error().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(parsed.error().message(), HasSubstr("--max-bodies-bytes"));
  EXPECT_EQ(account_->used(), std::ssize(text_));
}

TEST_F(JsonChargeTest, AChargeThatWasGivenAwayStaysWithItsNewHolder) {
  MemoryCharge kept;
  {
    const JsonChargeScope scope(body_);
    ASSERT_TRUE(parse_json(text_));
    JsonChargeScope::settle();
    kept = std::move(body_);
  }
  EXPECT_EQ(account_->used(), std::ssize(text_));
  kept.release();
  EXPECT_EQ(account_->used(), 0);
}

}  // namespace
}  // namespace espalier::server
