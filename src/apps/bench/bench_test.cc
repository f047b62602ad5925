// What the benchmarks send and how they sum up what came back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "apps/bench/report.h"
#include "apps/bench/runner.h"
#include "apps/bench/workload.h"

namespace espalier::apps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int32_t> all_ids(const std::vector<Conversation>& workload) {
  std::vector<int32_t> out;
  for (const Conversation& conversation : workload)
    for (const Turn& turn : conversation.turns)
      out.insert(out.end(), turn.ids.begin(), turn.ids.end());
  return out;
}

TEST(WorkloadTest, IsAFunctionOfItsSeed) {
  WorkloadOptions options;
  const auto first = all_ids(make_workload(options, 1000));
  EXPECT_EQ(first, all_ids(make_workload(options, 1000)));
  options.seed = 2;
  EXPECT_NE(first, all_ids(make_workload(options, 1000)));
}

TEST(WorkloadTest, LengthsAndIdsKeepWithinTheirBounds) {
  WorkloadOptions options;
  options.num_prompts = 300;
  options.input_len = 40;
  options.output_len = 10;
  options.range_ratio = 0.5;
  const auto workload = make_workload(options, 800);
  ASSERT_EQ(workload.size(), 300u);
  std::set<size_t> lengths;
  for (const Conversation& conversation : workload) {
    ASSERT_EQ(conversation.turns.size(), 1u);
    const Turn& turn = conversation.turns[0];
    lengths.insert(turn.ids.size());
    EXPECT_GE(turn.ids.size(), 20u);
    EXPECT_LE(turn.ids.size(), 40u);
    EXPECT_GE(turn.output_len, 5);
    EXPECT_LE(turn.output_len, 10);
    for (const int32_t id : turn.ids) EXPECT_TRUE(id >= 100 && id < 700) << id;
  }
  EXPECT_EQ(lengths.size(), 21u);  // every length from 20 to 40 among 300 draws
}

TEST(WorkloadTest, GroupsShareTheirBeginningAndNothingElse) {
  WorkloadOptions options;
  options.kind = "shared-prefix";
  options.num_prompts = 12;
  options.num_groups = 3;
  options.input_len = 100;
  options.shared_fraction = 0.8;
  const auto workload = make_workload(options, 50000);
  const auto& first = workload[0].turns[0].ids;
  for (size_t i = 0; i < workload.size(); ++i) {
    const auto& ids = workload[i].turns[0].ids;
    ASSERT_EQ(ids.size(), 100u);
    const auto same = static_cast<size_t>(
        std::mismatch(ids.begin(), ids.end(), first.begin()).first - ids.begin());
    if (i == 0) continue;
    EXPECT_TRUE(i % 3 == 0 ? same >= 80 && same < 90 : same < 10) << i << " shares " << same;
  }
}

TEST(WorkloadTest, AChatHasTurnsAndItsLongestRequestIsTheWholeConversation) {
  WorkloadOptions options;
  options.kind = "chat";
  options.num_prompts = 10;
  options.turns = 4;
  options.input_len = 20;
  options.output_len = 5;
  const auto workload = make_workload(options, 1000);
  ASSERT_EQ(workload.size(), 3u);
  EXPECT_EQ(workload[0].turns.size(), 4u);
  EXPECT_EQ(longest_request(workload), 100);
}

TEST(WorkloadTest, APresetGivesLengthsThatAFlagOverridesAndScaleMultiplies) {
  WorkloadOptions options;
  SettingTable table;
  add_workload_settings(table, options);
  ASSERT_TRUE(assign(*table.find("preset"), {"document_qa"}, "--preset").ok());
  ASSERT_TRUE(assign(*table.find("output-len"), {"100"}, "--output-len").ok());
  ASSERT_TRUE(assign(*table.find("scale"), {"0.5"}, "--scale").ok());
  ASSERT_TRUE(resolve_workload(options, table).ok());
  EXPECT_EQ(options.input_len, 2048);
  EXPECT_EQ(options.output_len, 50);
}

TEST(WorkloadTest, AFlagOfAnotherKindIsAContradiction) {
  WorkloadOptions options;
  SettingTable table;
  add_workload_settings(table, options);
  ASSERT_TRUE(assign(*table.find("turns"), {"2"}, "--turns").ok());
  EXPECT_THAT(resolve_workload(options, table).message(), HasSubstr("--turns belongs to"));
}

TEST(DistributionTest, TakesTheNearestRank) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Distribution d = distribution(values);
  EXPECT_EQ(d.mean, 50.5);
  EXPECT_EQ(d.median, 50);
  EXPECT_EQ(d.p90, 90);
  EXPECT_EQ(d.p99, 99);
  EXPECT_EQ(d.max, 100);
  EXPECT_EQ(distribution({7}).p99, 7);
  EXPECT_EQ(distribution({}).max, 0);
}

TEST(TokenTimerTest, SharesTheGapOfTokensThatCameTogether) {
  TokenTimer timer(10.0);
  timer.tokens(10.5, 1);
  timer.tokens(10.5, 1);  // an event without a new token
  timer.tokens(11.5, 3);
  RequestRecord record;
  timer.finish(20.0, record);
  EXPECT_EQ(record.output_tokens, 3);
  EXPECT_EQ(record.time_to_first_token, 0.5);
  EXPECT_EQ(record.latency, 1.5);
  EXPECT_THAT(record.gaps, ElementsAre(0.5f, 0.5f));
}

TEST(ReportTest, SumsUpAndKeepsFailuresApart) {
  RequestRecord good;
  good.ok = true;
  good.prompt_tokens = 100;
  good.cached_tokens = 25;
  good.output_tokens = 11;
  good.time_to_first_token = 0.1;
  good.latency = 1.1;
  RequestRecord bad;
  bad.error = "HTTP 503";
  const BenchReport report = summarize({good, bad, good}, 2.0);
  EXPECT_EQ(report.completed, 2);
  EXPECT_EQ(report.failed, 1);
  EXPECT_EQ(report.cache_hit_rate(), 0.25);
  EXPECT_DOUBLE_EQ(report.mean_concurrency, 1.1);
  EXPECT_DOUBLE_EQ(report.time_per_output_token.median, 0.1);
  EXPECT_THAT(to_json(report), HasSubstr("\"cache_hit_rate\":2.5E-1"));
  EXPECT_THAT(table(report), HasSubstr("failed: HTTP 503"));
}

class FixedSender final : public Sender {
 public:
  RequestRecord send(const Turn& turn, ConversationState& state) override {
    state.ids.insert(state.ids.end(), turn.ids.begin(), turn.ids.end());
    RequestRecord record;
    record.ok = true;
    record.prompt_tokens = static_cast<int32_t>(state.ids.size());
    return record;
  }
};

TEST(RunnerTest, SendsEveryTurnOnceWithTheConversationBeforeIt) {
  WorkloadOptions options;
  options.kind = "chat";
  options.num_prompts = 40;
  options.turns = 4;
  options.input_len = 10;
  RunnerOptions runner;
  runner.max_concurrency = 3;
  const RunResult result = run_workload(make_workload(options, 1000), runner,
                                        [] { return std::make_unique<FixedSender>(); });
  std::map<int32_t, int> turns_by_prompt_length;
  for (const RequestRecord& record : result.records) ++turns_by_prompt_length[record.prompt_tokens];
  EXPECT_THAT(turns_by_prompt_length, ElementsAre(testing::Pair(10, 10), testing::Pair(20, 10),
                                                  testing::Pair(30, 10), testing::Pair(40, 10)));
}

}  // namespace
}  // namespace espalier::apps
