#include "kernels/cpu/bytes_neon.h"
// The vectors come first: what follows is written in them.
#include "kernels/cpu/table.h"
#include "kernels/cpu/table_impl.h"

namespace espalier::kernels {

constinit const CpuTable kNeonTable = kGenericTable;

}  // namespace espalier::kernels
