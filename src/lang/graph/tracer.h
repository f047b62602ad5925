// Tracing: runs a program's function once with abstract arguments and records what it appends. A
// trace runs on the calling thread; several may run at once.
#pragma once

#include <string>

#include "base/status.h"
#include "lang/graph/graph.h"
#include "lang/program.h"

namespace espalier::lang {

// kFailedPrecondition, with the line, where the function's way depends on a value: an argument that
// is read, a variable that is compared, meta_info, text(). Bound arguments are constants and may be
// read. `partial`, where given, gets what was traced before the failure.
Result<Graph> trace(const Program& program, Graph* partial = nullptr);

// The constant text with which every run of the program begins; also of one that cannot be traced
// to its end.
std::string constant_prefix(const Program& program, const Backend& backend);

}  // namespace espalier::lang
