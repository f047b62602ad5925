#include "router/policy.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/rng.h"
#include "router/cache_aware.h"

namespace espalier::router {
namespace {

std::unique_ptr<Policy> policy(const std::string& name) {
  PolicyOptions options;
  options.name = name;
  auto made = make_policy(options);
  EXPECT_TRUE(made) << name;
  return std::move(*made);
}

std::vector<Candidate> idle(size_t n) {
  std::vector<Candidate> out(n);
  for (size_t i = 0; i < n; ++i)
    out[i] = {.slot = static_cast<WorkerSlot>(i), .id = mix64(i), .requests = 0, .tokens = 0};
  return out;
}

WorkerSlot choose(Policy& policy, std::string_view text, std::span<const Candidate> candidates) {
  const PrefixKey key = text_key(text, 0);
  return policy.choose({key, 0}, candidates).slot;
}

std::string words(Rng& rng, size_t num_blocks) {
  std::string out;
  while (out.size() < num_blocks * kBlockBytes) out += fmt::format("{:016x}", rng());
  return out;
}

TEST(Policy, NamesAndOptionsAreChecked) {
  for (const std::string& name : policy_names()) EXPECT_NE(policy(name), nullptr);
  PolicyOptions options;
  options.name = "cache_awar";
  EXPECT_NE(make_policy(options).error().message().find("cache_aware"), std::string::npos);
  for (const auto& spoil : std::vector<void (*)(PolicyOptions&)>{
           [](PolicyOptions& o) { o.cache_threshold = 1.5; },
           [](PolicyOptions& o) { o.balance_rel_threshold = 0.5; },
           [](PolicyOptions& o) { o.prefix_hash_load_factor = 1; }}) {
    PolicyOptions bad;
    spoil(bad);
    EXPECT_EQ(make_policy(bad).error().code(), StatusCode::kInvalidArgument);
  }
}

TEST(Policy, AllChooseAmongTheCandidatesAlone) {
  for (const std::string& name : policy_names()) {
    SCOPED_TRACE(name);
    Rng rng(3);
    const auto p = policy(name);
    std::vector<std::string> prompts;
    for (int i = 0; i < 20; ++i) prompts.push_back(words(rng, rng.below(20)));
    for (int i = 0; i < 500; ++i) {
      std::vector<Candidate> candidates = idle(10);
      std::erase_if(candidates, [&](const Candidate&) { return rng.below(2) == 0; });
      if (candidates.empty()) continue;
      for (Candidate& c : candidates) c.requests = static_cast<int32_t>(rng.below(40));
      const WorkerSlot slot = choose(*p, prompts[rng.below(prompts.size())], candidates);
      ASSERT_EQ(std::ranges::count(candidates, slot, &Candidate::slot), 1);
      if (rng.below(20) == 0) p->forget_worker(static_cast<WorkerSlot>(rng.below(10)));
    }
  }
}

TEST(Policy, RoundRobinTakesTurns) {
  const auto p = policy("round_robin");
  auto candidates = idle(3);
  std::string order;
  for (int i = 0; i < 4; ++i) order += std::to_string(choose(*p, "", candidates));
  candidates.erase(candidates.begin() + 1);
  for (int i = 0; i < 3; ++i) order += std::to_string(choose(*p, "", candidates));
  EXPECT_EQ(order, "0120202");
}

// A request takes a worker of each role; workers 0 and 1 compute prompts, 2 and 3 answer.
TEST(Policy, RoundRobinTakesTurnsInEachRole) {
  const auto p = policy("round_robin");
  const auto all = idle(4);
  std::string order;
  for (int i = 0; i < 4; ++i) {
    order +=
        std::to_string(p->choose({.role = WorkerRole::kServing}, std::span(all).subspan(2)).slot);
    order +=
        std::to_string(p->choose({.role = WorkerRole::kPrefill}, std::span(all).first(2)).slot);
  }
  EXPECT_EQ(order, "20312031");
}

TEST(Policy, PowerOfTwoAvoidsTheLoaded) {
  const auto p = policy("power_of_two");
  auto candidates = idle(4);
  candidates[2].requests = 100;
  std::map<WorkerSlot, int> counts;
  for (int i = 0; i < 1000; ++i) ++counts[choose(*p, "", candidates)];
  EXPECT_LT(counts[2], 120) << "only where both draws are that one: 1 in 16";
  EXPECT_GT(counts[0], 200);
}

TEST(Policy, LeastTokensCountsTokensByWeight) {
  const auto p = policy("least_tokens");
  auto candidates = idle(3);
  candidates[0].tokens = 500;
  candidates[1].tokens = 400;
  candidates[2].tokens = 100;
  candidates[2].weight = 0.1f;
  EXPECT_EQ(choose(*p, "", candidates), 1);
}

TEST(Policy, SessionsStayAndOnlyThoseOfAWorkerThatLeavesMove) {
  auto candidates = idle(8);
  std::map<std::string, WorkerSlot> before;
  std::set<WorkerSlot> used;
  for (int i = 0; i < 200; ++i) {
    const std::string session = fmt::format("session-{}", i);
    before[session] = session_worker(session, candidates);
    used.insert(before[session]);
  }
  EXPECT_EQ(used.size(), 8u);
  candidates.erase(candidates.begin() + 5);
  for (const auto& [session, slot] : before)
    if (slot != 5) {
      EXPECT_EQ(session_worker(session, candidates), slot);
    }
}

TEST(PrefixHash, GroupsByTheBeginAndBoundsTheLoad) {
  const auto p = policy("prefix_hash");
  Rng rng(1);
  auto candidates = idle(8);
  const std::string begin = words(rng, 20);
  const WorkerSlot home = choose(*p, begin + words(rng, 3), candidates);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(choose(*p, begin + words(rng, 3), candidates), home);
  candidates[home].requests = 50;  // above 1.25 of the mean
  const WorkerSlot next = choose(*p, begin + words(rng, 3), candidates);
  EXPECT_NE(next, home);
  candidates[home].requests = 0;
  candidates.erase(candidates.begin() + next);
  EXPECT_EQ(choose(*p, begin, candidates), home) << "others that leave move nothing";

  // Whatever is sent, no load passes the bound.
  auto loads = idle(8);
  for (int i = 0; i < 800; ++i) {
    const WorkerSlot slot = choose(*p, rng.below(2) == 0 ? begin : words(rng, 8), loads);
    ++loads[slot].requests;
    ASSERT_LE(loads[slot].requests, std::ceil(1.25 * (i + 1) / 8));
  }
}

TEST(CacheAware, ConversationsStay) {
  const auto p = policy("cache_aware");
  Rng rng(5);
  auto candidates = idle(8);
  const std::string system = words(rng, 10);
  std::vector<std::string> prompts;
  std::vector<WorkerSlot> home;
  for (int i = 0; i < 32; ++i) {
    prompts.push_back(words(rng, 4));
    home.push_back(choose(*p, prompts.back(), candidates));
  }
  EXPECT_EQ(std::set(home.begin(), home.end()).size(), 8u) << "new ones are spread";
  for (int turn = 0; turn < 5; ++turn) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      // The answer is long: the earlier prompt is less than the threshold's part of the new one.
      prompts[i] += words(rng, 20);
      ASSERT_EQ(choose(*p, prompts[i], candidates), home[i]);
    }
  }
}

TEST(CacheAware, ReportsWhatIsShared) {
  const auto p = policy("cache_aware");
  Rng rng(6);
  const auto candidates = idle(2);
  const std::string begin = words(rng, 10);
  const PrefixKey first = text_key(begin + words(rng, 5), 0),
                  second = text_key(begin + words(rng, 5), 0);
  EXPECT_EQ(p->choose({first, 0}, candidates).num_blocks_shared, 0u);
  EXPECT_EQ(p->choose({second, 0}, candidates).num_blocks_shared, 10u);
  EXPECT_EQ(p->choose({second, 0}, candidates).num_blocks_shared, 15u);
}

TEST(CacheAware, AShortSharedBeginDecidesNothing) {
  const auto p = policy("cache_aware");
  Rng rng(7);
  const auto candidates = idle(8);
  const std::string begin = words(rng, 2);
  std::set<WorkerSlot> used;
  for (int i = 0; i < 16; ++i) used.insert(choose(*p, begin + words(rng, 30), candidates));
  EXPECT_EQ(used.size(), 8u);
}

TEST(CacheAware, PassesOverTheOverloadedAndTakesTheNextBest) {
  const auto p = policy("cache_aware");
  Rng rng(8);
  auto candidates = idle(4);
  const std::string prompt = words(rng, 10);
  const WorkerSlot home = choose(*p, prompt, candidates);
  candidates[home].requests = 5;
  EXPECT_EQ(choose(*p, prompt, candidates), home) << "within 4 of the mean";
  candidates[home].requests = 6;
  const WorkerSlot second = choose(*p, prompt, candidates);
  EXPECT_NE(second, home);
  for (Candidate& c : candidates)
    if (c.slot != home && c.slot != second) c.requests = 0;
  candidates[second].requests = 2;
  EXPECT_EQ(choose(*p, prompt, candidates), second) << "which has the prefix now, too";
  p->forget_worker(second);
  EXPECT_NE(choose(*p, prompt, candidates), second);
}

TEST(CacheAware, WhatManyPromptsBeginWithIsLevel) {
  const auto p = policy("cache_aware");
  Rng rng(9);
  auto candidates = idle(8);
  const std::string begin = words(rng, 20);
  for (int i = 1; i <= 400; ++i) {
    const WorkerSlot slot = choose(*p, begin + words(rng, 2), candidates);
    ++candidates[slot].requests;
    const double mean = i / 8.0;
    ASSERT_LE(candidates[slot].requests, 1 + mean + std::max(4.0, 0.5 * mean)) << i;
    if (i < 64) continue;
    // By now all eight hold it, so each may exceed the mean by an eighth of that.
    ASSERT_LE(candidates[slot].requests, 1 + mean + std::max(4.0, 0.5 * mean) / 8) << i;
  }
}

// A prompt of `n` tokens that differ from those of other indices.
PromptTokens tokens_of(int index, int n) {
  PromptTokens out;
  for (int i = 0; i < n; ++i) out.ids.push_back(index * 1000 + i);
  return out;
}

KvEvent stored(const PromptTokens& prompt, uint64_t first_name) {
  KvEvent event{.type = KvEvent::Type::kStored, .tokens = prompt.ids, .block_size = 16};
  for (size_t i = 0; i < prompt.ids.size() / 16; ++i) event.hashes.push_back(first_name + i);
  return event;
}

class EventsDecide : public testing::Test {
 protected:
  WorkerSlot choose(const PromptTokens& prompt) {
    const PrefixKey key = token_key(prompt.ids, 0);
    const Choice choice = policy_.choose({key, 0, &prompt, now_}, candidates_);
    last_shared_ = choice.num_blocks_shared;
    return choice.slot;
  }
  void pass(Duration time) { now_ += time; }

  CacheAware policy_{PolicyOptions{}};
  std::vector<Candidate> candidates_ = {
      {.slot = 0, .id = 1}, {.slot = 1, .id = 2}, {.slot = 2, .id = 3}};
  TimePoint now_ = TimePoint{} + std::chrono::hours(1);
  uint32_t last_shared_ = 0;
};

TEST_F(EventsDecide, WhatIsHeldWinsOverWhatWasSent) {
  for (WorkerSlot slot = 0; slot < 3; ++slot) policy_.apply_event(slot, {});
  const PromptTokens prompt = tokens_of(1, 64);
  const WorkerSlot sent_to = choose(prompt);
  EXPECT_EQ(choose(prompt), sent_to);  // no event has come of it yet
  const auto holder = static_cast<WorkerSlot>((sent_to + 1) % 3);
  policy_.apply_event(sent_to, stored(prompt, 100));
  policy_.apply_event(holder, stored(prompt, 900));
  policy_.apply_event(sent_to, {.type = KvEvent::Type::kRemoved, .hashes = {100, 101, 102, 103}});
  EXPECT_EQ(choose(prompt), holder);  // though it was sent elsewhere a moment ago
  EXPECT_EQ(last_shared_, 4u);
  policy_.apply_event(holder, {});
  pass(std::chrono::seconds(10));
  choose(prompt);
  EXPECT_EQ(last_shared_, 0u);
}

TEST_F(EventsDecide, WhatWasSentIsExpectedForSomeSeconds) {
  for (WorkerSlot slot = 0; slot < 3; ++slot) policy_.apply_event(slot, {});
  const PromptTokens prompt = tokens_of(1, 64);
  choose(prompt);
  pass(std::chrono::milliseconds(1900));
  choose(tokens_of(2, 64));
  EXPECT_EQ(last_shared_, 0u);
  choose(prompt);
  EXPECT_EQ(last_shared_, 4u);
  pass(std::chrono::seconds(5));
  choose(tokens_of(3, 64));  // drops what is old
  choose(prompt);
  EXPECT_EQ(last_shared_, 0u);
}

// A worker that has a prompt in host memory is worth more than one that has half of it on its
// device, and less than one that has all of it there.
TEST_F(EventsDecide, WhatMustBeLoadedCountsAsWhatItsLoadingSaves) {
  for (WorkerSlot slot = 0; slot < 3; ++slot) policy_.apply_event(slot, {});
  const PromptTokens prompt = tokens_of(1, 640);
  const auto demote = [&](WorkerSlot slot, uint64_t first_name, KvMedium medium) {
    KvEvent event = stored(prompt, first_name);
    event.tokens.clear();
    event.medium = medium;
    policy_.apply_event(slot, event);
    event.type = KvEvent::Type::kRemoved;
    event.medium = KvMedium::kDevice;
    policy_.apply_event(slot, event);
  };
  policy_.apply_event(0, stored(tokens_of(1, 320), 100));
  policy_.apply_event(1, stored(prompt, 200));
  demote(1, 200, KvMedium::kHost);
  EXPECT_EQ(choose(prompt), 1);
  EXPECT_EQ(last_shared_, 36u) << "nine tenths of 40 blocks are spared";
  const auto forget_what_was_sent = [&] {
    pass(std::chrono::seconds(10));
    choose(tokens_of(9, 64));
  };
  forget_what_was_sent();
  policy_.apply_event(2, stored(prompt, 300));
  EXPECT_EQ(choose(prompt), 2);
  EXPECT_EQ(last_shared_, 40u);
  demote(2, 300, KvMedium::kRemote);
  EXPECT_EQ(choose(prompt), 1);
  forget_what_was_sent();
  candidates_[1].requests = 20;
  EXPECT_EQ(choose(prompt), 0) << "half of it on the device, where the other has no room";
}

// Prompts that share nothing: the adapter's weights are what a worker has.
TEST(CacheAware, RequestsOfAnAdapterStayWithTheWorkersThatHaveIt) {
  const auto p = policy("cache_aware");
  Rng rng(10);
  auto candidates = idle(8);
  TimePoint now = TimePoint{} + std::chrono::hours(1);
  const auto choose_for = [&](uint64_t adapter) {
    const PrefixKey key = text_key(words(rng, 10), adapter);
    return p->choose({key, adapter, nullptr, now, WorkerRole::kServing, adapter}, candidates).slot;
  };
  const WorkerSlot first = choose_for(7), second = choose_for(8);
  EXPECT_NE(first, second);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(choose_for(7), first);
  candidates[first].requests = 20;  // more than its load allows: another one loads it
  const WorkerSlot other = choose_for(7);
  EXPECT_NE(other, first);
  EXPECT_EQ(choose_for(7), other);
  candidates[first].requests = 0;
  p->forget_worker(first);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(choose_for(7), other);
  now += 2 * AdapterHomes::kRememberedFor;
  std::set<WorkerSlot> used;
  for (uint64_t adapter = 100; adapter < 108; ++adapter) used.insert(choose_for(adapter));
  EXPECT_GT(used.size(), 4u) << "adapters that nobody has are spread";
}

TEST(AdapterHomesTest, ForgetsWithoutFurtherRequests) {
  AdapterHomes homes;
  const TimePoint start = TimePoint{} + std::chrono::hours(1);
  constexpr Duration kWhile = AdapterHomes::kRememberedFor;
  homes.insert(7, 1, start);
  EXPECT_TRUE(homes.contains(7, 1, start + kWhile));
  EXPECT_FALSE(homes.contains(7, 1, start + 2 * kWhile));
  homes.insert(8, 2, start + kWhile);  // what was recent is older now
  EXPECT_TRUE(homes.contains(7, 1, start + kWhile));
  EXPECT_FALSE(homes.contains(7, 1, start + 2 * kWhile));
  EXPECT_TRUE(homes.contains(8, 2, start + 2 * kWhile));
}

TEST_F(EventsDecide, OneWorkerWithoutEventsMakesWhatWasSentDecide) {
  policy_.apply_event(0, {});
  policy_.apply_event(1, {});
  const PromptTokens prompt = tokens_of(1, 64);
  const WorkerSlot sent_to = choose(prompt);
  pass(std::chrono::minutes(1));
  EXPECT_EQ(choose(prompt), sent_to);
  EXPECT_EQ(last_shared_, 4u);
  policy_.forget_worker(sent_to);
  choose(prompt);
  EXPECT_EQ(last_shared_, 0u);
}

}  // namespace
}  // namespace espalier::router
