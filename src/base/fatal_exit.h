// The fatal-exit handler: a process that cannot continue ends with a message that states the reason
// and with an exit code on which a supervisor restarts it.
#pragma once

#include "base/status.h"

namespace espalier {

inline constexpr int kExitCannotGoOn = 70;  // sysexits.h: an internal software error

// Ends the process after one second; until then requests that wait are answered with `why`. Returns
// at once. Thread-safe.
void end_process_soon(const Status& why);

// Installs a terminate handler: an uncaught std::bad_alloc then ends the process with a message
// that names the settings to lower, instead of the exception's name. Called once, at start.
void report_memory_exhaustion();

}  // namespace espalier
