// Whole schedules, step by step, in files that can be read: schedules/NAME.txt holds what arrives
// and, below the line, what ran. ESPALIER_WRITE_SCHEDULES=1 writes the lower part anew: read the
// difference before it is kept.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "engine/scheduler/scheduler_fixture.h"

namespace espalier {
namespace {

constexpr const char* kFolder = "src/engine/scheduler/schedules";

struct Arrival {
  int step = 0;
  SequenceId id = 0;
  Tokens prompt;
  int32_t out = 0, priority = 0;
  std::string tenant;
};

// "0+40,5+3": forty tokens counting from 0, then three from 5.
Tokens read_prompt(const std::string& text) {
  Tokens prompt;
  std::istringstream pieces(text);
  int first = 0, count = 0;
  char sign = 0;
  do {
    pieces >> first >> sign >> count;
    const Tokens piece = counting(first, count);
    prompt.insert(prompt.end(), piece.begin(), piece.end());
  } while (pieces >> sign);
  return prompt;
}

class ScheduleGolden : public SchedulerTest, public testing::WithParamInterface<std::string> {
 protected:
  void read_line(const std::string& line) {
    std::istringstream words(line);
    std::string word, value;
    words >> word >> value;
    if (word == "pool") num_pages_ = std::stoi(value);
    if (word == "running") config_.max_running = std::stoi(value);
    if (word == "chunk") config_.chunked_prefill_size = std::stoi(value);
    if (word == "policy") config_.policy = parse_schedule_policy(value).value();
    if (word == "fair-share") config_.fair_share = parse_fair_share(value).value();
    if (word == "threshold") config_.priority_preemption_threshold = std::stoi(value);
    if (word == "conservativeness") config_.conservativeness = std::stod(value);
    if (word != "arrive") return;
    Arrival arrival{.step = std::stoi(value)};
    while (words >> word >> value) {
      if (word == "id") arrival.id = std::stoull(value);
      if (word == "prompt") arrival.prompt = read_prompt(value);
      if (word == "out") arrival.out = std::stoi(value);
      if (word == "priority") arrival.priority = std::stoi(value);
      if (word == "tenant") arrival.tenant = value;
    }
    arrivals_.push_back(arrival);
  }

  void arrive(int step) {
    for (const Arrival& arrival : arrivals_) {
      if (arrival.step != step) continue;
      priority_ = arrival.priority;
      cache_namespace_ = arrival.tenant;
      ASSERT_TRUE(add(arrival.id, arrival.prompt, arrival.out).ok());
    }
  }

  std::string run_all() {
    start(num_pages_, config_);
    std::string out;
    for (int number = 1; number < 1000; ++number) {
      arrive(number);
      const size_t num_ended = ends_order_.size();
      const std::vector<std::string> entries = step();
      if (entries.empty() && number > 10) break;
      if (entries.empty()) continue;
      std::string line = fmt::format("{:>3} ", number);
      for (const std::string& entry : entries) line += fmt::format(" {:<8}", entry);
      line = fmt::format("{:<50} waiting {}", line, scheduler_->stats().num_waiting);
      for (size_t i = num_ended; i < ends_order_.size(); ++i)
        line += fmt::format("{}{}", i == num_ended ? ", ended " : " ", ends_order_[i]);
      out += line + "\n";
    }
    const SchedulerStats stats = scheduler_->stats();
    out += fmt::format("cached {} of {} prompt tokens, retracted {}, preempted {}\n",
                       stats.cached_tokens, stats.prompt_tokens,
                       stats.num_retractions - stats.num_preemptions, stats.num_preemptions);
    return out;
  }

  SchedulerConfig config_;
  int32_t num_pages_ = 100;
  std::vector<Arrival> arrivals_;
};

TEST_P(ScheduleGolden, RunsAsWritten) {
  const std::string path = std::string(kFolder) + "/" + GetParam() + ".txt";
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  std::string head, expected, line;
  while (std::getline(file, line) && line != "---") {
    head += line + "\n";
    read_line(line);
  }
  while (std::getline(file, line)) expected += line + "\n";
  ASSERT_FALSE(arrivals_.empty());
  const std::string actual = run_all();
  EXPECT_TRUE(scheduler_->idle());
  EXPECT_EQ(ends_.size(), arrivals_.size());
  if (std::getenv("ESPALIER_WRITE_SCHEDULES") != nullptr)
    std::ofstream(path) << head << "---\n" << actual;
  else
    EXPECT_EQ(actual, expected) << path;
}

INSTANTIATE_TEST_SUITE_P(Schedules, ScheduleGolden,
                         testing::Values("burst_of_one_prefix", "chunks_beside_decode",
                                         "depth_first", "fair_shares", "longest_prefix_first",
                                         "preemption", "retraction"),
                         [](const auto& golden) { return golden.param; });

}  // namespace
}  // namespace espalier
