// A program traced, optimised, written down as JSON and drawn, read back and run without its
// function. `espalier run FILE.json` runs the same file.
#include <fstream>

#include "example.h"

namespace {
using namespace espalier::lang;

const Program expand("expand", {"topic"}, [](State& s, const Value& topic) {
  s += "Two tips for " + topic + ".\n1." + gen("one", {.stop = "\n"}) + "\n2." +
       gen("two", {.stop = "\n"}) + "\n";
  auto forks = s.fork(2);
  forks[0] += "More about the tip" + s["one"] + ":" + gen("more", {.max_tokens = 32});
  forks[1] += "More about the tip" + s["two"] + ":" + gen("more", {.max_tokens = 32});
  s += "First:" + forks[0]["more"] + "\nSecond:" + forks[1]["more"];
});

}  // namespace

int main(int argc, char** argv) {
  const auto backend = example::backend(argc, argv);
  if (!backend) return example::end(backend.error());
  const std::string file = argc > 2 ? argv[2] : "expand.json";

  const auto traced = trace(expand);
  if (!traced) return example::end(traced.error());
  const Graph graph = optimize(*traced);
  const Plan p = plan(graph);
  std::cout << traced->nodes.size() << " nodes traced, " << graph.nodes.size()
            << " after optimising, " << p.num_calls << " calls in " << p.stages.size()
            << " stages\n";
  std::ofstream(file) << to_json(graph);
  std::ofstream(file + ".svg") << to_svg(graph);

  const auto read = parse_graph(to_json(graph));
  if (!read) return example::end(read.error());
  const State state =
      run_graph(*read, {{"topic", "a long walk"}},
                {.backend = *backend, .defaults = {.max_tokens = 16, .temperature = 0}});
  if (state.error().ok()) std::cout << state.text() << "\n";
  return example::end(state);
}
