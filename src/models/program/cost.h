// What an operation reads, writes and computes at a given step, for readers of a program.
#pragma once

#include <cstdint>
#include <functional>

#include "models/program/program.h"

namespace espalier::program {

// The shape of a step: `tokens` query tokens, each of a request with `context` cached tokens.
struct StepShape {
  int64_t tokens = 1;
  int64_t context = 0;
  int64_t activation_bytes = 4;  // of an element of ElementType::kActivation
  int64_t kv_bytes = 4;          // of an element of a page
};

struct OpCost {
  int64_t weight_bytes = 0;      // read once; of experts those that are chosen, at most all
  int64_t activation_bytes = 0;  // of inputs and outputs
  int64_t kv_bytes = 0;          // of pages, read and written
  int64_t flops = 0;             // two for each multiplication and addition of GEMMs and attention

  OpCost& operator+=(const OpCost& other);
};

// Bytes of `elements` of a weight as it is stored.
using WeightBytes = std::function<int64_t(WeightId id, int64_t elements)>;

// wanted and output rows are taken to be all tokens.
OpCost cost_of(const Program& program, const Op& op, const StepShape& step,
               const WeightBytes& weight_bytes);

}  // namespace espalier::program
