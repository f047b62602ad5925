// Puts the sums over ranks into the program of one rank: what a matrix with a part of the columns
// makes is partial until it is summed. Pure.
#pragma once

#include "models/program/program.h"
#include "tensor/collective.h"

namespace espalier::program {

// program: lowered from the rank's local_spec(). expert_slices: among the ranks that divide the
// same experts. Biases of what is summed are added by the first rank.
//
// whole_attention: each rank has rows of its own and all of attention (DecoderSpec). The MLPs and
// experts are those that are divided: they read the rows of all ranks, which are gathered in front
// of them (kRankTokens), and what they make is summed and given back to the ranks that have the
// rows.
Program insert_sums(Program program, const Ranks& ranks, const Ranks& expert_slices,
                    bool whole_attention);

}  // namespace espalier::program
