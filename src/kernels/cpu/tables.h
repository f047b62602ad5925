// The tables that this processor can run. CMake compiles the file (tables_*.cc) of the processor's
// family and the tables that it names.
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/cpu/table.h"

namespace espalier::kernels {

// REQUIRES: isa is supported.
const CpuTable& table_for(CpuIsa isa);

}  // namespace espalier::kernels
