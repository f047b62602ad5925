// For tests without a GPU: the launchers of kernels/*/cuda.h and the memory of tensor/cuda, linked
// in their place. A launch is recorded as a line instead of being run, with the launches whose
// results it reads: two lists are the same where the same kernels run with the same arguments on
// the same values, wherever these lie in memory.
//
// Not thread-safe. One recording for the process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace espalier::recording {

// Forgets the lines and what the launches wrote; numbers of launches begin at 0 again.
void begin();
// One line for each launch since begin().
const std::vector<std::string>& lines();

}  // namespace espalier::recording
