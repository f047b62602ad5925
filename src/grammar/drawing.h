// A grammar's automata as a picture.
#pragma once

#include <string>

#include "grammar/automata/transition_network.h"

namespace espalier::grammar {

// An SVG document: a row for each rule that is called, states from left to right by their distance
// from the rule's start, final ones with a second circle. Chains of states with one way on are one
// edge with their text, as they are compressed where bytes are forced. White space that may be left
// out without another meaning is not drawn, and the picture says so. Beyond `nodes_max` states a
// rule is cut off, and the picture says so.
std::string draw_svg(const Network& network, size_t nodes_max = 400);

}  // namespace espalier::grammar
