#include "server/request_log.h"

#include <gtest/gtest.h>

namespace espalier::server {
namespace {

TimePoint at(int seconds) { return TimePoint{} + std::chrono::seconds(seconds); }

std::vector<std::string> rids(const std::vector<LoggedRequestPtr>& read) {
  std::vector<std::string> out;
  for (const LoggedRequestPtr& each : read) out.push_back(each->rid);
  return out;
}

TEST(RequestLog, RequestsAreReadInOrderOfArrivalWithTheirEnds) {
  RequestLog log;
  const auto a = log.begin("a", "", true, at(1));
  const auto b = log.begin("b", "someone", false, at(2));
  const auto c = log.begin("c", "", true, at(3));
  log.finish(b, "length", at(4));
  EXPECT_EQ(rids(log.read(0)), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_STREQ(b->end.load(), "length");
  EXPECT_EQ(b->ended.load(), at(4));
  EXPECT_STREQ(a->end.load(), "");
  // What is in flight is always read; what has ended, from a number on.
  EXPECT_EQ(rids(log.read(3)), (std::vector<std::string>{"a", "c"}));
}

TEST(RequestLog, ARequestEndsOnce) {
  RequestLog log;
  const auto a = log.begin("a", "", true, at(1));
  log.finish(a, "stop", at(2));
  log.finish(a, "abort", at(3));
  EXPECT_STREQ(a->end.load(), "stop");
  EXPECT_EQ(a->ended.load(), at(2));
  EXPECT_EQ(log.read(0).size(), 1u);
}

TEST(RequestLog, TheOldestEndsAreDropped) {
  RequestLog log;
  const auto open = log.begin("open", "", true, at(0));
  for (size_t i = 0; i < RequestLog::kEndedMax + 10; ++i)
    log.finish(log.begin(std::to_string(i), "", true, at(1)), "stop", at(2));
  const auto read = log.read(0);
  ASSERT_EQ(read.size(), RequestLog::kEndedMax + 1);
  EXPECT_EQ(read.front()->rid, "open");
  EXPECT_EQ(read[1]->rid, "10");
}

}  // namespace
}  // namespace espalier::server
