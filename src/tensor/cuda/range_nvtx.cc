#include <nvtx3/nvToolsExt.h>

#include "tensor/cuda/range.h"

namespace espalier::cuda {

Range::Range(const char* name) { nvtxRangePushA(name); }
Range::~Range() { nvtxRangePop(); }

}  // namespace espalier::cuda
