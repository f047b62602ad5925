// Proves that a program is well formed.
#pragma once

#include "base/status.h"
#include "models/program/program.h"

namespace espalier::program {

// Every operand lies within its buffer, every buffer is written before it is read and not
// overwritten by another of its storage in between, and shapes agree: rows of inputs and outputs,
// columns with the operation's attributes. The error names the operation by its index and kind.
Status check(const Program& program);

}  // namespace espalier::program
