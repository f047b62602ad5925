// Which replica gets a request: against a model that counts loads, and case by case.
#include "engine/replicas/replica_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"
#include "fmt/core.h"

namespace espalier {
namespace {

using Outcome = ReplicaChoice::Outcome;

// A prompt of so many blocks that begins with those of the same letters.
PrefixKey key_of(std::string_view letters) {
  std::string text;
  for (const char letter : letters) text += std::string(kBlockBytes, letter);
  return text_key(text, 0);
}

TEST(ReplicaChoice, NamesAreThoseOfTheFlag) {
  EXPECT_EQ(*parse_load_balance("auto"), LoadBalance::kCacheAware);
  EXPECT_EQ(*parse_load_balance("cache_aware"), LoadBalance::kCacheAware);
  EXPECT_EQ(*parse_load_balance("round_robin"), LoadBalance::kRoundRobin);
  EXPECT_EQ(*parse_load_balance("shortest_queue"), LoadBalance::kShortestQueue);
  EXPECT_EQ(*parse_load_balance("total_requests"), LoadBalance::kShortestQueue);
  EXPECT_FALSE(parse_load_balance("fastest"));
}

TEST(ReplicaChoice, RoundRobinTakesThemInTurn) {
  ReplicaChoice choice(LoadBalance::kRoundRobin, 3);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(choice.choose({}), i % 3);
}

// Random begins and ends: loads are those of a count, and the shortest queue is chosen.
TEST(ReplicaChoice, LoadsAreWhatBeganAndHasNotEnded) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    const auto count = static_cast<int32_t>(rng.between(1, 5));
    ReplicaChoice choice(seed % 2 == 0 ? LoadBalance::kShortestQueue : LoadBalance::kCacheAware,
                         count);
    std::vector<int64_t> loads(static_cast<size_t>(count));
    std::vector<std::pair<int32_t, int32_t>> open;  // replica, samples
    for (int i = 0; i < 2000; ++i) {
      if (open.empty() || rng.below(2) == 0) {
        const int32_t replica = choice.choose({});  // no prefix is known
        ASSERT_EQ(loads[static_cast<size_t>(replica)], *std::ranges::min_element(loads));
        const auto samples = static_cast<int32_t>(rng.between(1, 3));
        choice.begin(replica, {}, samples);
        loads[static_cast<size_t>(replica)] += samples;
        open.emplace_back(replica, samples);
      } else {
        std::swap(open[rng.below(open.size())], open.back());
        const auto [replica, samples] = open.back();
        open.pop_back();
        choice.end(replica, samples, rng.below(4) == 0 ? Outcome::kNeither : Outcome::kAnswered);
        loads[static_cast<size_t>(replica)] -= samples;
      }
      for (int32_t r = 0; r < count; ++r) ASSERT_EQ(choice.load(r), loads[static_cast<size_t>(r)]);
    }
  }
}

TEST(ReplicaChoice, APrefixStaysWhereItIsUntilThatReplicaIsOverloaded) {
  ReplicaChoice choice(LoadBalance::kCacheAware, 3);
  const int32_t home = choice.choose(key_of("abcd"));
  choice.begin(home, key_of("abcd"), 1);
  int32_t num_there = 1;
  int32_t other = home;
  while (other == home && num_there < 100) {
    other = choice.choose(key_of("abcdef"));
    choice.begin(other, key_of("abcdef"), 1);
    num_there += other == home ? 1 : 0;
  }
  EXPECT_GT(num_there, 4);
  EXPECT_LT(num_there, 20);
  // Where both have it, the less loaded one gets it.
  EXPECT_EQ(choice.choose(key_of("abcdef")), other);
  choice.forget_prefixes();
  choice.begin(3 - home - other, {}, 0);
  EXPECT_NE(choice.choose(key_of("abcdef")), home);
}

TEST(ReplicaChoice, AShortCommonPrefixDecidesNothing) {
  ReplicaChoice choice(LoadBalance::kCacheAware, 2);
  const int32_t first = choice.choose(key_of("abcdefgh"));
  choice.begin(first, key_of("abcdefgh"), 1);
  EXPECT_EQ(choice.choose(key_of("axyzuvwk")), 1 - first);
  EXPECT_EQ(choice.choose(key_of("abcduvwk")), first);
}

// Failures are quick, so a replica that fails has the shortest queue.
TEST(ReplicaChoice, AFailingReplicaIsLeftOutAndProbed) {
  for (const LoadBalance method :
       {LoadBalance::kRoundRobin, LoadBalance::kShortestQueue, LoadBalance::kCacheAware})
    for (int32_t failing = 0; failing < 3; ++failing) {
      ReplicaChoice choice(method, 3);
      for (int i = 0; i < ReplicaChoice::kFailuresMax; ++i) {
        EXPECT_FALSE(choice.is_failing(failing));
        choice.begin(failing, key_of("abcd"), 1);
        choice.end(failing, 1, Outcome::kFailed);
      }
      EXPECT_TRUE(choice.is_failing(failing));
      int num_probes = 0;
      constexpr int kChoices = 10 * static_cast<int>(ReplicaChoice::kProbeEvery);
      for (int i = 0; i < kChoices; ++i) {
        const int32_t replica = choice.choose(key_of("abcd"));
        if (replica != failing) choice.begin(replica, {}, 1);  // they are busier
        num_probes += replica == failing ? 1 : 0;
      }
      EXPECT_EQ(num_probes, 10);
      choice.begin(failing, {}, 1);
      choice.end(failing, 1, Outcome::kAnswered);
      EXPECT_FALSE(choice.is_failing(failing));
    }
}

TEST(ReplicaChoice, WhereAllFailOneIsChosenNevertheless) {
  ReplicaChoice choice(LoadBalance::kShortestQueue, 2);
  for (int32_t replica = 0; replica < 2; ++replica)
    for (int i = 0; i < ReplicaChoice::kFailuresMax; ++i) {
      choice.begin(replica, {}, 1);
      choice.end(replica, 1, Outcome::kFailed);
    }
  const int32_t first = choice.choose({});
  EXPECT_EQ(choice.choose({}), 1 - first);
}

}  // namespace
}  // namespace espalier
