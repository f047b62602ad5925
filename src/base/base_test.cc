// The room's small pieces, one test a promise.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>

#include "base/bounded_queue.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/thread.h"

namespace espalier {
namespace {

Result<int> half(int x) {
  if (x % 2 != 0) return fail(invalid_argument("{} is odd", x));
  return x / 2;
}

Result<int> quarter(int x) {
  ESP_ASSIGN_OR_RETURN(const int once, half(x));
  ESP_ASSIGN_OR_RETURN(const int twice, half(once));
  return twice;
}

Status divisible_by_four(int x) {
  ESP_ASSIGN_OR_RETURN([[maybe_unused]] const int value, quarter(x));
  return {};
}

TEST(Status, FailuresTravelThroughBothReturnTypes) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(6).error(), invalid_argument("3 is odd"));
  EXPECT_TRUE(divisible_by_four(8).ok());
  EXPECT_EQ(divisible_by_four(6).with_context("here").to_string(),
            "invalid_argument: here: 3 is odd");
  EXPECT_EQ(Status().with_context("here"), Status());
}

TEST(CheckDeathTest, SaysWhereAndWhat) {
  EXPECT_DEATH(ESP_CHECK(1 + 1 == 3, "sum {}", 2), "base_test.cc:.*1 \\+ 1 == 3 sum 2");
}

TEST(BoundedQueue, RefusesAtItsBoundAndAfterClose) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.try_push(1));
  EXPECT_TRUE(queue.try_push(2));
  EXPECT_FALSE(queue.try_push(3));
  queue.close();
  EXPECT_FALSE(queue.try_push(4));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), 2);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(BoundedQueue, CarriesEveryItemOnceAcrossThreads) {
  BoundedQueue<int> queue(8);
  constexpr int kCount = 10000;
  std::thread producer([&] {
    for (int i = 0; i < kCount; ++i) {
      while (!queue.try_push(int{i})) std::this_thread::yield();
    }
    queue.close();
  });
  int next = 0;
  while (auto item = queue.pop()) EXPECT_EQ(*item, next++);
  producer.join();
  EXPECT_EQ(next, kCount);
}

TEST(Rng, CounterDrawsAreUniformAndIndependentOfOrder) {
  double sum = 0, product = 0;
  constexpr int kCount = 100000;
  for (int i = 0; i < kCount; ++i) {
    const double u = hash_uniform(7, i);
    ASSERT_GT(u, 0.0);
    ASSERT_LT(u, 1.0);
    sum += u;
    product += u * hash_uniform(8, i);
  }
  EXPECT_NEAR(sum / kCount, 0.5, 0.005);       // five deviations: sqrt(1/12/1e5) = 0.0009
  EXPECT_NEAR(product / kCount, 0.25, 0.005);  // seeds do not correlate
  EXPECT_EQ(hash_uniform(7, 3), hash_uniform(7, 3));
}

TEST(Rng, BetweenCoversItsRangeAndNormalHasItsMoments) {
  Rng rng(1);
  bool seen[5] = {};
  for (int i = 0; i < 200; ++i) seen[rng.between(-2, 2) + 2] = true;
  for (bool s : seen) EXPECT_TRUE(s);
  double sum = 0, squares = 0;
  for (int i = 0; i < 100000; ++i) {
    const double x = rng.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / 1e5, 0.0, 0.02);
  EXPECT_NEAR(squares / 1e5, 1.0, 0.03);
}

TEST(ManualClock, MovesOnlyByHand) {
  ManualClock clock;
  const TimePoint start = clock.now();
  clock.advance(std::chrono::milliseconds(5));
  EXPECT_EQ(clock.now() - start, std::chrono::milliseconds(5));
}

TEST(MappedFile, ReadsAFileAndNamesAMissingOne) {
  const std::string path = ::testing::TempDir() + "mapped_file_test";
  std::ofstream(path) << "abc";
  EXPECT_EQ(MappedFile::open(path)->text(), "abc");
  EXPECT_EQ(read_text_file(path).value(), "abc");
  std::ofstream(path, std::ios::trunc).close();
  EXPECT_EQ(MappedFile::open(path)->text(), "");
  std::remove(path.c_str());
  EXPECT_EQ(MappedFile::open(path).error().code(), StatusCode::kNotFound);
  EXPECT_EQ(MappedFile::open("/tmp").error().code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);  // nobody writes to it, and nobody waits for it
  EXPECT_EQ(MappedFile::open(path).error().code(), StatusCode::kInvalidArgument);
  std::remove(path.c_str());
}

TEST(Log, KnowsItsLevels) {
  EXPECT_EQ(parse_log_level("warning").value(), LogLevel::kWarning);
  EXPECT_FALSE(parse_log_level("loud").has_value());
  set_log_level(LogLevel::kError);
  EXPECT_FALSE(log_enabled(LogLevel::kInfo));
  set_log_level(LogLevel::kInfo);
  EXPECT_TRUE(log_enabled(LogLevel::kInfo));
}

// A client's text cannot end a line and forge the next, nor steer the terminal that shows it.
TEST(Log, AnEventIsOneLineWhateverItQuotes) {
  testing::internal::CaptureStderr();
  log_info("request rid=\"{}\"", "a\n2026-01-01T00:00:00.000 I forged\x1b[2J\x7f\té");
  const std::string shown = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(shown.begin(), shown.end(), '\n'), 1);
  EXPECT_TRUE(shown.ends_with(
      " I request rid=\"a\\n2026-01-01T00:00:00.000 I forged\\x1b[2J\\x7f\\x09é\"\n"))
      << shown;
}

TEST(Thread, SomeProcessorIsUsableAndCanBePinned) {
  const auto cpus = usable_cpus();
  ASSERT_FALSE(cpus.empty());
  std::thread([&] { EXPECT_TRUE(pin_this_thread(cpus[0])); }).join();
}

}  // namespace
}  // namespace espalier
