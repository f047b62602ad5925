// The commands of `espalier_bench`. Each takes its arguments without its name and returns an exit
// code of apps/command_line.h.
#pragma once

#include <string>
#include <vector>

namespace espalier::bench {

int run_batches(const std::vector<std::string>& args);
int run_grammar(const std::vector<std::string>& args);
int run_host(const std::vector<std::string>& args);
int run_overhead(const std::vector<std::string>& args);
int run_quality(const std::vector<std::string>& args);
int run_radix(const std::vector<std::string>& args);
int run_route_latency(const std::vector<std::string>& args);
int run_workloads(const std::vector<std::string>& args);

}  // namespace espalier::bench
