// A model's layers divided into stages of a pipeline (GPipe, Huang et al. 2019): each stage has
// some layers that follow each other, the first one the embedding too and the last one the head. A
// stage takes rows of hidden states from the one before it and hands its own to the next.
//
// A stage is a spec of its own, so whatever makes a program, weights or pages of a model makes
// those of a stage. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "models/decoder_spec.h"

namespace espalier::program {

// kInvalidArgument where the model has fewer layers than stages; kUnimplemented names what is not
// divided.
Status check_stages(const DecoderSpec& spec, int32_t num_stages);

// The steps that stages are balanced for.
enum class StageBalance : uint8_t {
  kDecode,   // of some requests: the head costs as much as layers do
  kPrompts,  // of long prompts, whose last token alone goes through the head
};

// What a part of the model costs in a step, in bytes read: those of its weights and, for each
// floating-point operation, a part of one.
struct StageCosts {
  std::vector<double> layers;
  double embedding = 0, head = 0;
};
StageCosts stage_costs(const DecoderSpec& spec, StageBalance balance = StageBalance::kDecode);

// How many layers each stage has, at least one: the costliest stage costs as little as it can.
// REQUIRES: at least as many layers as stages.
std::vector<int32_t> balance_stages(const StageCosts& costs, int32_t num_stages);

// The stages' specs, in their order. REQUIRES: check_stages().
std::vector<DecoderSpec> divide_layers(const DecoderSpec& spec, int32_t num_stages,
                                       StageBalance balance = StageBalance::kDecode);

}  // namespace espalier::program
