// For tests alone: parts of a program broken on purpose, to show that goldens notice.
#pragma once

#include "models/program/program.h"

namespace espalier::program {

enum class Fault : uint8_t {
  kDropAttentionResidual,  // hidden becomes attention's result instead of the sum
  kDropMlpResidual,
  kReplaceActivation,  // SiLU by GELU
  kDropExperts,        // the shared expert alone
  kDropSharedExpert,
};

// REQUIRES: a program as lower() makes it.
Program inject(Program program, Fault fault);

}  // namespace espalier::program
