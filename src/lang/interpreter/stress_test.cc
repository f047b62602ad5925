// Programs that are cancelled, dropped and left at any moment, from several threads at once:
// nothing hangs, nothing is left running, and what was not disturbed is right.
#include <gtest/gtest.h>

#include <thread>

#include "base/rng.h"
#include "lang/test_backend.h"

namespace espalier::lang {
namespace {

// Appends at random; returns the states that still have a handle.
std::vector<State> write_at_random(State root, Rng& rng) {
  std::vector<State> states{std::move(root)};
  states[0] += "#";
  for (int i = 0; i < 15; ++i) {
    State s = states[rng.below(states.size())];
    switch (rng.below(8)) {
      case 0:
      case 1:
        s +=
            "text" + gen(fmt::format("g{}", i), {.max_tokens = 1 + static_cast<int>(rng.below(6))});
        break;
      case 2:
        s += select(fmt::format("c{}", i), {"one", "two"});
        break;
      case 3: {
        Forks forks = s.fork(1 + static_cast<int>(rng.below(3)));
        forks += gen("f", {.max_tokens = 2});
        for (State& f : forks)
          if (rng.below(2) == 0) states.push_back(f);  // the others are dropped as they run
        if (rng.below(3) == 0) forks.join();
        break;
      }
      case 4: {
        const State& other = states[rng.below(states.size())];
        for (const std::string& name : other.variable_names())
          if (rng.below(3) == 0 && !name.starts_with("f")) s += other[name];
        break;
      }
      case 5:
        s.cancel();
        break;
      case 6:
        if (states.size() > 1) states.erase(states.begin() + 1);
        break;
      case 7: {
        auto scope = s.var_scope(fmt::format("s{}", i));
        s += "scope" + gen();
        break;
      }
    }
  }
  return states;
}

void disturb(const std::shared_ptr<Backend>& backend, uint64_t seed) {
  Rng rng(seed);
  for (int round = 0; round < 30; ++round) {
    std::vector<State> states =
        write_at_random(start({.backend = backend, .stream = rng.below(2) == 0}), rng);
    if (rng.below(2) == 0) continue;  // all of it is dropped
    for (State& s : states) {
      const Status status = s.sync();
      ASSERT_TRUE(status.ok() || status.code() == StatusCode::kAborted) << status.to_string();
      for (const std::string& name : s.variable_names()) {
        const auto content = s[name].content();  // there, or failed: it does not hang
        ASSERT_TRUE(content || content.error().code() == StatusCode::kAborted);
      }
    }
  }
}

// Goes on through all of it: its text is what its definition says.
void stay(const std::shared_ptr<Backend>& backend, uint64_t seed) {
  Rng rng(seed);
  for (int round = 0; round < 20; ++round) {
    std::string expected = fmt::format("stay {} ", rng.below(1000));
    State s = start({.backend = backend});
    s += expected;
    for (int i = 0; i < 4; ++i) {
      s += gen("a", {.max_tokens = 3}) + ".";
      expected += answer_of(expected, 3) + ".";
    }
    ASSERT_EQ(s.text(), expected);
  }
}

TEST(Stress, ProgramsThatAreDisturbedLeaveNothingBehind) {
  for (const int delay_us : {0, 200}) {
    const TestBackend made = make_test_backend({}, std::chrono::microseconds(delay_us));
    std::vector<std::thread> threads;
    for (uint64_t seed = 1; seed <= 3; ++seed)
      threads.emplace_back([&, seed] { disturb(made.backend, seed); });
    threads.emplace_back([&] { stay(made.backend, 9); });
    for (std::thread& thread : threads) thread.join();
    while (made.engine->stats().requests.num_running + made.engine->stats().requests.num_waiting >
           0)
      std::this_thread::yield();
  }
}

// The last handle on a back end may be a program's.
TEST(Stress, TheBackEndMayGoWithItsLastProgram) {
  for (int round = 0; round < 20; ++round) {
    State s = start({.backend = make_test_backend({}, std::chrono::microseconds(100)).backend});
    s += "x" + gen("a", {.max_tokens = 200});
    if (round % 2 == 0) (void)s["a"].get();
  }
}

}  // namespace
}  // namespace espalier::lang
