// Plans on simulated devices, whose clock is the test's: what a step takes is a function of its
// entries and rows, with noise and interrupted steps, and a verifying step takes the host's wait on
// top. A number of rows that comes for the first time may take longer. Requests' predictions are
// right with fixed probabilities. Seeds are printed on failure.
#include "engine/speculation/draft_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"

namespace espalier {
namespace {

constexpr int32_t kDraftMax = 8, kSamplesMax = 512;

struct Device {
  std::string name;
  std::function<double(int32_t entries, int32_t rows)> seconds;
  double wait = 0;      // of the host, for a step that verifies
  double first = 0;     // that the first verifying step of each number of rows takes longer
  double near = 0.9;    // of the best fixed length
  double least = 0.99;  // of no draft tokens
};

// An 8B shape on an H200, contexts of 1,024: a staircase with cliffs above 64 and 128 rows.
double staircase(int32_t entries, int32_t rows) {
  constexpr std::array<std::pair<int32_t, double>, 14> kSteps{{{1, 4.13},
                                                               {2, 4.40},
                                                               {4, 4.58},
                                                               {8, 4.70},
                                                               {16, 4.75},
                                                               {32, 4.85},
                                                               {48, 5.05},
                                                               {64, 5.10},
                                                               {80, 6.5},
                                                               {112, 6.7},
                                                               {128, 6.8},
                                                               {192, 7.8},
                                                               {256, 8.6},
                                                               {512, 14.0}}};
  const auto* const at = std::ranges::find_if(kSteps, [&](auto& s) { return rows <= s.first; });
  const double base = at != kSteps.end() ? at->second : 14.0 + 0.02 * (rows - 512);
  return 1e-3 * (base + 0.028 * entries);
}

std::vector<Device> devices() {
  return {{"staircase", staircase, 150e-6},
          {"staircase with first steps of 2 ms more", staircase, 150e-6, 2e-3, 0.88},
          {"line", [](int32_t, int32_t rows) { return 1e-3 * (1 + 0.2 * rows); }, 50e-6},
          {"proportional", [](int32_t, int32_t rows) { return 1e-3 * (0.1 + rows); }, 50e-6},
          {"free rows", [](int32_t, int32_t) { return 1e-3; }, 20e-6},
          {"slow host", [](int32_t, int32_t rows) { return 1e-3 * (1 + 0.1 * rows); }, 1.5e-3, 0,
           0.7, 0.98}};
}

struct Totals {
  double seconds = 0;
  std::vector<double> tokens;  // of each request
  // Tokens a second: of all requests, and the geometric mean of the requests'.
  double rate() const { return std::accumulate(tokens.begin(), tokens.end(), 0.0) / seconds; }
  double mean_rate() const {
    double sum = 0;
    for (const double of_one : tokens) sum += std::log(of_one);
    return std::exp(sum / static_cast<double>(tokens.size())) / seconds;
  }
};

// Requests that decode until each has `length` tokens. An acceptance of 0: nothing is predicted.
class Simulation {
 public:
  Simulation(const Device& device, std::vector<double> acceptance, uint64_t seed,
             int32_t length = std::numeric_limits<int32_t>::max())
      : device_(device),
        acceptance_(std::move(acceptance)),
        rng_(seed),
        texts_(acceptance_.size()) {
    for (Text& text : texts_) {
      text.draw(rng_, acceptance_[index_of(text)]);
      text.left = length;
    }
  }

  // Takes `fixed` draft tokens of each request that has a prediction; below 0: as planned. Ends
  // after so many steps, or with the last request.
  Totals run(int32_t num_steps, int32_t fixed) {
    Totals totals;
    totals.tokens.resize(texts_.size());
    bool in_flight = true;
    for (int32_t i = 0; i < num_steps && num_entries() > 0; ++i) {
      bool waited = !in_flight;
      if (in_flight && fixed < 0 && plan(true) > 0) waited = true;
      int32_t num_draft_tokens = 0;
      if (fixed < 0) num_draft_tokens = waited ? plan(false) : 0;
      if (fixed >= 0) num_draft_tokens = fix(fixed);
      waited |= num_draft_tokens > 0;
      step(num_draft_tokens, waited, totals);
      in_flight = num_draft_tokens == 0;
    }
    return totals;
  }

 private:
  struct Text {
    AcceptanceRate own;
    std::array<bool, 32> right{};  // of the tokens predicted next
    int32_t match = 3, length = 0;
    int32_t left = 0;  // tokens to come

    void draw(Rng& rng, double acceptance) {
      for (bool& one : right) one = rng.uniform() < acceptance;
    }
  };
  size_t index_of(const Text& text) const { return static_cast<size_t>(&text - texts_.data()); }
  int32_t num_entries() const {
    return static_cast<int32_t>(
        std::ranges::count_if(texts_, [](const Text& text) { return text.left > 0; }));
  }

  int32_t plan(bool in_flight) {
    chains_.clear();
    who_.clear();
    if (!planner_.may_pay(num_entries(), kSamplesMax)) return 0;
    for (Text& text : texts_) {
      text.length = 0;
      if (acceptance_[index_of(text)] <= 0 || text.left == 0) continue;
      DraftChain chain{.origin = {.match_length = text.match}, .own = &text.own, .most = kDraftMax};
      if (in_flight) ++chain.origin.match_length;  // it is predicted anew behind a wrong token
      chains_.push_back(chain);
      who_.push_back(&text);
    }
    const int32_t num = planner_.plan(num_entries(), kSamplesMax, chains_, in_flight);
    for (size_t i = 0; i < chains_.size(); ++i) who_[i]->length = chains_[i].length;
    return num;
  }
  int32_t fix(int32_t length) {
    int32_t num = 0;
    for (Text& text : texts_) {
      text.length = acceptance_[index_of(text)] > 0 && text.left > 0 ? length : 0;
      num += text.length;
    }
    return num;
  }
  void step(int32_t num_draft_tokens, bool waited, Totals& totals) {
    const int32_t rows = num_entries() + num_draft_tokens;
    double seconds = device_.seconds(num_entries(), rows) * (1 + 0.03 * rng_.uniform());
    const bool is_first = device_.first > 0 && num_draft_tokens > 0 &&
                          known_rows_.insert(StepCost::next_edge(rows)).second;
    if (is_first) seconds += device_.first;
    const double useful = seconds;
    if (rng_.below(100) == 0) seconds += 5e-3;  // which the planner sees, and the totals do not
    DraftPlanner::Step done{.num_entries = num_entries(),
                            .num_draft_tokens = num_draft_tokens,
                            .seconds = seconds + (waited ? device_.wait : 0),
                            .is_first = is_first};
    for (Text& text : texts_) {
      if (text.left == 0) continue;
      int32_t num_tokens = 0;
      bool right = true;
      while (right && text.left > 0 && num_tokens <= (num_draft_tokens > 0 ? text.length : 0)) {
        right = advance(text);
        ++num_tokens;
        --text.left;
      }
      done.num_accepted += num_tokens - 1;
      totals.tokens[index_of(text)] += num_tokens;
    }
    totals.seconds += done.seconds - seconds + useful;
    planner_.observe_step(done);
  }
  // The next token; whether it was predicted.
  bool advance(Text& text) {
    const double acceptance = acceptance_[index_of(text)];
    if (acceptance <= 0) return false;
    const bool right = text.right[0];
    policy_.observe_token({.match_length = text.match}, text.own, right);
    text.match = right ? text.match + 1 : 3;
    std::shift_left(text.right.begin(), text.right.end(), 1);
    text.right.back() = rng_.uniform() < acceptance;
    return right;
  }

  const Device& device_;
  const std::vector<double> acceptance_;
  Rng rng_;
  std::vector<Text> texts_;
  DraftPolicy policy_;
  DraftPlanner planner_{policy_};
  std::vector<DraftChain> chains_;
  std::vector<Text*> who_;
  std::set<int32_t> known_rows_;  // of verifying steps
};

std::vector<double> half(int32_t count, double acceptance) {
  std::vector<double> all(static_cast<size_t>(count), 0.0);
  for (size_t i = 0; i < all.size(); i += 2) all[i] = acceptance;
  return all;
}

void expect_never_loses(const Device& device, const std::vector<double>& acceptance,
                        const std::string& mix, uint64_t seed) {
  const int32_t num_steps = acceptance.size() <= 16 ? 4800 : 1440;
  const Totals off = Simulation(device, acceptance, seed).run(num_steps, 0);
  double best = off.mean_rate();
  int32_t best_fixed = 0;
  for (int32_t fixed = 1; fixed <= kDraftMax; ++fixed) {
    if (fixed * std::ssize(acceptance) > kSamplesMax) break;
    const double rate = Simulation(device, acceptance, seed).run(num_steps / 4, fixed).mean_rate();
    if (rate > best) best_fixed = fixed;
    best = std::max(best, rate);
  }
  const Totals planned = Simulation(device, acceptance, seed).run(num_steps, -1);
  SCOPED_TRACE(device.name + ", " + mix + ", " + std::to_string(acceptance.size()) +
               " requests, seed " + std::to_string(seed));
  EXPECT_GE(planned.rate() / off.rate(), device.least);
  EXPECT_GE(planned.mean_rate() / off.mean_rate(), device.least);
  EXPECT_GE(planned.mean_rate() / best, device.near)
      << "the best fixed length, " << best_fixed << ", has " << best / off.mean_rate()
      << " of off, the plans " << planned.mean_rate() / off.mean_rate();
}

TEST(DraftPlanner, NeverLosesAndComesNearTheBestLength) {
  for (const Device& device : devices())
    for (const int32_t count : {1, 4, 16, 64, 256})
      for (const uint64_t seed : {1}) {
        const auto size = static_cast<size_t>(count);
        expect_never_loses(device, std::vector<double>(size, 0), "nothing repeats", seed);
        for (const double acceptance : {0.02, 0.3, 0.6, 0.9}) {
          const std::string of = " of " + std::to_string(acceptance);
          expect_never_loses(device, std::vector<double>(size, acceptance), "all" + of, seed);
          if (count > 1) expect_never_loses(device, half(count, acceptance), "half" + of, seed);
        }
      }
}

// A short run pays for all tries: they are few.
TEST(DraftPlanner, TriesLoseLittle) {
  for (const Device& device : devices())
    for (const int32_t count : {1, 16, 64})
      for (const double acceptance : {0.1, 0.3, 0.5}) {
        const std::vector<double> all(static_cast<size_t>(count), acceptance);
        const double off = Simulation(device, all, 5).run(512, 0).rate();
        EXPECT_GE(Simulation(device, all, 5).run(512, -1).rate() / off, device.least)
            << device.name << " " << count << " " << acceptance;
      }
}

// Answers of 512 tokens that all begin at once: those that repeat themselves end early, and the
// others, which end last, are hardly delayed by their draft tokens.
TEST(DraftPlanner, RequestsThatRepeatNothingArriveInTime) {
  constexpr int32_t kTokens = 512;
  for (const Device& device : devices())
    for (const int32_t count : {16, 64, 256}) {
      const double off = Simulation(device, half(count, 0.9), 3, kTokens).run(kTokens, 0).seconds;
      const double on = Simulation(device, half(count, 0.9), 3, kTokens).run(kTokens, -1).seconds;
      EXPECT_GE(off / on, device.least) << device.name << " " << count;
    }
}

class PlannerTest : public testing::Test {
 protected:
  void learn_cost(int32_t entries, std::initializer_list<std::pair<int32_t, double>> ratios) {
    for (int i = 0; i < 5; ++i) observe(entries, 0, 1e-3);
    for (const auto& [draft_tokens, ratio] : ratios)
      for (int i = 0; i < 5; ++i) observe(entries, draft_tokens, ratio * 1e-3);
  }
  void observe(int32_t entries, int32_t draft_tokens, double seconds) {
    planner_.observe_step({.num_entries = entries,
                           .num_draft_tokens = draft_tokens,
                           .num_accepted = draft_tokens,
                           .seconds = seconds});
  }
  DraftChain chain(AcceptanceRate& own, double acceptance) {
    for (int i = 0; i < 100; ++i)
      policy_.observe_token({.match_length = 8}, own, i % 10 < 10 * acceptance);
    return {.origin = {.match_length = 8}, .own = &own, .most = kDraftMax};
  }

  DraftPolicy policy_;
  DraftPlanner planner_{policy_};
  AcceptanceRate good_, bad_;
};

TEST_F(PlannerTest, TakesTheMostProbableDraftTokensOfAll) {
  learn_cost(2, {{2, 1.05}, {4, 1.1}, {8, 1.2}, {14, 1.35}});
  std::vector<DraftChain> chains = {chain(bad_, 0.2), chain(good_, 0.9)};
  const int32_t num = planner_.plan(2, kSamplesMax, chains);
  EXPECT_EQ(num, chains[0].length + chains[1].length);
  EXPECT_GE(chains[1].length, 6);
  EXPECT_LE(chains[0].length, 2);
  EXPECT_EQ(planner_.plan(2, 3, chains), 3) << "at most so many samples";
}

TEST_F(PlannerTest, ACliffBoundsAllRequestsTogether) {
  learn_cost(16, {{8, 1.02}, {16, 1.03}, {32, 1.05}, {48, 1.06}, {64, 2.0}, {100, 2.1}});
  std::vector<AcceptanceRate> own(16);
  std::vector<DraftChain> chains;
  for (AcceptanceRate& one : own) chains.push_back(chain(one, 0.7));
  EXPECT_EQ(planner_.plan(16, kSamplesMax, chains), 48);
  EXPECT_TRUE(planner_.may_pay(16, kSamplesMax));
}

TEST_F(PlannerTest, IsOffWhereRowsCostAsMuchAsTheyGive) {
  learn_cost(4, {{1, 1.25}, {2, 1.5}, {4, 2.0}, {8, 3.0}, {12, 4}, {20, 6}, {28, 8}, {32, 9}});
  std::vector<DraftChain> chains = {chain(good_, 1), chain(bad_, 1)};
  EXPECT_EQ(planner_.plan(4, kSamplesMax, chains), 0);
  EXPECT_FALSE(planner_.may_pay(4, 32));
  EXPECT_EQ(planner_.extend(chains[0], 8), 0);
}

TEST_F(PlannerTest, ExtendsAPlan) {
  learn_cost(2, {{2, 1.05}, {4, 1.1}, {8, 1.2}, {14, 1.3}});
  std::vector<DraftChain> chains = {chain(good_, 0.9)};
  ASSERT_GT(planner_.plan(2, kSamplesMax, chains), 3);
  DraftChain late = chain(bad_, 0.9);
  EXPECT_GT(planner_.extend(late, 8), 2);
  EXPECT_EQ(late.length, planner_.extend(late, 0) + late.length);
}

TEST_F(PlannerTest, TheFirstStepOfASizeTeachesNoCost) {
  learn_cost(1, {{1, 1.05}, {2, 1.08}, {4, 1.1}});
  std::vector<DraftChain> chains = {chain(good_, 0.9)};
  const int32_t before = planner_.plan(1, 4, chains);
  ASSERT_GT(before, 2);
  const double ratio = planner_.cost().measured(1, 4).value();
  for (int i = 0; i < 9; ++i)
    planner_.observe_step({.num_entries = 1,
                           .num_draft_tokens = 4,
                           .num_accepted = 4,
                           .seconds = 4e-3,
                           .is_first = true});
  EXPECT_EQ(planner_.cost().measured(1, 4).value(), ratio);
  EXPECT_EQ(planner_.plan(1, 4, chains), before);
}

// A first step is paid for all the same: others like it would lose more.
TEST_F(PlannerTest, TheFirstStepOfASizeIsPaidFor) {
  learn_cost(1, {{1, 1.05}, {2, 1.08}, {4, 1.1}});
  std::vector<DraftChain> chains = {chain(good_, 0.9)};
  for (int i = 0; i < 40; ++i)
    planner_.observe_step(
        {.num_entries = 1, .num_draft_tokens = 4, .seconds = 4e-3, .is_first = true});
  EXPECT_EQ(planner_.plan(1, 4, chains), 0);
}

// Where what is expected is not accepted, plans get shorter.
TEST_F(PlannerTest, WhatIsExpectedTooHighCountsLess) {
  learn_cost(1, {{1, 1.3}, {2, 1.4}, {4, 1.5}, {8, 1.6}});
  std::vector<DraftChain> chains = {chain(good_, 0.6)};
  const int32_t first = planner_.plan(1, kSamplesMax, chains);
  ASSERT_GT(first, 0);
  for (int i = 0; i < 200; ++i) {
    const int32_t num = planner_.plan(1, kSamplesMax, chains);
    planner_.observe_step({.num_entries = 1,
                           .num_draft_tokens = num,
                           .num_accepted = 0,
                           .seconds = num > 0 ? 1.5e-3 : 1e-3});
  }
  EXPECT_EQ(planner_.plan(1, kSamplesMax, chains), 0);
}

}  // namespace
}  // namespace espalier
