// Where the experts of a model lie at the start: evenly, or as a file has it.
#pragma once

#include "base/status.h"
#include "models/decoder_spec.h"
#include "models/expert_placement.h"

namespace espalier {

// Gives the layers with experts their slots; nothing where none is redundant and none moves.
// kInvalidArgument says which setting or which field of the file does not fit the model.
Status place_experts(const ExpertLocations& locations, DecoderSpec& spec);

}  // namespace espalier
