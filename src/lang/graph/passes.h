// Passes over graphs. Each returns a new graph whose program has the same meaning, and reports what
// changed. Pure; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lang/graph/graph.h"

namespace espalier::lang {

// Arguments that are known become text; texts next to each other become one; what is set to a
// constant stays. Parameters that were given are gone from the graph.
Graph fold_constants(const Graph& graph, const Arguments& known = {});

// Removes what nobody can read: branches whose variables and texts go nowhere, and the ends of
// branches behind the last value that is read. `outputs`: the variables of stream 0 that the caller
// wants, and then its text is not; without it, all of stream 0 is.
Graph eliminate_dead(const Graph& graph,
                     const std::optional<std::vector<std::string>>& outputs = std::nullopt);

// Safe code movement: what all branches of a fork begin with is moved in front of it, into a state
// between, so that it is computed once and sent ahead. Every prompt stays the same text.
struct Hoisted {
  Graph graph;
  int32_t num_forks = 0;    // that changed
  int64_t chars_saved = 0;  // of prompts, that are shared now and were not
};
Hoisted hoist_common_prefixes(const Graph& graph);

// Which calls can run at once. Calls of a stage need one of the stage before.
struct Plan {
  std::vector<std::vector<int32_t>> stages;  // nodes that call
  int32_t num_calls = 0;
  size_t width = 0;  // of the widest stage

  // Calls one after the other over the longest chain of them: the most that parallel branches can
  // gain.
  double parallelism() const {
    return stages.empty() ? 1.0
                          : static_cast<double>(num_calls) / static_cast<double>(stages.size());
  }
};
Plan plan(const Graph& graph);

// All of them, in order; what a compiler would do by default.
Graph optimize(const Graph& graph, const Arguments& known = {});

// The graph as a program: run, bound and batched like any other, without the host function.
Program compiled(Graph graph);

}  // namespace espalier::lang
