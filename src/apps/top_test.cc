#include "apps/top.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace espalier::apps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::string_view kMetrics =
    "# HELP sglang:num_running_reqs Requests.\n"
    "sglang:num_running_reqs{model_name=\"m\"} 3\n"
    "x_total{tenant=\"a b\"} 2\n"
    "x_total{tenant=\"c\"} 5.5\n"
    "h_bucket{le=\"1\"} 9\n"
    "plain 1e3\n";

constexpr std::string_view kRequests =
    R"({"requests":[{"number":1,"rid":"old","prompt_tokens":5,"cached_tokens":2,"completion_tokens":7,)"
    R"("arrived_s_ago":9.0,"scheduled_s_ago":8.5,"first_token_s_ago":8.0,"ended_s_ago":4.0,"end":"stop"},)"
    R"({"number":2,"rid":"waiting","arrived_s_ago":1.0,"scheduled_s_ago":null,)"
    R"("first_token_s_ago":null,"ended_s_ago":null,"end":""},)"
    R"({"number":3,"rid":"answering","arrived_s_ago":0.5,"scheduled_s_ago":0.4,)"
    R"("first_token_s_ago":0.25,"ended_s_ago":null,"end":""}]})";

// Characters of a line without escape sequences.
int columns(const std::string& line) {
  int count = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b')
      i = line.find('m', i);
    else if ((static_cast<unsigned char>(line[i]) & 0xC0) != 0x80)
      ++count;
  }
  return count;
}

constexpr std::string_view kGpus =
    "# TYPE espalier:gpu_utilization gauge\n"
    "espalier:gpu_memory_used_bytes{model_name=\"m\",gpu=\"0\",gpu_name=\"NVIDIA H100 80GB\"} "
    "6e10\n"
    "espalier:gpu_memory_total_bytes{model_name=\"m\",gpu=\"0\",gpu_name=\"NVIDIA H100 80GB\"} "
    "8e10\n"
    "espalier:gpu_utilization{model_name=\"m\",gpu=\"0\",gpu_name=\"NVIDIA H100 80GB\"} 0.87\n"
    "espalier:gpu_temperature_celsius{gpu=\"0\",gpu_name=\"NVIDIA H100 80GB\"} 64\n"
    "espalier:gpu_power_watts{gpu=\"0\",gpu_name=\"NVIDIA H100 80GB\"} 412.5\n"
    "espalier:gpu_power_limit_watts{gpu=\"0\",gpu_name=\"NVIDIA H100 80GB\"} 700\n"
    "espalier:gpu_memory_used_bytes{gpu=\"2\",gpu_name=\"NVIDIA T4\"} 1e9\n"
    "espalier:gpu_memory_total_bytes{gpu=\"2\",gpu_name=\"NVIDIA T4\"} 16e9\n"
    "espalier:gpu_power_watts{gpu=\"x\"} 1\n";

TopReading reading() {
  TopReading out{.at = TimePoint{} + std::chrono::seconds(10), .metrics = parse_metrics(kMetrics)};
  out.gpus = parse_gpus(kGpus);
  out.requests = *parse_requests(kRequests);
  return out;
}

TEST(Top, MetricsAreSummedOverLabels) {
  const auto metrics = parse_metrics(kMetrics);
  EXPECT_EQ(metrics.size(), 3u);
  EXPECT_EQ(metrics.at("sglang:num_running_reqs"), 3);
  EXPECT_EQ(metrics.at("x_total"), 7.5);
  EXPECT_EQ(metrics.at("plain"), 1000);
}

TEST(Top, RequestsInFlightComeFirst) {
  const auto requests = parse_requests(kRequests);
  ASSERT_TRUE(requests);
  ASSERT_EQ(requests->size(), 3u);
  EXPECT_EQ((*requests)[0].rid, "answering");
  EXPECT_EQ((*requests)[0].state, "answers");
  EXPECT_DOUBLE_EQ((*requests)[0].first_token_seconds, 0.25);
  EXPECT_EQ((*requests)[1].state, "waits");
  EXPECT_EQ((*requests)[2].state, "stop");
  EXPECT_DOUBLE_EQ((*requests)[2].seconds, 5.0);
  EXPECT_FALSE(parse_requests("[]"));
  EXPECT_FALSE(parse_requests("{"));
}

TEST(Top, EachGpuHasALine) {
  const std::vector<TopGpu> gpus = parse_gpus(kGpus);
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].name, "NVIDIA H100 80GB");
  EXPECT_EQ(gpus[0].power_watts, 412.5);
  EXPECT_EQ(gpus[1].index, 2);
  EXPECT_LT(gpus[1].utilization, 0);
  const TopView view{.url = "u", .model = "m", .width = 120, .height = 20, .colours = false};
  TopReading now = reading();
  const auto lines = draw_top(view, now, nullptr, {});
  EXPECT_THAT(lines[5], HasSubstr("60.0 of 80.0 GB   87 %  64 °C  412 of 700 W  NVIDIA H100 80GB"));
  EXPECT_THAT(lines[6], HasSubstr("1.0 of 16.0 GB  NVIDIA T4"));
  now.gpus.clear();
  for (const std::string& line : draw_top(view, now, nullptr, {}))
    EXPECT_THAT(line, Not(HasSubstr("GPU")));
}

TEST(Top, ThePictureFitsAnyTerminal) {
  const TopReading now = reading();
  TopReading before = now;
  before.at = TimePoint{} + std::chrono::seconds(9);
  const std::vector<double> throughput(300, 12.5);
  for (const int width : {1, 10, 40, 80, 133, 300}) {
    for (const int height : {1, 5, 8, 24}) {
      const auto lines =
          draw_top({.url = "http://h:1", .model = "m", .width = width, .height = height}, now,
                   &before, throughput);
      EXPECT_LE(std::ssize(lines), height);
      for (const std::string& line : lines) EXPECT_LE(columns(line), width) << line;
    }
  }
}

TEST(Top, RatesAreOfWhatHappenedBetweenTwoReadings) {
  TopReading now = reading(), before = now;
  now.metrics["sglang:num_requests_total"] = 30;
  before.metrics["sglang:num_requests_total"] = 10;
  before.at = now.at - std::chrono::seconds(4);
  TopView view{.url = "u", .model = "m", .width = 100, .height = 20, .colours = false};
  EXPECT_THAT(draw_top(view, now, &before, {})[1], HasSubstr("5.0 a second"));
  EXPECT_THAT(draw_top(view, now, nullptr, {})[1], HasSubstr("0.0 a second"));
  view.problem = "the server is gone";
  EXPECT_EQ(draw_top(view, now, nullptr, {})[1], "the server is gone");
  now.requests.clear();
  now.requests_hidden = "no key";
  EXPECT_EQ(draw_top(view, now, nullptr, {}).back(), "no key");
  EXPECT_THAT(draw_top(view, now, nullptr, {}).back(), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace espalier::apps
