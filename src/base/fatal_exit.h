// How a process ends that cannot go on: with a message that says why, and an exit code by which a
// supervisor knows to start it anew.
#pragma once

#include "base/status.h"

namespace espalier {

inline constexpr int kExitCannotGoOn = 70;  // sysexits.h: an internal software error

// Ends the process in a second, so that whoever waits for an answer hears of `why` first. Returns
// at once; thread-safe.
void end_process_soon(const Status& why);

// From here on memory that the system refuses, where nobody catches it, ends the process with a
// message (by itself it would end with the name of an exception). Once, at start.
void report_memory_exhaustion();

}  // namespace espalier
