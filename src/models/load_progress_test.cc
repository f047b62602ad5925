#include "models/load_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "models/model.h"

namespace espalier {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LoadProgress, ReportsSomeTimesASecondAndTheEndOnce) {
  ManualClock clock;
  std::vector<int64_t> reported;
  LoadProgress progress(
      [&](int64_t done, int64_t total) {
        EXPECT_EQ(total, 1000);
        reported.push_back(done);
      },
      1000, clock);
  for (int64_t done = 0; done < 1000; done += 10) {
    clock.advance(milliseconds(5));
    progress.set(done);
  }
  progress.finish();
  progress.finish();
  EXPECT_THAT(reported, ::testing::ElementsAre(190, 390, 590, 790, 990, 1000));
}

TEST(LoadProgress, WithoutAListenerALongLoadingIsLoggedByTenths) {
  const auto log_of = [](milliseconds step) {
    ManualClock clock;
    LoadProgress progress(nullptr, 1000, clock);
    testing::internal::CaptureStderr();
    for (int64_t done = 0; done <= 1000; done += 50) {
      clock.advance(step);
      progress.set(done);
    }
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(log_of(milliseconds(1)), "");
  const std::string lines = log_of(milliseconds(200));
  EXPECT_THAT(lines, HasSubstr("percent=50 bytes=500 seconds=2.2"));
  EXPECT_THAT(lines, Not(HasSubstr("percent=100")));
}

TEST(LoadProgress, AModelReportsAllItsBytes) {
  std::vector<std::pair<int64_t, int64_t>> reported;
  const auto model = load_model(
      {.path = "tests/golden/models/llama_untied_bias",
       .progress = [&](int64_t done, int64_t total) { reported.emplace_back(done, total); }});
  ASSERT_TRUE(model) << model.error().to_string();
  ASSERT_FALSE(reported.empty());
  EXPECT_GT(reported.back().second, 100000);
  EXPECT_EQ(reported.back().first, reported.back().second);
}

}  // namespace
}  // namespace espalier
