// Renders a grammar's automata as SVG.
#pragma once

#include <string>

#include "grammar/automata/transition_network.h"

namespace espalier::grammar {

// Returns an SVG document with a row for each called rule: states from left to right by their
// distance from the start, final states with a second circle. Chains of states with one outgoing
// byte are one edge with their text. Optional white space is omitted, and rules beyond `nodes_max`
// states are truncated; the picture states both. Thread-safe.
std::string draw_svg(const Network& network, size_t nodes_max = 400);

}  // namespace espalier::grammar
