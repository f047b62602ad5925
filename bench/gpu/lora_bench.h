// Decode steps and prefill with LoRA adapters beside the same without, and how long an adapter
// takes to load.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"
#include "models/model.h"
#include "step_bench.h"

namespace espalier::bench {

struct LoraBenchOptions {
  ModelLoadOptions model;
  StepBench::Limits limits;
  int32_t entries = 256;
  int32_t context = 1024;  // tokens of each entry
  int32_t rank = 16;
  int steps = 40;
};

struct LoraRow {
  std::string name;
  double seconds = 0;
  double of_base = 0;  // the base's seconds over these; 0: there is no base
};

// One file, of random factors for every matrix of layers, is loaded as many times as adapters are
// needed, so each has memory of its own. on_row: called for each row when it is measured.
Status run_lora_bench(const LoraBenchOptions& options,
                      const std::function<void(const LoraRow&)>& on_row);

}  // namespace espalier::bench
