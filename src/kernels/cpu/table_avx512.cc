#include "kernels/cpu/bytes_avx512.h"
// The vectors come first: what follows is written in them.
#include "kernels/cpu/table.h"
#include "kernels/cpu/table_impl.h"

namespace espalier::kernels {

constinit const CpuTable kAvx512Table = kGenericTable;

}  // namespace espalier::kernels
