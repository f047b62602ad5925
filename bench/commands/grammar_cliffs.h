// Grammars that other engines cannot handle or handle slowly: bounds of a hundred thousand,
// thousands of values, hundreds of tools, nested alternatives; and many sequences at once.
#pragma once

#include <string>
#include <vector>

#include "apps/grammar/source.h"

namespace espalier::bench {

// One grammar of each kind: the least of three times, milliseconds to the first mask and
// microseconds of a mask amid a text of it (the median of its steps).
struct GrammarCliff {
  std::string name;
  double first_mask_ms = 0, mask_us = 0;
  double first_mask_ms_goal = 0, mask_us_goal = 0;  // 0: none
  bool declined = false;
};
std::vector<GrammarCliff> measure_cliffs(const apps::Vocabulary& vocab);

// Masks of 256 sequences at different places of one grammar: milliseconds of processor time for a
// step of all, the median.
double measure_batch_ms(const apps::Vocabulary& vocab);

}  // namespace espalier::bench
