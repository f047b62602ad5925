// From a decoder's description to its program: the one place that knows the structure of a decoder.
#pragma once

#include "models/decoder_spec.h"
#include "models/program/program.h"

namespace espalier::program {

// Buffers that a draft head's interpreter finds by name: of a target the states in front of some
// layers, or behind the last one, [tokens, layers * hidden]; of a head its own states,
// [outputs, hidden].
inline constexpr const char* kKeptStates = "kept_states";
inline constexpr const char* kNextStates = "next_states";

// The program before any pass: every operation by itself, every row computed to the end.
//
//   hidden = embed(token) * embedding_scale (+ position)
//   for each layer: hidden += scale * norm(attention(norm(hidden)))
//                   hidden += scale * norm(mlp(norm(hidden))), or of experts chosen by a router
//   outputs = select_rows(hidden);  logits = softcap(scale * head(norm(outputs)))
//   or, where a text becomes a vector: pool(norm(outputs)) through the head's layers
// Behind its first layers a decoder may add parts of pictures' rows to hidden, which an encoder
// makes of what hidden is behind some of its own (DeepstackSpec).
//   of an encoder: hidden = norm(matmul(patches) + class + position); projector(norm(outputs))
//
// of a draft head: hidden = states, or matmul(states), and attention reads the embedding beside it
//   of an MTP layer: hidden = matmul(norm(embedding) beside norm(state)); next = norm(hidden)
// of a stage: hidden = the rows of the stage before, and output(hidden) behind the layers
//
// REQUIRES: a valid spec.
Program lower(const DecoderSpec& spec);

}  // namespace espalier::program
