// Tree of thought: several ways to begin, several to go on from each, and the best of the leaves by
// a vote of the model. Branches of branches, all at work at once.
#include <map>

#include "example.h"

namespace {
using namespace espalier::lang;

constexpr int kWays = 3;

std::vector<State> grow(std::vector<State> states, const std::string& step) {
  std::vector<State> grown;
  for (State& s : states) {
    Forks forks = s.fork(kWays);
    for (int i = 0; i < kWays; ++i) {
      forks[i] += user(step);
      forks[i] += assistant(gen(
          "thought",
          {.max_tokens = 24, .stop = "\n", .temperature = 0.8f, .seed = static_cast<uint64_t>(i)}));
      grown.push_back(forks[i]);
    }
  }
  return grown;
}

void solve(State& s, const std::string& question) {
  s += user(question + " Think of a first step.");
  std::vector<State> leaves = grow({s}, "What comes first?");
  leaves = grow(leaves, "And then?");
  for (State& leaf : leaves) {
    leaf += user("So what is the answer?");
    leaf += assistant(gen("answer", {.max_tokens = 8, .temperature = 0, .regex = "[0-9]{1,3}"}));
  }
  std::map<std::string, int> votes;
  for (State& leaf : leaves) ++votes[leaf["answer"]];
  std::string best;
  for (const auto& [answer, count] : votes)
    if (best.empty() || count > votes[best]) best = answer;
  s.set_var("answer", best);
  s.set_var("votes", std::to_string(votes[best]) + " of " + std::to_string(leaves.size()));
}

}  // namespace

int main(int argc, char** argv) {
  const auto backend = example::backend(argc, argv);
  if (!backend) return example::end(backend.error());
  const State state = run(solve, {.backend = *backend}, "What is 17 plus 25?");
  if (state.has("answer"))
    std::cout << "answer: " << state["answer"] << " (" << state["votes"] << " votes)\n";
  return example::end(state);
}
