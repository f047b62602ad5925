// The workloads of the SGLang paper's evaluation, as programs in the frontend language. Lengths are
// the published ones, scaled to the context of the model that ships (2,048 tokens).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "lang/lang.h"

namespace espalier::workloads {

struct Setup {
  int num_programs = 0;  // instances
  std::filesystem::path data;
  // Off: a program waits for each branch before it starts the next.
  bool parallel = true;
};

// One instance.
using Job = std::function<void(lang::State&)>;

struct Workload {
  std::string name, what;
  int num_programs = 0;  // of a usual run
  std::function<std::vector<Job>(const Setup&)> make;
};

const std::vector<Workload>& all_workloads();

}  // namespace espalier::workloads
