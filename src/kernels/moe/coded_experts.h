// Internal to kernels/moe: the grouped GEMM of experts in codes of 4 bits on Hopper
// (coded_experts.cu).
#pragma once

#include "kernels/moe/cuda.h"

namespace espalier::kernels::cuda {

// Whether these arguments suit: bfloat16 rows by a permutation, the first GEMM with its activation
// (pairs_per_row is not 0) or the second one.
bool coded_experts_supports(const GroupedArgs& args, const DeviceTraits& traits);
// Runs as grouped_linear. REQUIRES: coded_experts_supports(args, traits). A row's result depends on
// that row, its expert's matrix and, unless args.row_invariant, on how many rows the expert has.
Status coded_experts(const GroupedArgs& args, const DeviceTraits& traits,
                     const LaunchOptions& launch);

}  // namespace espalier::kernels::cuda
