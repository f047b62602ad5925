// Tip suggestion (skeleton of thought): short tips first, then each is expanded on its own, all at
// once. A trace of it is printed; with a second argument it is written for chrome://tracing.
#include <fstream>

#include "example.h"

namespace {
using namespace espalier::lang;

constexpr int kNumTips = 3;

void tips(State& s, const std::string& topic) {
  s += "Here are short tips for " + topic + ".\n";
  for (int i = 1; i <= kNumTips; ++i)
    s += std::to_string(i) + "." + gen("tip" + std::to_string(i), {.stop = {"\n", "."}}) + "\n";

  auto forks = s.fork(kNumTips);
  for (int i = 0; i < kNumTips; ++i)
    forks[i] += "Tip " + std::to_string(i + 1) +
                " in detail:" + gen("detail", {.max_tokens = 40, .stop = "\n\n"});
  for (int i = 0; i < kNumTips; ++i)
    s += "Tip " + std::to_string(i + 1) + ":" + forks[i]["detail"] + "\n";
  s += "In summary," + gen("summary", {.max_tokens = 40, .stop = "."});
}

}  // namespace

int main(int argc, char** argv) {
  const auto backend = example::backend(argc, argv);
  if (!backend) return example::end(backend.error());
  const auto recorder = std::make_shared<Recorder>();
  const State state = run(
      tips,
      {.backend = *backend, .defaults = {.max_tokens = 16, .temperature = 0}, .recorder = recorder},
      "staying healthy");
  std::cout << (state.error().ok() ? state.text() : "") << "\n\n" << recorder->tree();
  if (argc > 2) std::ofstream(argv[2]) << recorder->chrome_trace();
  return example::end(state);
}
