// A long document is summarised part by part, all parts at once; the summaries are joined behind
// each other, as each branch wrote them, and summarised again.
#include "example.h"

namespace {
using namespace espalier::lang;

const std::vector<std::string> parts = {
    "In the morning Anna went to the harbor. The boats were still out, and the gulls slept.",
    "At noon the first boat came home. Its hold was full of herring, and the crew sang.",
    "In the evening a storm rose. The lighthouse shone, and all boats found their way.",
};

void summarize(State& s) {
  s += "These are the parts of a story, each with a summary of one sentence.\n\n";
  auto forks = s.fork(static_cast<int>(parts.size()));
  for (auto [f, part] : zip(forks, parts))
    f += "Part: " + part +
         "\nSummary:" + gen("summary", {.max_tokens = 24, .stop = {"\n", "."}, .temperature = 0}) +
         ".\n\n";
  forks.join(JoinMode::kConcatenateAndAppend);
  s += "The whole story in one sentence:" +
       gen("whole", {.max_tokens = 32, .stop = {"\n", "."}, .temperature = 0});
}

}  // namespace

int main(int argc, char** argv) {
  const auto backend = example::backend(argc, argv);
  if (!backend) return example::end(backend.error());
  const State state = run(summarize, {.backend = *backend});
  if (state.error().ok()) std::cout << state.text() << "\n";
  return example::end(state);
}
