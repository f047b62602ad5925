// A profile as a trace in Chrome's JSON format, which Perfetto and chrome://tracing show: tracks of
// the scheduler's turns with their phases, of the executor's steps, and of requests.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "engine/watch/step_profile.h"

namespace espalier::server {

// Passes the trace to `write` in parts of about 1 MiB; a failure of it ends the work. Times are
// microseconds from the profile's begin, exact to the nanosecond. Samples that ran before or after
// are cut at its ends.
using WriteText = std::function<Status(std::string_view text)>;
Status write_trace(const StepProfile& profile, std::string_view model, const WriteText& write);

}  // namespace espalier::server
