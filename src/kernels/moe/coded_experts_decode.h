// Internal to kernels/moe: the grouped GEMM of experts in codes of 4 bits for decode steps on
// Hopper (coded_experts_decode.cu).
#pragma once

#include "kernels/moe/cuda.h"

namespace espalier::kernels::cuda {

// Whether experts have so few rows on average that this kernel is faster than that of
// coded_experts.cu, and a row's bits may depend on that.
bool coded_experts_decode_suits(const GroupedArgs& args);

// Runs as grouped_linear. REQUIRES: coded_experts_supports(args, traits). A row's result depends on
// that row and its expert's matrix alone.
Status coded_experts_decode(const GroupedArgs& args, const DeviceTraits& traits,
                            const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
