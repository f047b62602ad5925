// espalier_bench COMMAND: measures the parts of Espalier in this process. What users measure, a
// running server and an engine as a whole, is `espalier bench serving|offline`.
#include "apps/dispatch.h"
#include "bench/commands/commands.h"

namespace espalier::bench {
namespace {

int run(const std::vector<std::string>& args) {
  static const std::vector<apps::Command> all = {
      {"grammar", "compile schemas and fill masks along their instances", run_grammar},
      {"radix", "time the radix tree", run_radix},
      {"host", "time the host's work of a step, without a model", run_host},
      {"overhead", "what the radix cache costs where nothing is shared", run_overhead},
      {"batches", "answer batches of token ids from standard input, for bench/peers", run_batches},
      {"quality", "compare formats by the tokens that they make likely", run_quality},
      {"route_latency", "what the router adds to the time of an event", run_route_latency},
      {"workloads", "run the SGLang paper's programs, cache on and off", run_workloads},
  };
  return apps::dispatch("espalier_bench", all, args);
}

}  // namespace
}  // namespace espalier::bench

int main(int argc, char** argv) {
  return espalier::apps::run_main(argc, argv, espalier::bench::run);
}
